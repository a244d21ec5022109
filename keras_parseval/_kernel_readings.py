"""Whether a constraint reads a kernel as its layer computes with it."""

from typing import Literal

import keras

from keras_parseval._convolution_layout import ConvolutionLayout
from keras_parseval._kernel_layout import AXES, KernelLayout
from keras_parseval._layer_kernels import LayerKernel, is_parseval

# How convolutions are read: as flattened kernels, or as operators.
Convolutions = Literal["kernel", "operator"]
CONVOLUTION_READINGS: tuple[Convolutions | None, ...] = ("kernel", "operator", None)


def layout_in_use(
    kernel: LayerKernel, convolutions: Convolutions | None = None
) -> KernelLayout | ConvolutionLayout:
    """How a kernel is read: as its constraint says, unless that is a mistake.

    Args:
        kernel: The kernel.
        convolutions: How the kernels of convolutions are read, if not as the constraint says.
    """
    if convolutions == "operator" or (_aims_at_operator(kernel) and convolutions is None):
        own: KernelLayout | ConvolutionLayout = kernel.operator or kernel.layout
    else:
        own = kernel.layout
    told = kernel.constraint.layout if is_parseval(kernel) and not misreading(kernel) else own
    return told if type(told) is type(own) else own


def misreading(kernel: LayerKernel) -> str:
    """What the constraint of a kernel should have been told, or an empty string if all is well.

    A constraint sees the kernel alone, and takes it for that of a Dense layer or a plain
    convolution unless it is told otherwise. Readings that are finer than the layer's, such as each
    head by itself, are a choice and not a mistake; so is a transposed convolution's either way.
    """
    if not is_parseval(kernel):
        return ""
    if _aims_at_operator(kernel):
        return _misread_operator(kernel)
    told, own = kernel.constraint.layout, kernel.layout
    shape = tuple(kernel.variable.shape)
    read, computed = told.roles(shape), own.roles(shape)
    if isinstance(kernel.layer, (keras.layers.Dense, keras.layers.EinsumDense)):
        taps = "." in read and told.scale == "auto"
        if not taps and _is_as_fine(read, computed):
            return ""
        several = ", or `heads` if it is one of an attention layer" if len(shape) > 2 else ""
        return f"axes={own.axes!r}{several}"
    if told.axes == AXES and told.groups != own.groups:
        return f"groups={own.groups!r}"
    return ""


def _aims_at_operator(kernel: LayerKernel) -> bool:
    return is_parseval(kernel) and isinstance(kernel.constraint.layout, ConvolutionLayout)


def _misread_operator(kernel: LayerKernel) -> str:
    told, own = kernel.constraint.layout, kernel.operator
    shape = tuple(kernel.variable.shape)
    if own is None:
        # A kernel of one tap is the same matrix for both constraints.
        right = type(kernel) is not LayerKernel or kernel.prefix == "pointwise"
        return "" if right else "kp.ParsevalTightFrame in its place"
    if told.groups != own.groups:
        return f"groups={own.groups}"
    if told.steps_along(shape) != own.steps_along(shape):
        return f"strides={own.strides}"
    return ""


def _is_as_fine(read: str, computed: str) -> bool:
    """Whether no matrix, as it is read, holds parts of several matrices or mixes their sides."""
    inputs = {role for role, letter in zip(computed, read) if letter in ".i"}
    outputs = {role for role, letter in zip(computed, read) if letter == "o"}
    return "g" not in inputs | outputs and not {"i", "o"} <= inputs and not {"i", "o"} <= outputs
