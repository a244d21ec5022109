"""The singular values of the kernels, at the end of every epoch."""

import warnings
from typing import Any

import numpy as np

from keras_parseval._kernel_readings import CONVOLUTION_READINGS, Convolutions
from keras_parseval._layer_kernels import LayerKernel
from keras_parseval._validation import check_choice, check_flag
from keras_parseval.analysis._kernel_selection import measured_kernels
from keras_parseval.analysis._model_notes import describe_branches, floored_branches
from keras_parseval.analysis._spectra import kernel_singular_values, kernel_tightness
from keras_parseval.callbacks._epoch_measurement import EpochMeasurement

# What the logs say of all kernels together. Where one is NaN, NumPy's extremes are too.
_WORST: dict[str, Any] = {"spectrum_min": np.min, "spectrum_max": np.max, "tightness": np.max}


class SpectrumLogger(EpochMeasurement):
    """Adds the extreme singular values of the kernels to the logs, and their tightness.

    `spectrum_min` and `spectrum_max` are the smallest and the largest singular value of all
    kernels, divided by the target, so that 1 means tight for every layer, and `tightness` is the
    largest value of `kp.tightness`. With `per_layer=True` there are `spectrum_min_<name>`,
    `spectrum_max_<name>` and `tightness_<name>` for each kernel too, with the names of
    `kp.singular_values`.

    For a model with `kp.ConvexAdd` layers, `floored_branches` is the number of branches whose
    coefficients are at their floor, and a warning names each of them once.

    All reach `History`, `CSVLogger` and `TensorBoard`; callbacks that decide by them must come
    later in the list.

    Args:
        layers: The layers to measure: a layer or its name, or a list of such. By default
            those whose kernels are constrained to be tight; if none is, all
            layers with kernels but for the classifier. Defaults to `None`.
        per_layer: Whether to log the values of each kernel too. Defaults to `False`.
        convolutions: As in `kp.singular_values`. Two loggers, one with `"kernel"` and one with
            `"operator"`, need different `prefix`es. Defaults to `None`.
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

    def __init__(
        self,
        layers: Any = None,
        *,
        per_layer: bool = False,
        convolutions: Convolutions | None = None,
        every: int = 1,
        prefix: str = "",
    ):
        super().__init__(every, prefix)
        self.layers = layers
        self.per_layer = check_flag("per_layer", per_layer)
        self.convolutions = check_choice("convolutions", convolutions, CONVOLUTION_READINGS)
        self._kernels: dict[str, LayerKernel] = {}
        self._floored: set[tuple[str, int]] = set()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find the kernels to measure."""
        super().on_train_begin(logs)
        self._floored = set()
        self._kernels = measured_kernels(self.model, self.layers)

    def measure(self) -> dict[str, float]:
        """The extremes of all kernels together, and the values of each if they are wanted."""
        rows = [_measure_kernel(each, self.convolutions) for each in self._kernels.values()]
        logs: dict[str, float] = {}
        for (key, worst), column in zip(_WORST.items(), zip(*rows)):
            logs[key] = float(worst(column))
            if self.per_layer:
                logs |= {f"{key}_{name}": value for name, value in zip(self._kernels, column)}
        floored = floored_branches(self.model)
        if floored is not None:
            logs["floored_branches"] = float(len(floored))
            self._warn_once(floored)
        return logs

    def _warn_once(self, floored: set[tuple[str, int]]) -> None:
        """Name the branches that were not at their floor before."""
        new = floored - self._floored
        self._floored |= floored
        if new:
            warnings.warn(
                f"At the floor of its coefficients: {', '.join(describe_branches(new))}. Such a "
                "branch counts least; if it stays there, lower the learning rate.",
                stacklevel=2,
            )


def _measure_kernel(
    kernel: LayerKernel, convolutions: Convolutions | None
) -> tuple[float, float, float]:
    """One value for each key."""
    values = kernel_singular_values(kernel, True, convolutions)
    return float(values.min()), float(values.max()), kernel_tightness(kernel, convolutions)
