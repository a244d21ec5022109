"""Brings the weights of a model to the sets that their constraints aim at."""

from typing import Any

import keras

from keras_parseval._sets import constrained_weights
from keras_parseval._validation import check_number


def tighten(model: Any, *, tolerance: float = 1e-3) -> dict[str, float]:
    """Moves every constrained weight that is off its set to the nearest point of the set.

    A constraint acts after an update of the optimizer, and takes a step. What else changes the
    weights takes them off: a moving average (`use_ema=True`), `set_weights`, the mean of several
    models, merged adapters, or just a high learning rate until the last step. Call
    this before you certify or ship a model. Kernels with a `kp.ParsevalTightFrame` become tight
    frames, convolutions with a `kp.ParsevalConvolution` become tight frames as operators, and
    coefficients with a `kp.Simplex` go back to the simplex. Where a convolution cannot be brought
    within the tolerance, nothing is changed, and an error says which it is.

    Args:
        model: A built Keras model, or a layer.
        tolerance: How far off a weight may be and stay as it is: for a kernel the largest relative
            error of a singular value, for coefficients the largest error of one of them.
            Defaults to 1e-3.

    Returns:
        Dictionary of the weights that were moved: how far off each was, by its path.

    Example:

    ```python
    layer = keras.layers.Dense(8, kernel_constraint=kp.ParsevalTightFrame())
    model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(3)])
    kp.tighten(model)  # {"sequential/dense/kernel": 0.6...}
    kp.tightness(layer)  # 0 up to rounding
    ```
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"The model must be a Keras model or layer. Received: {model!r}")
    rule = "a positive number"
    tolerance = check_number("tolerance", tolerance, rule, lambda value: value > 0)
    # All are looked at before any is changed.
    off = [each for each in constrained_weights(model) if each.distance > tolerance]
    nearest = [each.nearest(tolerance) for each in off]
    missed = [each.variable.path for each, values in zip(off, nearest) if values is None]
    if missed:
        raise ValueError(
            "A convolution must be near a tight one to be brought there: start the training from "
            "`kp.TightConvolution`, or raise `tolerance`. Nothing was changed. Received: "
            f"tolerance={tolerance}, which cannot be reached from {', '.join(missed)}"
        )
    for each, values in zip(off, nearest):
        each.variable.assign(values)
    return {each.variable.path: each.distance for each in off}
