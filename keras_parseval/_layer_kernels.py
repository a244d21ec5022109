"""Which kernels a Keras layer has, how each is read as matrices, and how it is constrained."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import keras

from keras_parseval._convolution_layout import ConvolutionLayout
from keras_parseval._keras_internals import layers_by_path
from keras_parseval._kernel_layout import KernelLayout
from keras_parseval._lending import give
from keras_parseval._validation import Rows
from keras_parseval.constraints import ParsevalConvolution, ParsevalTightFrame

_LAYERS = keras.layers
CONVOLUTIONS = (_LAYERS.Conv1D, _LAYERS.Conv2D, _LAYERS.Conv3D)
TRANSPOSED = (_LAYERS.Conv1DTranspose, _LAYERS.Conv2DTranspose, _LAYERS.Conv3DTranspose)
DEPTHWISE = (_LAYERS.DepthwiseConv1D, _LAYERS.DepthwiseConv2D)
SEPARABLE = (_LAYERS.SeparableConv1D, _LAYERS.SeparableConv2D)
ATTENTION = (_LAYERS.MultiHeadAttention, _LAYERS.GroupQueryAttention)
_GATES = {_LAYERS.SimpleRNNCell: 1, _LAYERS.GRUCell: 3, _LAYERS.LSTMCell: 4}


@dataclasses.dataclass(frozen=True)
class LayerKernel:
    """One kernel of a layer.

    Args:
        layer: The layer; the cell, for a recurrent layer.
        attribute: The attribute of the layer that holds the kernel.
        prefix: What the layer's arguments for it begin with, as in `{prefix}_constraint`.
        layout: How the kernel is read as matrices, and the singular value that makes the
            layer 1-Lipschitz, its strides considered.
    """

    layer: Any
    attribute: str
    prefix: str
    layout: KernelLayout

    @property
    def variable(self) -> Any:
        """The kernel itself; the layer must be built."""
        return getattr(self.layer, self.attribute)

    @property
    def constraint(self) -> Any:
        """What constrains the kernel, or `None`."""
        return getattr(self.layer, f"{self.prefix}_constraint")

    @property
    def operator(self) -> ConvolutionLayout | None:
        """How the kernel is read as a convolution; `None` if it is not one, or depthwise."""
        if isinstance(self.layer, CONVOLUTIONS):
            layout = ConvolutionLayout(self.layer.strides, self.layer.groups)
        elif isinstance(self.layer, TRANSPOSED):
            layout = ConvolutionLayout(self.layer.strides)
        else:
            return None
        depthwise = self.layer.built and layout.is_only_shifts(tuple(self.variable.shape))
        return None if depthwise else layout


def layer_kernels(layer: Any) -> list[LayerKernel]:
    """The kernels of a layer; none for a layer whose weights are not read as matrices.

    Args:
        layer: A Keras layer, built or not.

    Returns:
        List of `LayerKernel`.
    """
    if isinstance(layer, keras.layers.RNN):
        return layer_kernels(layer.cell)
    if isinstance(layer, (*_GATES, _convolutional_cell())):
        return _recurrent_kernels(layer)
    if isinstance(layer, SEPARABLE):
        depthwise = KernelLayout(_scale(layer), groups="depthwise")
        return [
            LayerKernel(layer, "depthwise_kernel", "depthwise", depthwise),
            LayerKernel(layer, "pointwise_kernel", "pointwise", KernelLayout()),
        ]
    if isinstance(layer, DEPTHWISE):
        layout = KernelLayout(_scale(layer), groups="depthwise")
        return [LayerKernel(layer, "kernel", "depthwise", layout)]
    if isinstance(layer, CONVOLUTIONS):
        layout = KernelLayout(_scale(layer), groups=layer.groups)
    elif isinstance(layer, TRANSPOSED):
        # Read as the convolution that it transposes. Read by its own outputs (axes="...oi"),
        # the kernel would have to be smaller: there, strides do not make inputs meet less often.
        layout = KernelLayout(_scale(layer))
    elif isinstance(layer, keras.layers.Dense):
        layout = KernelLayout()
    elif isinstance(layer, keras.layers.EinsumDense) and (axes := _einsum_axes(layer)):
        layout = KernelLayout(axes=axes)
    else:
        return []
    return [LayerKernel(layer, "kernel", "kernel", layout)]


def kernels_inside(layer: Any) -> dict[str, LayerKernel]:
    """The kernels of a layer, and of the layers that an attention layer or wrapper is made of.

    Args:
        layer: A Keras layer. An attention layer must be built, to have any.

    Returns:
        Dictionary of `LayerKernel`, by the names that lead to them, such as `"query/kernel"`.
    """
    kernels = {kernel.attribute: kernel for kernel in layer_kernels(layer)}
    for part in _parts(layer):
        inside = kernels_inside(part)
        kernels |= {f"{part.name}/{name}": kernel for name, kernel in inside.items()}
    return kernels


def attention_layout(layer: Any) -> KernelLayout | None:
    """How all kernels of a built attention layer are read at once, by their shapes.

    Keras gives them one constraint. `None` if the shapes do not tell which are the kernels that
    make the heads, and which is the one that takes them.
    """
    kernels = kernels_inside(layer).values()
    shapes = [tuple(kernel.variable.shape) for kernel in kernels]
    roles = [kernel.layout.roles(shape) for kernel, shape in zip(kernels, shapes)]
    heads = sorted({shape[1:] for shape, role in zip(shapes, roles) if role == "ioo"})
    if not heads:
        return None
    layout = KernelLayout(heads=heads if len(heads) > 1 else heads[0])
    try:
        told_apart = roles == [layout.roles(shape) for shape in shapes]
    except ValueError:
        return None
    return layout if told_apart else None


def is_parseval(kernel: LayerKernel) -> bool:
    """Whether a kernel is kept tight by one of the constraints."""
    return isinstance(kernel.constraint, (ParsevalTightFrame, ParsevalConvolution))


def constrain_kernel(kernel: LayerKernel, by: type, **options: Any) -> None:
    """Put a constraint on a kernel of a layer that was made here, and is not built.

    Args:
        kernel: The kernel.
        by: The class of the constraint, `ParsevalTightFrame` or `ParsevalConvolution`.
        **options: Arguments of `kp.ParsevalTightFrame`, without those of the layout.
    """
    if by is ParsevalConvolution and kernel.operator:
        strength = {name: options[name] for name in ("beta",) if name in options}
        constraint: Any = ParsevalConvolution(**strength, **kernel.operator.get_config())
    else:
        constraint = ParsevalTightFrame(**options, **kernel.layout.get_config())
    give(kernel.layer, **{f"{kernel.prefix}_constraint": constraint})


def check_strength(beta: float | None, rows: Rows, unbiased: bool) -> dict[str, Any]:
    """Arguments of `kp.ParsevalTightFrame`, of which `beta` is left out if it is `None`."""
    options: dict[str, Any] = {"rows": rows, "unbiased": unbiased}
    if beta is not None:
        options["beta"] = beta
    ParsevalTightFrame(**options)
    return options


def check_rows_fit(rows: Rows, kernels: Iterable[LayerKernel]) -> None:
    """Refuse a count of rows that would fail for one of the kernels in the first training step.

    Args:
        rows: The argument of `kp.ParsevalTightFrame`.
        kernels: Kernels of layers that are built.
    """
    if isinstance(rows, (float, str)):
        return
    for kernel in kernels:
        units = min(kernel.layout.matrices_shape(tuple(kernel.variable.shape))[-2:])
        if rows > units:
            raise ValueError(
                "`rows` must not exceed the units of any kernel (or of one of its groups); give a "
                f"fraction, which adapts to each. Received: rows={rows}, and the layer "
                f"'{kernel.layer.name}' with {units} units"
            )


def overlaps(layer: Any) -> int:
    """How many windows of a convolution or pooling cover one input, at most.

    Args:
        layer: The layer, with `kernel_size` or `pool_size`, and `strides`.
    """
    sizes = layer.kernel_size if hasattr(layer, "kernel_size") else layer.pool_size
    dilations = getattr(layer, "dilation_rate", 1)
    rank = len(sizes)
    return math.prod(
        # Taps `dilation` apart meet an input again only when they are a whole stride apart.
        math.ceil(size * math.gcd(stride, dilation) / stride)
        for size, stride, dilation in zip(
            sizes, _for_each_axis(layer.strides, rank), _for_each_axis(dilations, rank)
        )
    )


def _for_each_axis(value: Any, rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _scale(layer: Any) -> Any:
    """The singular value that makes a convolution 1-Lipschitz."""
    covered = overlaps(layer)
    return "auto" if covered == math.prod(layer.kernel_size) else covered**-0.5


def _einsum_axes(layer: Any) -> str:
    """What the axes of an EinsumDense kernel are; empty if it is no product with matrices."""
    terms, outputs = layer.equation.replace(" ", "").replace("...", "").split("->")
    inputs, kernel = terms.split(",")
    roles = {(True, False): "i", (False, True): "o", (True, True): "g"}
    axes = "".join(roles.get((name in inputs, name in outputs), "?") for name in kernel)
    # An axis of the input that is summed without a weight would repeat the matrix along it.
    summed = set(inputs) - set(kernel) - set(outputs)
    product = {"i", "o"} <= set(axes) and "?" not in axes
    return axes if product and not summed and len(set(kernel)) == len(kernel) else ""


def _recurrent_kernels(cell: Any) -> list[LayerKernel]:
    """The kernels of a recurrent cell, with a matrix for each gate."""
    gates = next((gates for kind, gates in _GATES.items() if isinstance(cell, kind)), 4)
    scale: Any = _scale(cell) if isinstance(cell, _convolutional_cell()) else "auto"
    return [
        LayerKernel(cell, "kernel", "kernel", KernelLayout(scale, groups=gates)),
        LayerKernel(cell, "recurrent_kernel", "recurrent", KernelLayout(groups=gates)),
    ]


@functools.cache
def _convolutional_cell() -> type:
    """The class of the cells of ConvLSTM layers, which Keras does not export."""
    return type(keras.layers.ConvLSTM1D(1, 1).cell)


def _parts(layer: Any) -> list[Any]:
    """The layers that a layer is made of, if they come back when it is saved and loaded."""
    if isinstance(layer, ATTENTION):
        inside = [part for _, part in layers_by_path(layer)]
        return [part for part in inside if isinstance(part, keras.layers.EinsumDense)]
    if isinstance(layer, keras.layers.Bidirectional):
        return [layer.forward_layer, layer.backward_layer]
    if isinstance(layer, keras.layers.RNN):
        return list(getattr(layer.cell, "cells", []))
    if isinstance(layer, keras.layers.TimeDistributed) and layer_kernels(layer.layer):
        return [layer.layer]
    return []
