"""The singular values of the kernels, at the end of every epoch."""

import keras
import numpy as np

from keras_parseval._validation import check_integer
from keras_parseval.analysis.spectra import (
    is_parseval,
    kernel_singular_values,
    kernel_tightness,
    select_kernels,
)

# What the logs say of all kernels together. Where one is NaN, NumPy's extremes are too.
_WORST = {"spectrum_min": np.min, "spectrum_max": np.max, "tightness": np.max}


class SpectrumLogger(keras.callbacks.Callback):
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
            kernels if it constrains none.
        every: Measure in the first epoch and every so many after it. In between the values are
            NaN, which no callback takes for an improvement.
        prefix: What the keys begin with.

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

    def __init__(self, layers=None, every=1, prefix=""):
        super().__init__()
        self.layers = layers
        self.every = check_integer("every", every, "a positive integer", lambda value: value > 0)
        if not isinstance(prefix, str):
            raise TypeError(f"`prefix` must be a string. Received: prefix={prefix!r}")
        self.prefix = prefix
        self._kernels, self._first_epoch, self._values = {}, None, {}

    def on_train_begin(self, logs=None):
        self._kernels = select_kernels(self.model, self.layers)
        if self.layers is None:
            constrained = {name: each for name, each in self._kernels.items() if is_parseval(each)}
            self._kernels = constrained or self._kernels
        self._first_epoch = None

    def on_epoch_end(self, epoch, logs=None):
        if self._first_epoch is None:
            self._first_epoch = epoch
        if (epoch - self._first_epoch) % self.every == 0:
            self._values = self._measure()
        else:
            # Without the key, ModelCheckpoint would save a model that is not the best.
            self._values = dict.fromkeys(self._values, float("nan"))
        if logs is not None:
            logs.update(self._values)

    def _measure(self):
        rows = [_measure_kernel(kernel) for kernel in self._kernels.values()]
        logs = {}
        for (key, worst), column in zip(_WORST.items(), zip(*rows)):
            logs[f"{self.prefix}{key}"] = float(worst(column))
            for name, value in zip(self._kernels, column):
                logs[f"{self.prefix}{key}_{name}"] = value
        return logs


def _measure_kernel(kernel):
    """One value for each key."""
    values = kernel_singular_values(kernel, relative=True)
    return float(values.min()), float(values.max()), kernel_tightness(kernel)
