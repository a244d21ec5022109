"""Whether a constraint reads a kernel as its layer computes with it."""

import keras

from keras_parseval._kernel_layout import AXES, KernelLayout
from keras_parseval._layer_kernels import LayerKernel, is_parseval


def layout_in_use(kernel: LayerKernel) -> KernelLayout:
    """How a kernel is read: as its constraint says, unless that is a mistake."""
    if is_parseval(kernel) and not misreading(kernel):
        return kernel.constraint.layout
    return kernel.layout


def misreading(kernel: LayerKernel) -> str:
    """What the constraint of a kernel should have been told, or an empty string if all is well.

    A constraint sees the kernel alone, and takes it for that of a Dense layer or a plain
    convolution unless it is told otherwise. Readings that are finer than the layer's, such as each
    head by itself, are a choice and not a mistake; so is a transposed convolution's either way.
    """
    if not is_parseval(kernel):
        return ""
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


def _is_as_fine(read: str, computed: str) -> bool:
    """Whether no matrix, as it is read, holds parts of several matrices or mixes their sides."""
    inputs = {role for role, letter in zip(computed, read) if letter in ".i"}
    outputs = {role for role, letter in zip(computed, read) if letter == "o"}
    return "g" not in inputs | outputs and not {"i", "o"} <= inputs and not {"i", "o"} <= outputs
