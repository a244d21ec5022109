"""Lipschitz rules for layers without kernels: shapes, merges, scalings, activations, wrappers."""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_parseval.analysis._activation_slopes import activation_constant
from keras_parseval.analysis._batch_axis import check_axes
from keras_parseval.analysis._rules import Constant, LayerCall, apply_rule, lipschitz_rule
from keras_parseval.layers import ConvexAdd, MaxMin

_L = keras.layers


@lipschitz_rule(
    *(_L.Identity, _L.Flatten, _L.Reshape, _L.Permute, _L.ActivityRegularization),
    *(_L.Cropping1D, _L.Cropping2D, _L.Cropping3D),
    *(_L.ZeroPadding1D, _L.ZeroPadding2D, _L.ZeroPadding3D),
    *(_L.GlobalMaxPooling1D, _L.GlobalMaxPooling2D, _L.GlobalMaxPooling3D),
    MaxMin,
)
def _keeps_distances(layer, call):
    return Constant(1.0, "moves or drops elements")


@lipschitz_rule(
    *(_L.Dropout, _L.SpatialDropout1D, _L.SpatialDropout2D, _L.SpatialDropout3D),
    *(_L.GaussianDropout, _L.AlphaDropout, _L.GaussianNoise),
)
def _does_nothing_at_inference(layer, call):
    return Constant(1.0, "identity at inference")


@lipschitz_rule(_L.UpSampling1D, _L.UpSampling3D)
def _repeats(layer, call):
    copies = math.prod(np.atleast_1d(layer.size).tolist())
    return Constant(1.0 if call.norm == "inf" else copies**0.5, f"repeats {copies} times")


@lipschitz_rule(_L.RepeatVector)
def _repeats_vector(layer, call):
    return Constant(1.0 if call.norm == "inf" else layer.n**0.5, f"repeats {layer.n} times")


def spread(call):
    """By how much each input of a merge grows when it is broadcast to the output's shape."""
    return [
        1.0 if call.norm == "inf" else _copies(shape, call) ** 0.5 for shape in call.input_shapes
    ]


def _copies(shape, call):
    output = call.output_shape
    shape = (1,) * (len(output) - len(shape)) + tuple(shape)
    repeated = [size for size, own in zip(output, shape) if own == 1 and size != 1]
    if None in repeated:
        raise ValueError(
            "An input that is broadcast along an axis of unknown size has no known Lipschitz "
            f"constant; give the model's inputs a fixed shape. Received: shapes {call.input_shapes}"
        )
    return math.prod(repeated)


@lipschitz_rule(_L.Add, _L.Subtract)
def _sum(layer, call):
    return Constant(spread(call), "sum")


@lipschitz_rule(_L.Average)
def _average(layer, call):
    growth = spread(call)
    return Constant([each / len(growth) for each in growth], "mean")


@lipschitz_rule(ConvexAdd)
def _convex_sum(layer, call):
    return Constant(np.abs(ops.convert_to_numpy(layer.coefficients)), "convex sum")


@lipschitz_rule(_L.Maximum, _L.Minimum, combine="stack")
def _extremum(layer, call):
    return Constant(spread(call), "chooses elements")


@lipschitz_rule(_L.Concatenate, combine="stack")
def _concatenation(layer, call):
    check_axes(layer, layer.axis, call)
    return Constant([1.0] * len(call.input_shapes), "concatenation")


@lipschitz_rule(_L.Rescaling)
def _rescaling(layer, call):
    return Constant(np.abs(layer.scale).max(), "scale")


@lipschitz_rule(_L.Activation)
def _activation(layer, call):
    return activation_constant(layer, call)


@lipschitz_rule(_L.Softmax)
def _softmax(layer, call):
    check_axes(layer, layer.axis, call)
    return Constant(0.5, "softmax")


@lipschitz_rule(_L.ReLU)
def _relu(layer, call):
    if layer.threshold:
        raise ValueError(
            "A ReLU with a threshold jumps, and has no Lipschitz constant; set `threshold=0`. "
            f"Received: layer '{layer.name}' with threshold={layer.threshold}"
        )
    return Constant(max(1.0, abs(layer.negative_slope)), "largest slope")


@lipschitz_rule(_L.LeakyReLU)
def _leaky_relu(layer, call):
    return Constant(max(1.0, abs(layer.negative_slope)), "largest slope")


@lipschitz_rule(_L.PReLU)
def _prelu(layer, call):
    return Constant(max(1.0, np.abs(ops.convert_to_numpy(layer.alpha)).max()), "largest slope")


@lipschitz_rule(_L.ELU)
def _elu(layer, call):
    return Constant(max(1.0, abs(layer.alpha)), "largest slope")


@lipschitz_rule(_L.Masking)
def _masking(layer, call):
    if layer.mask_value:
        raise ValueError(
            "A `Masking` layer sets steps to zero, and has a Lipschitz constant only where they "
            "are zero before; use `mask_value=0`. "
            f"Received: layer '{layer.name}' with mask_value={layer.mask_value}"
        )
    return Constant(1.0, "leaves steps as they are")


@lipschitz_rule(_L.SpectralNormalization)
def _wrapped(layer, call):
    # At inference the wrapper only calls its layer, whose kernel training has rescaled.
    constant, _ = apply_rule(layer.layer, call)
    return constant


@lipschitz_rule(_L.TimeDistributed)
def _time_distributed(layer, call):
    # The same for each step, on elements of its own: no step adds to the constant of another.
    step = LayerCall(
        *(call.norm, call.method),
        *(tuple(shape[1:] for shape in call.input_shapes), call.output_shape[1:]),
    )
    constant, _ = apply_rule(layer.layer, step)
    return dataclasses.replace(constant, rule=f"for each step, {constant.rule}")
