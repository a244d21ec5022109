"""Which kernels a Keras layer has, how each is read as matrices, and how it is constrained."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import keras

from keras_parseval._kernel_layout import KernelLayout
from keras_parseval._lending import give
from keras_parseval.constraints import ParsevalTightFrame

_LAYERS = keras.layers
CONVOLUTIONS = (_LAYERS.Conv1D, _LAYERS.Conv2D, _LAYERS.Conv3D)
TRANSPOSED = (_LAYERS.Conv1DTranspose, _LAYERS.Conv2DTranspose, _LAYERS.Conv3DTranspose)
DEPTHWISE = (_LAYERS.DepthwiseConv1D, _LAYERS.DepthwiseConv2D)
SEPARABLE = (_LAYERS.SeparableConv1D, _LAYERS.SeparableConv2D)


@dataclasses.dataclass(frozen=True)
class LayerKernel:
    """One kernel of a layer.

    Args:
        layer: The layer.
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


def layer_kernels(layer: Any) -> list[LayerKernel]:
    """The kernels of a layer; none for a layer whose weights are not read as matrices.

    Args:
        layer: A Keras layer, built or not.

    Returns:
        List of `LayerKernel`.
    """
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
        # Read as the convolution that it transposes. Read by its own outputs (`output_axis=-2`),
        # the kernel would have to be smaller: there, strides do not make inputs meet less often.
        layout = KernelLayout(_scale(layer))
    elif isinstance(layer, keras.layers.Dense) or _is_matrix_product(layer):
        layout = KernelLayout()
    else:
        return []
    return [LayerKernel(layer, "kernel", "kernel", layout)]


def is_parseval(kernel: LayerKernel) -> bool:
    """Whether a kernel is kept tight by the constraint."""
    return isinstance(kernel.constraint, ParsevalTightFrame)


def constrain_kernel(kernel: LayerKernel, **options: Any) -> None:
    """Put a `kp.ParsevalTightFrame` on a kernel of a layer that was made here, and is not built.

    Args:
        kernel: The kernel.
        **options: Arguments of `kp.ParsevalTightFrame`, without those of the layout.
    """
    constraint = ParsevalTightFrame(**options, **kernel.layout.get_config())
    give(kernel.layer, **{f"{kernel.prefix}_constraint": constraint})


def check_rows_fit(rows: float | int, kernels: Iterable[LayerKernel]) -> None:
    """Refuse a count of rows that would fail for one of the kernels in the first training step.

    Args:
        rows: The argument of `kp.ParsevalTightFrame`.
        kernels: Kernels of layers that are built.
    """
    for kernel in kernels if not isinstance(rows, float) else ():
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


def _is_matrix_product(layer: Any) -> bool:
    """Whether the layer is an EinsumDense that multiplies by a matrix, along one axis."""
    if not isinstance(layer, keras.layers.EinsumDense):
        return False
    terms, outputs = layer.equation.replace(" ", "").split("->")
    inputs, kernel = terms.split(",")
    if len(kernel) != 2:
        return False
    contracted = [name for name in kernel if name in inputs and name not in outputs]
    produced = [name for name in kernel if name in outputs and name not in inputs]
    return len(contracted) == len(produced) == 1
