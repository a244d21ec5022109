"""Lipschitz rules for layers with kernels: products with matrices, and convolutions."""

import math

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled, input_gradient
from keras_parseval._layer_kernels import (
    CONVOLUTIONS,
    DEPTHWISE,
    SEPARABLE,
    TRANSPOSED,
    layer_kernels,
    overlaps,
)
from keras_parseval._precision import finite_float64
from keras_parseval.analysis._activation_slopes import activation_constant
from keras_parseval.analysis._grid_norm import grid_norm
from keras_parseval.analysis._operator_norms import dilate, estimate_norm, spectral_norm
from keras_parseval.analysis._rules import Constant, lipschitz_rule

# A convolution with at most so many entries as a matrix is decomposed as a matrix.
_SMALL = 2**20


def _values(variable):
    return finite_float64(variable, getattr(variable, "path", "a kernel"))


def _with_activation(layer, call, bound, rule, estimate=None):
    activation = activation_constant(layer, call)
    if activation.rule != "linear":
        rule = f"{rule}, {activation.rule}"
    slope = activation.bound
    return Constant(bound * slope, rule, None if estimate is None else estimate * slope)


@lipschitz_rule(keras.layers.Dense)
def _dense(layer, call):
    kernel = _values(layer.kernel)
    bound = np.abs(kernel).sum(axis=0).max() if call.norm == "inf" else spectral_norm(kernel)
    return _with_activation(layer, call, bound, "norm of the matrix")


@lipschitz_rule(keras.layers.EinsumDense)
def _einsum_dense(layer, call):
    matrices = _einsum_matrices(layer)
    bound = np.abs(matrices).sum(axis=-2).max() if call.norm == "inf" else spectral_norm(matrices)
    return _with_activation(layer, call, bound, "norm of the matrix")


def _einsum_matrices(layer):
    """The kernel as matrices `(shared, contracted, produced)`, by the roles of its axes."""
    terms, outputs = layer.equation.replace(" ", "").replace("...", "").split("->")
    inputs, names = terms.split(",")
    roles: dict[str, list[int]] = {"shared": [], "contracted": [], "produced": []}
    for axis, name in enumerate(names):
        role = "produced" if name not in inputs else "shared" if name in outputs else "contracted"
        roles[role].append(axis)
    if set(inputs) - set(names) - set(outputs) or len(set(names)) < len(names):
        raise ValueError(
            "The Lipschitz constant of an `EinsumDense` is known where every axis of the input is "
            "kept or multiplied by the kernel; write the sum as a layer of its own. "
            f"Received: layer '{layer.name}' with equation={layer.equation!r}"
        )
    kernel = _values(layer.kernel)
    sizes = [math.prod(kernel.shape[axis] for axis in axes) for axes in roles.values()]
    order = [axis for axes in roles.values() for axis in axes]
    return kernel.transpose(order).reshape(sizes)


@lipschitz_rule(*CONVOLUTIONS, *TRANSPOSED, *DEPTHWISE, *SEPARABLE)
def _convolution(layer, call):
    if call.norm == "inf":
        bound, rule = _closed_inf_norm(layer), "largest 1-norm of a row"
    else:
        bound, rule = _closed_norm(layer), "sqrt(overlaps) x norm of the kernel"
    if call.method == "paper":
        return _with_activation(layer, call, bound, rule)
    known = None not in call.input_shapes[0] and None not in call.output_shape
    if call.norm == "inf":
        in_place = _LinearPart(layer, call).inf_norm() if known else math.inf
        if in_place < bound:
            bound, rule = in_place, f"{rule}, in place"
        return _with_activation(layer, call, bound, rule)
    if known and math.prod(call.input_shapes[0]) * math.prod(call.output_shape) <= _SMALL:
        bound, rule = min(bound, _LinearPart(layer, call).exact_norm()), "norm of the operator"
        return _with_activation(layer, call, bound, rule)
    if overlaps(layer) > 1:  # otherwise, the paper's bound is the norm
        grid, on_torus = _grid_bound(layer, call)
        if grid < bound:
            bound = grid
            rule = "norm on " + ("the image's torus" if on_torus else "a grid of frequencies")
    estimate = None
    if known and call.estimate:
        estimate = min(bound, _LinearPart(layer, call).estimated_norm())
    return _with_activation(layer, call, bound, rule, estimate)


def _closed_norm(layer):
    """The paper's bound: each input is repeated by as many windows as cover it."""
    norms = [spectral_norm(_matrices(kernel)) for kernel in layer_kernels(layer)]
    bound = math.sqrt(overlaps(layer)) * math.prod(norms)
    if isinstance(layer, TRANSPOSED):
        # The same from the side of the output, where strides do not help.
        kernel = np.moveaxis(_values(layer.kernel), -2, -1)
        matrix = kernel.reshape(-1, kernel.shape[-1])
        bound = min(bound, math.sqrt(math.prod(layer.kernel_size)) * spectral_norm(matrix))
    return bound


def _matrices(kernel):
    return ops.convert_to_numpy(kernel.layout.to_matrices(_values(kernel.variable)))


def _closed_inf_norm(layer):
    """The largest sum of absolute weights that meet in one output."""
    if not isinstance(layer, TRANSPOSED):
        kernels = [_matrices(kernel) for kernel in layer_kernels(layer)]
        return math.prod(np.abs(kernel).sum(axis=-2).max() for kernel in kernels)
    # Taps that are not a whole stride apart never meet.
    kernel = dilate(np.abs(_values(layer.kernel)).sum(axis=-1, keepdims=True), layer.dilation_rate)
    phases = np.ndindex(*layer.strides)
    axes = tuple(range(len(layer.strides)))
    return max(
        kernel[tuple(slice(p, None, s) for p, s in zip(phase, layer.strides))].sum(axis=axes).max()
        for phase in phases
    )


def _grid_bound(layer, call):
    """A bound of the 2-norm by frequencies, and whether it is that of the image's torus."""
    bound, tori = 1.0, True
    rank = len(layer.kernel_size)
    strides = np.broadcast_to(layer.strides, rank).tolist()
    dilation = np.broadcast_to(layer.dilation_rate, rank).tolist()
    for kernel in layer_kernels(layer):
        values = _values(kernel.variable)
        if kernel.prefix == "pointwise":
            bound *= spectral_norm(values.reshape(values.shape[-2:]))
            continue
        if max(strides) > 1:
            # Taps that a dilation moves apart may fall on other phases of the input.
            values, dilation = dilate(values, dilation), [1] * rank
        norm, on_torus = grid_norm(
            _groups(values, kernel.layout), strides, _torus_sizes(layer, call, dilation)
        )
        bound, tori = bound * norm, tori and on_torus
    return bound, tori


def _torus_sizes(layer, call, dilation):
    """The least torus with room for the image and its padding; `None` for an unknown size."""
    # A transposed convolution is the transpose of a convolution of its output.
    transposed = isinstance(layer, TRANSPOSED)
    shape = call.output_shape if transposed else call.input_shapes[0]
    spatial = shape[1:] if layer.data_format == "channels_first" else shape[:-1]
    if None in spatial:
        return None
    windows = [(size - 1) * rate + 1 for size, rate in zip(layer.kernel_size, layer.dilation_rate)]
    # The longer end of the padding: that of the next turn around the torus may be the same zeros.
    longer = [window - 1 for window in windows]
    if not transposed and layer.padding != "causal":
        longer = [window // 2 if layer.padding == "same" else 0 for window in windows]
    # With dilation the pixels fall into several images, each of them with a torus of its own.
    return [math.ceil((size + end) / rate) for size, end, rate in zip(spatial, longer, dilation)]


def _groups(kernel, layout):
    """The kernels of a grouped convolution, as independent ones along a first axis."""
    if layout.groups == "depthwise":
        return np.stack(np.split(kernel, kernel.shape[-2], axis=-2))
    return np.stack(np.split(kernel, layout.groups, axis=-1))


class _LinearPart:
    """A convolution without bias and activation, in single precision, at its real input size."""

    def __init__(self, layer, call):
        self.shape = call.input_shapes[0]
        config = layer.get_config()
        config |= {"use_bias": False, "activation": None, "dtype": "float32"}
        config |= {name: None for name in config if name.endswith(("_constraint", "_regularizer"))}
        config.pop("lora_rank", None)
        self.layer = type(layer).from_config(config)
        self.layer.build((None, *self.shape))
        for mine, original in zip(layer_kernels(self.layer), layer_kernels(layer)):
            mine.variable.assign(original.variable)

    def forward(self, vectors):
        return ops.convert_to_numpy(self.layer(self._batch(vectors)))

    def square(self, vector):
        """The operator, and then its transpose."""
        return ops.convert_to_numpy(
            call_compiled(self.layer, "square", _square, self._batch(vector))
        )

    def _batch(self, vectors):
        return np.reshape(vectors, (-1, *self.shape)).astype("float32")

    def exact_norm(self):
        size = math.prod(self.shape)
        return spectral_norm(self.forward(np.eye(size)).reshape(size, -1).astype("float64"))

    def estimated_norm(self):
        return estimate_norm(self.square, self.shape)

    def inf_norm(self):
        for kernel in layer_kernels(self.layer):
            kernel.variable.assign(ops.abs(kernel.variable))
        # A little more, for what a long sum loses in single precision.
        return float(self.forward(np.ones(self.shape)).max()) * (1 + 1e-5)


def _square(layer, vector):
    # The gradient of half of ||A x||^2 is A^T A x.
    product, _ = input_gradient(lambda x: (0.5 * ops.sum(ops.square(layer(x))), ()), vector)
    return product
