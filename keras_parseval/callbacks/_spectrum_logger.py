"""The singular values of the kernels, at the end of every epoch."""

from typing import Any

import numpy as np

from keras_parseval._layer_kernels import LayerKernel, is_parseval
from keras_parseval.analysis._spectra import (
    kernel_singular_values,
    kernel_tightness,
    select_kernels,
)
from keras_parseval.callbacks._epoch_measurement import EpochMeasurement

# What the logs say of all kernels together. Where one is NaN, NumPy's extremes are too.
_WORST: dict[str, Any] = {"spectrum_min": np.min, "spectrum_max": np.max, "tightness": np.max}


class SpectrumLogger(EpochMeasurement):
    """Adds the extreme singular values of the kernels to the logs, and their tightness.

    For each kernel there are `spectrum_min_<name>` and `spectrum_max_<name>`, its smallest and
    largest singular value divided by the target, so that 1 means tight for every
    layer, and `tightness_<name>`, see `kp.tightness`. The names are those of
    `kp.singular_values`. `spectrum_min`, `spectrum_max` and `tightness` are the smallest, the
    largest and the largest of them. All reach `History`, `CSVLogger` and
    `TensorBoard`; callbacks that decide by them must come later in the list.

    Args:
        layers: The layers to measure: a layer or its name, or a list of such. By default
            those whose kernels `kp.ParsevalTightFrame` constrains, or all layers with
            kernels if it constrains none. Defaults to `None`.
        every: Measure in the first epoch and every so many after it. In between the values are
            NaN, which no callback takes for an improvement. Defaults to 1.
        prefix: What the keys begin with. Defaults to `""`.

    Example:

    ```python
    hidden = keras.layers.Dense(16, "relu", kernel_constraint=kp.ParsevalTightFrame(0.1))
    model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    x, y = keras.random.uniform((64, 8)), keras.random.uniform((64, 3))
    history = model.fit(x, y, epochs=3, verbose=0, callbacks=[kp.SpectrumLogger()])
    history.history["spectrum_max"]  # three numbers
    ```
    """

    def __init__(self, layers: Any = None, *, every: int = 1, prefix: str = ""):
        super().__init__(every, prefix)
        self.layers = layers
        self._kernels: dict[str, LayerKernel] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find the kernels to measure."""
        super().on_train_begin(logs)
        self._kernels = select_kernels(self.model, self.layers)
        if self.layers is None:
            constrained = {name: each for name, each in self._kernels.items() if is_parseval(each)}
            self._kernels = constrained or self._kernels

    def measure(self) -> dict[str, float]:
        """The extremes of all kernels together, and the values of each."""
        rows = [_measure_kernel(kernel) for kernel in self._kernels.values()]
        logs: dict[str, float] = {}
        for (key, worst), column in zip(_WORST.items(), zip(*rows)):
            logs[key] = float(worst(column))
            logs |= {f"{key}_{name}": value for name, value in zip(self._kernels, column)}
        return logs


def _measure_kernel(kernel: LayerKernel) -> tuple[float, float, float]:
    """One value for each key."""
    values = kernel_singular_values(kernel, relative=True)
    return float(values.min()), float(values.max()), kernel_tightness(kernel)
