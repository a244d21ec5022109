"""Lipschitz rules for layers without kernels: shapes, merges, pooling, scalings, activations."""

import math

import keras
import numpy as np
from keras import ops

from keras_parseval._layer_kernels import overlaps
from keras_parseval.analysis._activation_slopes import activation_constant
from keras_parseval.analysis._rules import Constant, apply_rule, lipschitz_rule
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
    *(_L.RandomFlip, _L.RandomRotation, _L.RandomTranslation, _L.RandomZoom),
    *(_L.RandomContrast, _L.RandomBrightness),
)
def _does_nothing_at_inference(layer, call):
    return Constant(1.0, "identity at inference")


@lipschitz_rule(_L.UpSampling1D, _L.UpSampling2D, _L.UpSampling3D)
def _repeats(layer, call):
    if getattr(layer, "interpolation", "nearest") != "nearest":
        raise ValueError(
            'The Lipschitz constant of upsampling is known for interpolation="nearest" alone; '
            "use that, or register a rule for a subclass of your own. "
            f"Received: layer '{layer.name}' with interpolation={layer.interpolation!r}"
        )
    copies = math.prod(np.atleast_1d(layer.size).tolist())
    return Constant(1.0 if call.norm == "inf" else copies**0.5, f"repeats {copies} times")


@lipschitz_rule(_L.RepeatVector)
def _repeats_vector(layer, call):
    return Constant(1.0 if call.norm == "inf" else layer.n**0.5, f"repeats {layer.n} times")


@lipschitz_rule(_L.MaxPooling1D, _L.MaxPooling2D, _L.MaxPooling3D)
def _max_pooling(layer, call):
    covered = overlaps(layer)
    return Constant(1.0 if call.norm == "inf" else covered**0.5, f"windows overlap {covered} times")


@lipschitz_rule(_L.AveragePooling1D, _L.AveragePooling2D, _L.AveragePooling3D)
def _average_pooling(layer, call):
    if call.norm == "inf":
        return Constant(1.0, "mean")
    # Rows of the pooling matrix sum to 1. So its norm is at most the root of a column's sum.
    sizes = _spatial(layer, call.input_shapes[0])
    columns = math.prod(_largest_column(layer, axis, size) for axis, size in enumerate(sizes))
    return Constant(columns**0.5, "mean of windows")


def _largest_column(layer, axis, size):
    """The largest sum of the weights that one input has in means along an axis."""
    window, stride = layer.pool_size[axis], layer.strides[axis]
    if size is None or layer.padding == "valid":
        # Where padding is not counted, a window at the border may hold a single element.
        return math.ceil(window / stride) / (window if layer.padding == "valid" else 1)
    outputs = math.ceil(size / stride)
    before = max((outputs - 1) * stride + window - size, 0) // 2
    weights = np.zeros(size)
    for start in range(-before, outputs * stride - before, stride):
        inside = slice(max(start, 0), min(start + window, size))
        weights[inside] += 1 / max(inside.stop - inside.start, 1)
    return weights.max()


def _spatial(layer, shape):
    return shape[1:] if layer.data_format == "channels_first" else shape[:-1]


@lipschitz_rule(_L.GlobalAveragePooling1D, _L.GlobalAveragePooling2D, _L.GlobalAveragePooling3D)
def _global_average_pooling(layer, call):
    sizes = _spatial(layer, call.input_shapes[0])
    known = call.norm == 2 and None not in sizes
    return Constant(math.prod(sizes) ** -0.5 if known else 1.0, "mean of all")


def _spread(call):
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
    return Constant(_spread(call), "sum")


@lipschitz_rule(_L.Average)
def _average(layer, call):
    spread = _spread(call)
    return Constant([each / len(spread) for each in spread], "mean")


@lipschitz_rule(ConvexAdd)
def _convex_sum(layer, call):
    return Constant(np.abs(ops.convert_to_numpy(layer.coefficients)), "convex sum")


@lipschitz_rule(_L.Maximum, _L.Minimum, combine="stack")
def _extremum(layer, call):
    return Constant(_spread(call), "chooses elements")


@lipschitz_rule(_L.Concatenate, combine="stack")
def _concatenation(layer, call):
    return Constant([1.0] * len(call.input_shapes), "concatenation")


@lipschitz_rule(_L.BatchNormalization)
def _batch_normalization(layer, call):
    variance = ops.convert_to_numpy(layer.moving_variance).astype("float64")
    gamma = 1.0 if layer.gamma is None else ops.convert_to_numpy(layer.gamma)
    scales = np.abs(gamma) / np.sqrt(variance + layer.epsilon)
    return Constant(scales.max(), "max |gamma| / sqrt(var + eps)")


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


@lipschitz_rule(_L.Rescaling)
def _rescaling(layer, call):
    return Constant(np.abs(layer.scale).max(), "scale")


@lipschitz_rule(_L.Activation)
def _activation(layer, call):
    return Constant(activation_constant(layer), layer.activation.__name__)


@lipschitz_rule(_L.Softmax)
def _softmax(layer, call):
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


@lipschitz_rule(_L.SpectralNormalization)
def _wrapped(layer, call):
    # At inference the wrapper only calls its layer, whose kernel training has rescaled.
    constant, _ = apply_rule(layer.layer, call)
    return constant
