"""Lipschitz rules for normalisation, by fixed statistics and by those of the example itself."""

import math

import keras
import numpy as np
from keras import ops

from keras_parseval.analysis._batch_axis import check_axes, check_known, count
from keras_parseval.analysis._rules import Constant, lipschitz_rule
from keras_parseval.layers import BatchCentering

_L = keras.layers


@lipschitz_rule(_L.BatchNormalization)
def _batch_normalization(layer, call):
    variance = ops.convert_to_numpy(layer.moving_variance).astype("float64")
    gamma = 1.0 if layer.gamma is None else ops.convert_to_numpy(layer.gamma)
    scales = np.abs(gamma) / np.sqrt(variance + layer.epsilon)
    return Constant(scales.max(), "max |gamma| / sqrt(var + eps)")


@lipschitz_rule(BatchCentering)
def _batch_centering(layer, call):
    return Constant(1.0, "shifts by a constant")


@lipschitz_rule(_L.Normalization)
def _normalization(layer, call):
    if not hasattr(layer, "variance"):
        raise ValueError(
            "A `Normalization` layer must know the variance of its data: call `adapt`, or pass "
            f"`mean` and `variance`. Received: layer '{layer.name}'"
        )
    deviation = np.sqrt(ops.convert_to_numpy(layer.variance).astype("float64"))
    deviation = np.maximum(deviation, keras.backend.epsilon())
    scales = deviation if layer.invert else 1 / deviation
    return Constant(scales.max(), "largest standard deviation" if layer.invert else "1 / deviation")


def _by_root_mean_square(layer, call, size, weights, centred):
    """`x / sqrt(mean(x^2) + epsilon)` over groups of `size` elements, perhaps of a centred `x`.

    With `u = x / sqrt(size (mean(x^2) + epsilon))`, shorter than 1, the Jacobian is
    `sqrt((1 - |u|^2) / epsilon) (P - u u^T)`, where P centres, or is the identity.

    2-norm: `P - u u^T` is between 0 and P, so the largest is that at `u = 0`, `1 / sqrt(epsilon)`.

    inf-norm: a row with `u_i = a` has the 1-norm `A - a^2 + a b sqrt(size - 1)` at most, where
    `A` is that of a row of P, and b the 2-norm of the rest of u. Over all `a^2 + b^2 = t`
    this is `A + c t` at most, with `c = (sqrt(size) - 1) / 2`. What is left is to maximise
    `sqrt(1 - t) (A + c t)`.
    """
    if size == 1 and centred:
        return Constant(0.0, "one element, less its mean")
    largest = 1.0
    if call.norm == "inf":
        row, growth = 2 * (1 - 1 / size) if centred else 1.0, (math.sqrt(size) - 1) / 2
        t = max(0.0, (2 * growth - row) / (3 * growth)) if growth else 0.0
        largest = math.sqrt(1 - t) * (row + growth * t)
    scale = 1.0 if weights is None else float(np.abs(ops.convert_to_numpy(weights)).max())
    return Constant(
        scale * largest / math.sqrt(layer.epsilon),
        "max |gamma| / sqrt(eps): large, from inputs that hardly vary",
    )


@lipschitz_rule(_L.LayerNormalization)
def _layer_normalization(layer, call):
    if getattr(layer, "rms_scaling", False):
        raise ValueError(
            "A `LayerNormalization` with `rms_scaling=True` divides by the deviation what it does "
            "not centre, and has no Lipschitz constant; use `RMSNormalization`. "
            f"Received: layer '{layer.name}'"
        )
    size = count(layer, check_axes(layer, layer.axis, call), call)
    return _by_root_mean_square(layer, call, size, layer.gamma, centred=True)


@lipschitz_rule(_L.GroupNormalization)
def _group_normalization(layer, call):
    check_known(layer, call.input_shapes[0])
    size = math.prod(call.input_shapes[0]) // layer.groups
    weights = layer.gamma if layer.scale else None
    return _by_root_mean_square(layer, call, size, weights, centred=True)


if hasattr(_L, "RMSNormalization"):

    @lipschitz_rule(_L.RMSNormalization)
    def _rms_normalization(layer, call):
        size = count(layer, check_axes(layer, layer.axis, call), call)
        return _by_root_mean_square(layer, call, size, layer.scale, centred=False)
