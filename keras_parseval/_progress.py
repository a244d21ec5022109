"""How far a long computation has come."""

import time
from typing import Any, Literal

import keras

Verbose = Literal[0, 1, "auto"]


def check_verbose(verbose: Any) -> Verbose:
    """Return `verbose` if it is 0, 1 or "auto"."""
    if isinstance(verbose, str) and verbose == "auto":
        return "auto"
    if not isinstance(verbose, int) or verbose not in (0, 1):
        raise ValueError(f'`verbose` must be 0, 1 or "auto". Received: verbose={verbose!r}')
    return 1 if verbose else 0


class Progress:
    """A progress bar, or none, or one that appears after five seconds.

    Args:
        total: How many batches there will be; `None` if that is not known.
        verbose: 1, 0 or `"auto"`.
        unit: What is counted. Defaults to `"batch"`.
    """

    def __init__(self, total: int | None, verbose: Verbose, unit: str = "batch"):
        self.unit = unit
        self.total, self.verbose = total, check_verbose(verbose)
        self.start, self.done = time.monotonic(), 0
        self.bar: Any = None

    def advance(self, count: int = 1, **values: float) -> None:
        """Count one more batch, or several, and show these values as they are now."""
        self.done += count
        long = self.verbose == "auto" and time.monotonic() - self.start > 5
        if self.bar is None and (self.verbose == 1 or long):
            self.bar = keras.utils.Progbar(
                self.total, unit_name=self.unit, stateful_metrics=list(values)
            )
        if self.bar is not None:
            self.bar.update(self.done, values=list(values.items()))
