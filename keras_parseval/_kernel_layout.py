"""How the kernel of a Keras layer is read as the matrices of the paper."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from keras import ops

from keras_parseval._validation import check_integer, check_scale

Scale = float | Literal["auto"]
Groups = int | Literal["depthwise"]
Heads = Sequence[int] | Sequence[Sequence[int]] | None

# How Keras stores the kernels of Dense layers and convolutions, and of depthwise ones.
AXES = "...io"
_DEPTHWISE_AXES = "...go"


class KernelLayout:
    """Turns a kernel into matrices with one column for each output unit, and back.

    A Dense kernel has shape `(inputs, outputs)`, a convolution's
    `(*spatial, inputs, outputs)`. The paper's matrix has a row for each output,
    and the inputs under every spatial tap along it. Here it is transposed, as
    Keras stores it: singular values are the same, and reading and writing a kernel
    moves nothing in memory. Kernels that hold several matrices, such as those of grouped
    convolutions and the gates of an LSTM, are read as a batch.

    Args:
        scale: The singular value that every matrix should have: a positive
            number, or `"auto"`, which is 1 for a matrix and `prod(spatial)**-0.5`
            for a convolution, whose unfolding repeats each input `prod(spatial)`
            times. A convolution with strides repeats it only
            `prod(ceil(kernel_size / strides))` times: that number to the power of
            -0.5 may be given here instead.
        groups: Into how many matrices the outputs are split, each with all the inputs that the
            kernel holds: the `groups` argument of a convolution, the gates of a recurrent
            layer. Or `"depthwise"` for the kernel of a depthwise convolution, where each input
            channel is a group of its own. The shape of a kernel does not tell.
        axes: A letter for each axis of the kernel: `i` for inputs, `o` for outputs, `g` for
            groups, that is, a matrix of its own at each index; and `...` for the taps of a
            convolution, where there are any.
        heads: The number of attention heads and the size of one, if the kernel is one of those of
            an attention layer, which share their arguments: `(inputs, *heads)` or
            `(*heads, outputs)`. The shape tells which of the two it is. Several such pairs, where
            keys and values, or their number, differ.
    """

    def __init__(
        self,
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = AXES,
        heads: Heads = None,
    ):
        self.scale: Scale = _check_scale(scale)
        self.groups: Groups = _check_groups(groups)
        self.axes = _check_axes(axes)
        self.heads = _check_heads(heads)
        if self.axes != AXES and (self.groups == "depthwise" or self.heads is not None):
            raise ValueError(
                '`groups="depthwise"` and `heads` stand for axes of their own; leave `axes` '
                f"out. Received: axes={axes!r}, groups={groups!r}, heads={heads!r}"
            )
        if self.groups != 1 and self.heads is not None:
            raise ValueError(
                "`groups` must be 1 for the kernels of attention layers. "
                f"Received: groups={groups!r}, heads={heads!r}"
            )

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("scale", "groups", "axes", "heads")}

    def roles(self, shape: tuple[int, ...]) -> str:
        """One of `i`, `o`, `g` for each axis of a kernel of this shape, and `.` for a tap."""
        if self.heads is not None:
            return self._roles_in_attention(shape)
        axes = _DEPTHWISE_AXES if self.groups == "depthwise" else self.axes
        letters = axes.replace("...", "")
        taps = len(shape) - len(letters)
        _check_rank(shape, axes, taps)
        return axes.replace("...", "." * taps)

    def target(self, shape: tuple[int, ...]) -> float:
        """The singular value aimed at, for a kernel of this shape."""
        if self.scale == "auto":
            return math.prod(_sizes(shape, self.roles(shape), ".")) ** -0.5
        return self.scale

    def matrices_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the matrices: `(inputs, outputs)`, after their number if there are more."""
        _check_not_empty(shape)
        batch, groups, inputs, outputs = self._split(shape)
        if groups == 1 and "g" not in self.roles(shape):
            return (inputs, outputs)
        return (batch * groups, inputs, outputs)

    def to_matrices(self, kernel: Any) -> Any:
        """Kernel to matrices."""
        shape = tuple(kernel.shape)
        matrices_shape = self.matrices_shape(shape)
        matrices = _transpose(kernel, self._order(shape))
        batch, groups, inputs, outputs = self._split(shape)
        if groups > 1:
            matrices = ops.reshape(matrices, (batch, inputs, groups, outputs))
            matrices = ops.swapaxes(matrices, 1, 2)
        return ops.reshape(matrices, matrices_shape)

    def to_kernel(self, matrices: Any, shape: tuple[int, ...]) -> Any:
        """Matrices back to a kernel of the given shape."""
        batch, groups, inputs, outputs = self._split(shape)
        if groups > 1:
            matrices = ops.reshape(matrices, (batch, groups, inputs, outputs))
            matrices = ops.swapaxes(matrices, 1, 2)
        order = self._order(shape)
        kernel = ops.reshape(matrices, [shape[axis] for axis in order])
        return _transpose(kernel, [order.index(axis) for axis in range(len(shape))])

    def relative_matrices(self, kernel: Any) -> np.ndarray:
        """The matrices in double precision, divided by the target: 1 is the value aimed at."""
        matrices = ops.convert_to_numpy(self.to_matrices(kernel)).astype("float64")
        return matrices / self.target(tuple(kernel.shape))

    def _order(self, shape: tuple[int, ...]) -> list[int]:
        """The axes of the kernel, groups first and outputs last."""
        place = {"g": 0, ".": 1, "i": 1, "o": 2}
        roles = self.roles(shape)
        return sorted(range(len(shape)), key=lambda axis: place[roles[axis]])

    def _split(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """The sizes of the group axes, the groups of outputs, and the sides of one matrix."""
        roles = self.roles(shape)
        batch, inputs, outputs = (
            math.prod(_sizes(shape, roles, each)) for each in ("g", ".i", "o")
        )
        groups = self.groups if isinstance(self.groups, int) else 1
        if outputs % groups:
            raise ValueError(
                f"`groups` must divide the {outputs} outputs of the kernel, on axis "
                f"{roles.index('o') - len(shape)}; for the kernel of a depthwise convolution pass "
                f'groups="depthwise". Received: groups={self.groups}, shape={shape}'
            )
        return batch, groups, inputs, outputs // groups

    def _roles_in_attention(self, shape: tuple[int, ...]) -> str:
        found = []
        if len(shape) == 3 and shape[1:] in _pairs(self.heads):
            found.append("ioo")
        if len(shape) >= 3 and shape[:2] in _pairs(self.heads):
            found.append("ii" + "o" * (len(shape) - 2))
        if len(found) != 1:
            raise ValueError(
                "With `heads`, a kernel must have the shape `(inputs, *heads)` or "
                "`(*heads, outputs)`, and not both; where both fit, name its axes, "
                f'axes="ioo" or axes="iio". Received: heads={self.heads}, shape={shape}'
            )
        return found[0]


class HasLayout:
    """For objects that read a kernel: lets them have the arguments of their layout."""

    layout: KernelLayout

    @property
    def scale(self) -> Scale:
        """The singular value to aim at, or `"auto"`."""
        return self.layout.scale

    @property
    def groups(self) -> Groups:
        """The groups of the outputs, or `"depthwise"`."""
        return self.layout.groups

    @property
    def axes(self) -> str:
        """What the axes of the kernel are."""
        return self.layout.axes

    @property
    def heads(self) -> list[Any] | None:
        """The number of attention heads and the size of one, or several such pairs."""
        return self.layout.heads


def _sizes(shape: tuple[int, ...], roles: str, wanted: str) -> list[int]:
    return [size for size, role in zip(shape, roles) if role in wanted]


def _transpose(tensor: Any, order: list[int]) -> Any:
    return tensor if order == sorted(order) else ops.transpose(tensor, order)


def _check_rank(shape: tuple[int, ...], axes: str, taps: int) -> None:
    letters = axes.replace("...", "")
    if "..." not in axes and taps:
        raise ValueError(
            f"`axes` must have a letter for each of the {len(shape)} axes of the kernel. "
            f"Received: axes={axes!r}, shape={shape}"
        )
    least = len(letters) if "i" in letters else len(letters) + 1
    if len(shape) < least:
        raise ValueError(
            f"A kernel must have rank {least} or more to be read as "
            f"{'a matrix' if least == 2 else repr(axes)}; biases and other vectors cannot be tight "
            f"frames. Received: shape={shape}"
        )


def _check_not_empty(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"A kernel must not be empty. Received: shape={shape}")


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


def _check_axes(axes: Any) -> str:
    rule = (
        "a letter for each axis of the kernel, `i` for inputs, `o` for outputs and `g` for groups, "
        "with `...` for the taps of a convolution; at least one for inputs (or taps) and one for "
        'outputs, such as "ioo"'
    )
    if not isinstance(axes, str):
        raise TypeError(f"`axes` must be {rule}. Received: axes={axes!r}")
    letters = set(axes.replace("...", ".", 1))
    if not letters <= set("iog.") or "o" not in letters or not letters & set("i."):
        raise ValueError(f"`axes` must be {rule}. Received: axes={axes!r}")
    if axes.replace("...", "", 1).count("."):
        raise ValueError(f"`axes` must be {rule}. Received: axes={axes!r}")
    return axes


def _check_heads(heads: Any) -> list[Any] | None:
    if heads is None:
        return None
    rule = (
        "the number of attention heads and the size of one, such as (8, 64), or a list of such "
        "pairs of positive integers"
    )
    if not isinstance(heads, (list, tuple)):
        raise TypeError(f"`heads` must be {rule}. Received: heads={heads!r}")
    several = bool(heads) and all(isinstance(pair, (list, tuple)) for pair in heads)
    pairs = heads if several else [heads]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"`heads` must be {rule}. Received: heads={heads!r}")
    checked = [
        [check_integer("heads", size, rule, lambda value: value > 0) for size in pair]
        for pair in pairs
    ]
    return checked if several else checked[0]


def _pairs(heads: Any) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in (heads if isinstance(heads[0], list) else [heads])]
