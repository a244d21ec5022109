"""What results of attacks and of certificates share: an accuracy for each level, as a table."""

import dataclasses
from typing import Any


class AccuracyByLevel:
    """A base for frozen dataclasses with the fields below, and others that describe them."""

    clean: float
    levels: tuple[float, ...]
    accuracies: tuple[float, ...]
    measure: str

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
            if name not in ("clean", "levels", "accuracies")
        }
        levels = [(None, self.clean), *zip(self.levels, self.accuracies)]
        return [{**common, "level": level, "accuracy": value} for level, value in levels]

    def __str__(self) -> str:
        heading = "SNR (dB)" if self.measure == "snr" else "epsilon"
        levels = ["clean", *(f"{level:g}" for level in self.levels)]
        values = [self.clean, *self.accuracies]
        lines = [self.title(), f"{heading:>10}{'accuracy':>11}"]
        return "\n".join([*lines, *(f"{a:>10}{b:>11.4f}" for a, b in zip(levels, values))])
