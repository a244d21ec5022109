"""How the kernel of a Keras layer is read as the matrices of the paper."""

import math
from typing import Any, Literal

from keras import ops

from keras_parseval._validation import check_integer, check_scale

Scale = float | Literal["auto"]
Groups = int | Literal["depthwise"]


class KernelLayout:
    """Turns a kernel into matrices with one column for each output unit, and back.

    A Dense kernel has shape `(inputs, outputs)`, a convolution's
    `(*spatial, inputs, outputs)`. The paper's matrix has a row for each output,
    and the inputs under every spatial tap along it. Here it is transposed, as
    Keras stores it: singular values are the same, and reading and writing a kernel
    moves nothing in memory. Grouped and depthwise convolutions hold
    one such matrix for each group, and are read as a batch.

    Args:
        scale: The singular value that every matrix should have: a positive
            number, or `"auto"`, which is 1 for a matrix and `prod(spatial)**-0.5`
            for a convolution, whose unfolding repeats each input `prod(spatial)`
            times. A convolution with strides repeats it only
            `prod(ceil(kernel_size / strides))` times: that number to the power of
            -0.5 may be given here instead.
        groups: The `groups` argument of the convolution, or `"depthwise"`
            for the kernel of a depthwise convolution, where each input channel
            is a group of its own. The shape of a kernel does not tell.
        output_axis: -1, or -2 for transposed convolutions, whose kernels are
            stored as `(*spatial, outputs, inputs)`.
    """

    def __init__(self, scale: Scale = "auto", groups: Groups = 1, output_axis: int = -1):
        self.scale: Scale = _check_scale(scale)
        self.groups: Groups = _check_groups(groups)
        self.output_axis = _check_output_axis(output_axis, groups)

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale, "groups": self.groups, "output_axis": self.output_axis}

    def target(self, shape: tuple[int, ...]) -> float:
        """The singular value aimed at, for a kernel of this shape."""
        if self.scale == "auto":
            return math.prod(shape[:-2]) ** -0.5
        return self.scale

    def matrices_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the matrices: `(inputs, outputs)`, after the groups if there are any."""
        self._check_shape(shape)
        if self.groups == "depthwise":
            return (shape[-2], math.prod(shape[:-2]), shape[-1])
        outputs = shape[self.output_axis]
        matrix = (math.prod(shape) // outputs, outputs // self.groups)
        return matrix if self.groups == 1 else (self.groups, *matrix)

    def to_matrices(self, kernel: Any) -> Any:
        """Kernel to matrices."""
        *groups, inputs, outputs = self.matrices_shape(tuple(kernel.shape))
        outputs_last = ops.moveaxis(kernel, self.output_axis, -1)
        matrices = ops.reshape(outputs_last, (inputs, *groups, outputs))
        return ops.moveaxis(matrices, 1, 0) if groups else matrices

    def to_kernel(self, matrices: Any, shape: tuple[int, ...]) -> Any:
        """Matrices back to a kernel of the given shape."""
        matrices = ops.moveaxis(matrices, 0, 1) if len(matrices.shape) == 3 else matrices
        others = list(shape)
        outputs = others.pop(self.output_axis)
        return ops.moveaxis(ops.reshape(matrices, (*others, outputs)), -1, self.output_axis)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        depthwise = self.groups == "depthwise"
        if len(shape) < (3 if depthwise else 2):
            raise ValueError(
                f"A kernel must have rank {3 if depthwise else 2} or more to be read as "
                f"{'one matrix for each input channel' if depthwise else 'a matrix'}; biases and "
                f"other vectors cannot be tight frames. Received: shape={shape}"
            )
        if 0 in shape:
            raise ValueError(f"A kernel must not be empty. Received: shape={shape}")
        if self.groups != "depthwise" and shape[self.output_axis] % self.groups:
            raise ValueError(
                f"`groups` must divide the {shape[self.output_axis]} outputs of the kernel, on "
                f"axis {self.output_axis}; for the kernel of a depthwise convolution pass "
                f'groups="depthwise". Received: groups={self.groups}, shape={shape}'
            )


class HasLayout:
    """For objects that read a kernel: lets them have the arguments of their layout."""

    layout: KernelLayout

    @property
    def scale(self) -> Scale:
        """The singular value to aim at, or `"auto"`."""
        return self.layout.scale

    @property
    def groups(self) -> Groups:
        """The groups of the convolution, or `"depthwise"`."""
        return self.layout.groups

    @property
    def output_axis(self) -> int:
        """The axis of the outputs."""
        return self.layout.output_axis


def _check_scale(scale: Any) -> Scale:
    if not isinstance(scale, str):
        return check_scale(scale)
    if scale != "auto":
        raise ValueError(f'`scale` must be "auto" or a positive number. Received: scale={scale!r}')
    return "auto"


def _check_groups(groups: Any) -> Groups:
    if isinstance(groups, str):
        if groups != "depthwise":
            raise ValueError(
                f'`groups` must be a positive integer or "depthwise". Received: groups={groups!r}'
            )
        return "depthwise"
    return check_integer(
        "groups", groups, 'a positive integer or "depthwise"', lambda value: value > 0
    )


def _check_output_axis(output_axis: Any, groups: Groups) -> int:
    output_axis = check_integer(
        "output_axis",
        output_axis,
        "-1, or -2 for the kernel of a transposed convolution",
        lambda value: value in (-1, -2),
    )
    if groups == "depthwise" and output_axis != -1:
        raise ValueError(
            "`output_axis` must be -1 for a depthwise kernel, which is stored as "
            f"`(*spatial, inputs, multiplier)`. Received: output_axis={output_axis}"
        )
    return output_axis
