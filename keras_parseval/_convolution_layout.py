"""How the kernel of a convolution is read as an operator: as taps, and at frequencies."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._validation import check_integer

Strides = int | Sequence[int]


class ConvolutionLayout:
    """Turns the kernel of a convolution into taps without strides and groups, and back.

    A convolution with strides `s` is one without strides of the `s` phases of its input, which
    count as channels: kernel entry `s q + p` is tap `q` of phase `p`. Where the kernel is no
    multiple of the stride, the last taps lack phases, which are zero.

    Args:
        strides: The `strides` argument of the layer.
        groups: The `groups` argument of the layer.
    """

    def __init__(self, strides: Strides = 1, groups: int = 1):
        self.strides = _check_strides(strides)
        rule = (
            "a positive integer, the `groups` argument of the convolution; depthwise kernels are "
            "tight as operators only if they shift their input, so give them "
            '`kp.ParsevalTightFrame(groups="depthwise")`'
        )
        self.groups = check_integer("groups", groups, rule, lambda value: value > 0)

    def get_config(self) -> dict[str, Any]:
        return {"strides": self.strides, "groups": self.groups}

    def steps_along(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The stride along each axis; never longer than the kernel, which would skip inputs."""
        spatial = self._check_shape(shape)
        given = self.strides
        strides = (given,) * len(spatial) if isinstance(given, int) else given
        if len(strides) != len(spatial):
            raise ValueError(
                f"`strides` must be an integer, or have one for each of the {len(spatial)} "
                f"spatial axes of the kernel. Received: strides={given}, shape={shape}"
            )
        return tuple(min(stride, size) for stride, size in zip(strides, spatial))

    def taps_along(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """How many taps there are along each axis, once strides are folded."""
        pairs = zip(shape, self.steps_along(shape))
        return tuple(math.ceil(size / stride) for size, stride in pairs)

    def matrices_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of one tap: groups, inputs with their phases, and outputs of a group."""
        phases = math.prod(self.steps_along(shape))
        return self.groups, phases * shape[-2], shape[-1] // self.groups

    def to_taps(self, kernel: Any) -> Any:
        """Kernel to taps, a tensor of shape `(taps, groups, inputs, outputs)`."""
        shape = tuple(kernel.shape)
        strides, taps = self.steps_along(shape), self.taps_along(shape)
        padding = [(0, n * s - size) for n, s, size in zip(taps, strides, shape)]
        if any(right for _, right in padding):
            kernel = ops.pad(kernel, [*padding, (0, 0), (0, 0)])
        if math.prod(strides) > 1:
            kernel = ops.reshape(kernel, [*_interleave(taps, strides), *shape[-2:]])
            kernel = ops.transpose(kernel, _taps_first(len(taps)))
        groups, inputs, outputs = self.matrices_shape(shape)
        kernel = ops.reshape(kernel, (math.prod(taps), inputs, groups, outputs))
        return ops.swapaxes(kernel, 1, 2)

    def to_kernel(self, taps: Any, shape: tuple[int, ...]) -> Any:
        """Taps back to a kernel of the given shape."""
        strides, counts = self.steps_along(shape), self.taps_along(shape)
        kernel = ops.swapaxes(taps, 1, 2)
        if math.prod(strides) > 1:
            kernel = ops.reshape(kernel, [*counts, *strides, *shape[-2:]])
            kernel = ops.transpose(kernel, np.argsort(_taps_first(len(counts))).tolist())
        whole = [count * stride for count, stride in zip(counts, strides)]
        kernel = ops.reshape(kernel, [*whole, *shape[-2:]])
        return kernel[tuple(slice(size) for size in shape[:-2])]

    def support(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """1 where a tap holds an entry of the kernel, 0 where it lacks the phase.

        Returns:
            Array of shape `(taps, 1, inputs, 1)`, or `None` if no phase is lacking.
        """
        strides, taps = self.steps_along(shape), self.taps_along(shape)
        if all(size % stride == 0 for size, stride in zip(shape, strides)):
            return None
        held: np.ndarray = np.ones(())
        for size, stride, count in zip(shape, strides, taps):
            along = np.arange(count * stride) < size
            held = np.multiply.outer(held, along)
        held = held.reshape(_interleave(taps, strides))
        held = held.transpose(_taps_first(len(taps))[:-2]).reshape(np.prod(taps), -1)
        return np.repeat(held, shape[-2], axis=1)[:, None, :, None]

    def target(self, shape: tuple[int, ...]) -> float:
        """The singular value aimed at."""
        return 1.0

    def relative_matrices(self, kernel: Any) -> np.ndarray:
        """The matrices of the operator at the frequencies of a torus, in double precision.

        It is the smallest torus on which a kernel is tight only if it is so on every other:
        `2 n - 1` points along an axis with `n` taps. The singular values of all of these
        matrices together are those of the convolution of an image of that size (times the
        stride) with its ends joined.

        Returns:
            Complex array of shape `(frequencies x groups, inputs, outputs)`.
        """
        shape = tuple(kernel.shape)
        taps = ops.convert_to_numpy(self.to_taps(kernel)).astype("float64")
        counts = self.taps_along(shape)
        points = [2 * count - 1 for count in counts]
        angles = _angles(counts, list(itertools.product(*map(range, points))), points)
        return np.tensordot(np.exp(1j * angles), taps, axes=1).reshape(-1, *taps.shape[-2:])

    def is_only_shifts(self, shape: tuple[int, ...]) -> bool:
        """Whether the only tight kernels of this shape are shifts: one channel in and one out."""
        _, inputs, outputs = self.matrices_shape(shape)
        return inputs == outputs == 1 and math.prod(shape[:-2]) > 1

    def _check_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The spatial sizes of a kernel, or an error if it is not that of a convolution."""
        if len(shape) < 3:
            raise ValueError(
                "The kernel of a convolution must have rank 3 or more; for the matrix of a Dense "
                f"layer use `kp.ParsevalTightFrame`. Received: shape={shape}"
            )
        if 0 in shape:
            raise ValueError(f"A kernel must not be empty. Received: shape={shape}")
        if shape[-1] % self.groups:
            raise ValueError(
                f"`groups` must divide the {shape[-1]} outputs of the kernel, on its last axis. "
                f"Received: groups={self.groups}, shape={shape}"
            )
        return shape[:-2]


class HasConvolutionLayout:
    """For objects that read the kernel of a convolution: lets them have its arguments."""

    layout: ConvolutionLayout

    @property
    def strides(self) -> int | list[int]:
        """The strides of the layer."""
        return self.layout.strides

    @property
    def groups(self) -> int:
        """The groups of the layer."""
        return self.layout.groups


class TorusTransform:
    """The Fourier transform of taps on the smallest torus on which a step is exact.

    The product of three kernels of `n` taps, cropped to `n` taps, is not touched by the ends of a
    torus that has `2 n - 1` points along the axis. Kernels are real, so that half of the
    frequencies tell all.

    Args:
        taps: Number of taps along each axis.
    """

    def __init__(self, taps: Sequence[int]):
        points = [2 * count - 1 for count in taps]
        every = list(itertools.product(*map(range, points)))
        # A frequency and its opposite have conjugate values. No frequency but 0 is its own
        # opposite, because the numbers of points are odd.
        half = [each for each in every if each <= _opposite(each, points)]
        angles = _angles(taps, half, points)
        weights = np.where(np.arange(len(half)) == 0, 1.0, 2.0) / len(every)
        self.forward = np.concatenate([np.cos(angles), np.sin(angles)])
        self.backward = (self.forward * np.tile(weights, 2)[:, None]).T


def _opposite(frequency: tuple[int, ...], points: Sequence[int]) -> tuple[int, ...]:
    return tuple(-each % count for each, count in zip(frequency, points))


def _angles(taps: Sequence[int], frequencies: list[tuple[int, ...]], points: Sequence[int]) -> Any:
    """The phase of each frequency at each tap."""
    places = np.array(list(itertools.product(*map(range, taps))))
    return 2 * np.pi * (np.array(frequencies) / np.array(points)) @ places.T


def _interleave(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [each for pair in zip(first, second) for each in pair]


def _taps_first(rank: int) -> list[int]:
    """The order of axes that brings taps before phases, and leaves channels last."""
    return [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank, 2 * rank + 1]


def _check_strides(strides: Any) -> int | list[int]:
    rule = "a positive integer, or a list of one for each spatial axis, as the layer has it"
    if isinstance(strides, (list, tuple)):
        if not strides:
            raise ValueError(f"`strides` must be {rule}. Received: strides={strides!r}")
        return [check_integer("strides", each, rule, lambda value: value > 0) for each in strides]
    return check_integer("strides", strides, rule, lambda value: value > 0)
