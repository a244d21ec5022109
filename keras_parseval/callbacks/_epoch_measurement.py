"""What callbacks that measure at the end of epochs have in common."""

from typing import Any

import keras

from keras_parseval._validation import check_integer


class EpochMeasurement(keras.callbacks.Callback):
    """Adds what `measure` returns to the logs, in the first epoch and every so many after it.

    Args:
        every: After how many epochs to measure again.
        prefix: What the keys begin with.
    """

    def __init__(self, every: int, prefix: str):
        super().__init__()
        self.every = check_integer("every", every, "a positive integer", lambda value: value > 0)
        if not isinstance(prefix, str):
            raise TypeError(f"`prefix` must be a string. Received: prefix={prefix!r}")
        self.prefix = prefix
        self._first_epoch: int | None = None
        self._values: dict[str, float] = {}

    def measure(self) -> dict[str, float]:
        """The values by name, without the prefix."""
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Count epochs anew."""
        self._first_epoch = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the values to the logs, or NaN in epochs between two measurements."""
        if self._first_epoch is None:
            self._first_epoch = epoch
        if (epoch - self._first_epoch) % self.every == 0:
            measured = self.measure()
            self._values = {f"{self.prefix}{name}": value for name, value in measured.items()}
        else:
            # Without the key, ModelCheckpoint would save a model that is not the best.
            self._values = dict.fromkeys(self._values, float("nan"))
        if logs is not None:
            logs.update(self._values)
