"""Lipschitz rules for pooling, as layers and as operations."""

import math
import types

import keras
import numpy as np

from keras_parseval._layer_kernels import overlaps
from keras_parseval.analysis._batch_axis import check_known
from keras_parseval.analysis._operator_norms import spectral_norm
from keras_parseval.analysis._rules import Constant, lipschitz_rule, operation_rule

_L = keras.layers


def _existing(*names):
    """Those of the layers that this version of Keras has."""
    return [getattr(_L, name) for name in names if hasattr(_L, name)]


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


@operation_rule("MaxPool", "AveragePool")
def _pooling_operation(operation, call):
    rank = len(call.input_shapes[0]) - 1
    window = types.SimpleNamespace(
        pool_size=_for_each_axis(operation.pool_size, rank),
        strides=_for_each_axis(operation.strides or operation.pool_size, rank),
        padding=operation.padding,
        data_format=operation.data_format or keras.config.image_data_format(),
    )
    pooling = _max_pooling if type(operation).__name__ == "MaxPool" else _average_pooling
    return pooling(window, call)


def _for_each_axis(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


_AXES = ("1D", "2D", "3D")
_ADAPTIVE_MEANS = _existing(*(f"AdaptiveAveragePooling{axes}" for axes in _AXES))
_ADAPTIVE_MAXIMA = _existing(*(f"AdaptiveMaxPooling{axes}" for axes in _AXES))


if _ADAPTIVE_MEANS:

    @lipschitz_rule(*_ADAPTIVE_MEANS)
    def _adaptive_average(layer, call):
        if call.norm == "inf":
            return Constant(1.0, "mean")
        windows = [matrix / matrix.sum(axis=1, keepdims=True) for matrix in _windows(layer, call)]
        return Constant(math.prod(map(spectral_norm, windows)), "mean of windows")


if _ADAPTIVE_MAXIMA:

    @lipschitz_rule(*_ADAPTIVE_MAXIMA)
    def _adaptive_maximum(layer, call):
        if call.norm == "inf":
            return Constant(1.0, "maximum")
        covered = math.prod(int(matrix.sum(axis=0).max()) for matrix in _windows(layer, call))
        return Constant(covered**0.5, f"windows overlap {covered} times")


def _windows(layer, call):
    """For each axis, which inputs each output sees: a matrix of zeros and ones."""
    before = _spatial(layer, call.input_shapes[0])
    after = _spatial(layer, call.output_shape)
    check_known(layer, before, after)
    for size, outputs in zip(before, after):
        matrix = np.zeros((outputs, size))
        for index in range(outputs):
            matrix[index, index * size // outputs : -(-(index + 1) * size // outputs)] = 1
        yield matrix
