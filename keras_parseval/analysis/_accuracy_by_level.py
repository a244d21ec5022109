"""What results of attacks and of certificates share: an accuracy for each level, as a table."""

import dataclasses
import math
from typing import Any

from keras_parseval._html import html_table


class AccuracyByLevel:
    """A base for frozen dataclasses with the fields below, and others that describe them."""

    clean: float
    levels: tuple[float, ...]
    accuracies: tuple[float, ...]
    measure: str

    examples: int

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """Where the accuracy on all data of this kind lies, with 95% confidence, for clean and each
        level: Wilson's interval, which takes the examples for a random sample."""
        return tuple(_wilson(value, self.examples) for value in (self.clean, *self.accuracies))

    def title(self) -> str:
        """The first line of the table."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, float]:
        """Accuracies by name: `clean`, then `snr40` or `eps0.1` and the like."""
        prefix = "snr" if self.measure == "snr" else "eps"
        named = {f"{prefix}{level:g}": value for level, value in zip(self.levels, self.accuracies)}
        return {"clean": self.clean, **named}

    def to_rows(self) -> list[dict[str, Any]]:
        """A dictionary for each level, clean first: what `pandas.DataFrame` takes."""
        fields = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        common = {
            name: getattr(self, name)
            for name in fields
            if name not in ("clean", "levels", "accuracies", "warnings", "details")
        }
        levels = [(None, self.clean), *zip(self.levels, self.accuracies)]
        return [
            {**common, "level": level, "accuracy": value, "low": low, "high": high}
            for (level, value), (low, high) in zip(levels, self.intervals)
        ]

    def __str__(self) -> str:
        rows = [f"{level:>10}{value:>11}{interval:>20}" for level, value, interval in self._table()]
        return "\n".join([self.title(), *rows, *self._notes()])

    def _repr_html_(self) -> str:
        headings, *rows = self._table()
        return html_table(self.title(), headings, rows, self._notes())

    def _table(self) -> list[tuple[str, str, str]]:
        heading = "SNR (dB)" if self.measure == "snr" else "epsilon"
        levels = ["clean", *(f"{level:g}" for level in self.levels)]
        values = [self.clean, *self.accuracies]
        rows = [
            (level, f"{value:.4f}", f"{low:.4f} to {high:.4f}")
            for level, value, (low, high) in zip(levels, values, self.intervals)
        ]
        return [(heading, "accuracy", "95% interval"), *rows]

    def _notes(self) -> list[str]:
        return [f"Note: {each}" for each in getattr(self, "warnings", ())]


def _wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of 95% for a share that was seen in so many examples."""
    squared = 1.959964**2
    centre = share + squared / (2 * count)
    spread = math.sqrt(squared * (share * (1 - share) / count + squared / (4 * count**2)))
    low, high = ((centre + sign * spread) / (1 + squared / count) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)
