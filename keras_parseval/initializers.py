"""Initial values for Parseval networks."""

import math
from typing import Any

import keras
from keras import ops

from keras_parseval._backend import contiguous
from keras_parseval._convolution_frames import check_not_depthwise
from keras_parseval._convolution_layout import ConvolutionLayout, HasConvolutionLayout, Strides
from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._validation import check_integer

__all__ = ["TightConvolution", "TightFrame"]


class _Drawn(keras.initializers.Initializer):
    """A kernel made of normal random numbers, in float32."""

    def __init__(self, seed: Any):
        _check_seed(seed)
        # Holds the seed too, by the rules of Keras.
        self._normal = keras.initializers.RandomNormal(stddev=1.0, seed=seed)

    @property
    def seed(self) -> Any:
        """The seed that values are drawn with; a random one where none was given."""
        return self._normal.seed

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Normal random numbers in float32."""
        return self._normal(shape, dtype="float32")

    def draw(self, shape: tuple[int, ...]) -> Any:
        """A kernel of the given shape, in float32."""
        raise NotImplementedError

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if hasattr(shape, "dtype"):
            raise TypeError(
                "An initializer must be called with a shape; pass it as `kernel_initializer`, and "
                "for a constraint take `kp.ParsevalTightFrame` or `kp.ParsevalConvolution`. "
                "Received: a tensor"
            )
        # A weight keeps the order in memory that it begins with.
        kernel = contiguous(self.draw(tuple(shape)))
        return ops.cast(kernel, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"seed": self._normal.get_config()["seed"]}


@keras.saving.register_keras_serializable(package="keras_parseval")
class TightFrame(HasLayout, _Drawn):
    """A random tight frame, uniform over all of them.

    Constraints act after the first update. With this initializer the kernel
    satisfies `kp.ParsevalTightFrame` from the start. Give both the same
    `scale`, `groups`, `axes` and `heads`.

    It differs from `keras.initializers.Orthogonal` in its scale, which makes
    convolutions 1-Lipschitz too, and in its reading of kernels that are more than one matrix, or
    whose outputs are not on the last axis.

    Args:
        scale: The common singular value: `"auto"` is 1 for a matrix and
            `prod(kernel_size)**-0.5` for a convolution. Or a positive number.
            Defaults to `"auto"`.
        groups: As in `kp.ParsevalTightFrame`. Defaults to 1.
        axes: As in `kp.ParsevalTightFrame`. Defaults to `"...io"`.
        heads: As in `kp.ParsevalTightFrame`. Defaults to `None`.
        seed: Integer, `keras.random.SeedGenerator`, or `None`. As with all
            Keras initializers, an integer gives the same values at every call.
            Defaults to `None`.

    Example:

    ```python
    keras.layers.Dense(64, kernel_initializer=kp.TightFrame(seed=1))
    ```
    """

    def __init__(
        self,
        *,
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = "...io",
        heads: Heads = None,
        seed: Any = None,
    ):
        super().__init__(seed)
        self.layout = KernelLayout(scale, groups, axes, heads)

    def draw(self, shape: tuple[int, ...]) -> Any:
        """A kernel of the given shape, in float32."""
        frames = _random_frames(self.normal(self.layout.matrices_shape(shape)))
        return self.layout.to_kernel(frames * self.layout.target(shape), shape)

    def get_config(self) -> dict[str, Any]:
        return {**self.layout.get_config(), **super().get_config()}


@keras.saving.register_keras_serializable(package="keras_parseval")
class TightConvolution(HasConvolutionLayout, _Drawn):
    """A random convolution that is a tight frame as an operator: all its singular values are 1.

    Constraints act after the first update. With this initializer the kernel satisfies
    `kp.ParsevalConvolution` from the start. Give both the same `strides` and `groups`.

    A random tight frame of kernels as large as the stride is composed with convolutions
    of two taps, each of which shifts some directions of a random basis by one place and leaves
    the others where they are. That is exact, and reaches every part of the set that such
    products reach: which directions are shifted is drawn by fair coins.

    Args:
        strides: The `strides` of the layer, an integer or one for each axis. Defaults to 1.
        groups: The `groups` of the layer. Defaults to 1.
        seed: As in `kp.TightFrame`. Defaults to `None`.

    Example:

    ```python
    keras.layers.Conv2D(64, 3, kernel_initializer=kp.TightConvolution(seed=1))
    ```
    """

    def __init__(self, *, strides: Strides = 1, groups: int = 1, seed: Any = None):
        super().__init__(seed)
        self.layout = ConvolutionLayout(strides, groups)

    def draw(self, shape: tuple[int, ...]) -> Any:
        """A kernel of the given shape, in float32."""
        check_not_depthwise(self.layout, shape)
        strides = self.layout.steps_along(shape)
        groups, folded, outputs = self.layout.matrices_shape(shape)
        inputs, rank = shape[-2], len(strides)
        # Which axis each factor shifts along, on the side that has more channels where it fits:
        # behind a stride, a shift by one place is one by a whole stride before it.
        more_outputs = outputs > folded
        after = [(size - s) // s if more_outputs else 0 for size, s in zip(shape, strides)]
        before = [size - s - n * s for size, s, n in zip(shape, strides, after)]
        sizes = [outputs] * sum(after) + [inputs] * sum(before)
        # One draw for all, because an integer seed gives the same values at every call.
        count = groups * (folded * outputs + sum(size * (size + 1) for size in sizes))
        numbers = _Numbers(self.normal((count,)))
        kernel = _random_frames(numbers.take((groups, folded, outputs)))
        kernel = ops.reshape(kernel, (groups, *strides, inputs, outputs))
        for axis in range(rank):
            for _ in range(after[axis]):
                kernel = ops.swapaxes(kernel, -1, -2)
                kernel = _shift_some(kernel, axis + 1, strides[axis], numbers)
                kernel = ops.swapaxes(kernel, -1, -2)
            for _ in range(before[axis]):
                kernel = _shift_some(kernel, axis + 1, 1, numbers)
        kernel = ops.moveaxis(kernel, 0, -2)
        return ops.reshape(kernel, shape)

    def get_config(self) -> dict[str, Any]:
        return {**self.layout.get_config(), **super().get_config()}


class _Numbers:
    """Random numbers, to be taken piece by piece."""

    def __init__(self, numbers: Any):
        self.numbers = numbers
        self.taken = 0

    def take(self, shape: tuple[int, ...]) -> Any:
        start, self.taken = self.taken, self.taken + math.prod(shape)
        return ops.reshape(self.numbers[start : self.taken], shape)


def _shift_some(kernel: Any, axis: int, places: int, numbers: _Numbers) -> Any:
    """The convolution after another one, which shifts half of the directions of a random basis.

    Args:
        kernel: Tensor of shape `(groups, *spatial, channels, others)`.
        axis: The axis to shift along, which becomes longer.
        places: How far.
        numbers: Normal random numbers.
    """
    groups, channels = kernel.shape[0], kernel.shape[-2]
    spatial = (1,) * (len(kernel.shape) - 3)
    basis = _random_frames(numbers.take((groups, channels, channels)))
    basis = ops.reshape(basis, (groups, *spatial, channels, channels))
    coins = ops.cast(numbers.take((groups, *spatial, channels, 1)) > 0, "float32")
    seen = ops.swapaxes(basis, -1, -2) @ kernel
    zeros = ops.zeros_like(ops.take(kernel, ops.arange(places) * 0, axis=axis))
    staying = ops.concatenate([basis @ (seen * (1.0 - coins)), zeros], axis=axis)
    shifted = ops.concatenate([zeros, basis @ (seen * coins)], axis=axis)
    return staying + shifted


def _random_frames(normal: Any) -> Any:
    """Tight frames from normal random numbers of the same shape, uniform over all of them."""
    inputs, outputs = normal.shape[-2:]
    wide = inputs < outputs
    orthogonal, triangular = ops.qr(ops.swapaxes(normal, -1, -2) if wide else normal)
    # Without the signs, Q is not uniform: QR makes no choice of its own that is.
    diagonal = ops.diagonal(triangular, axis1=-2, axis2=-1)
    frames = orthogonal * ops.where(diagonal < 0, -1.0, 1.0)[..., None, :]
    return ops.swapaxes(frames, -1, -2) if wide else frames


def _check_seed(seed: Any) -> None:
    # A dictionary is a seed generator that was serialized.
    if seed is None or isinstance(seed, (keras.random.SeedGenerator, dict)):
        return
    rule = "an integer, a `keras.random.SeedGenerator` or None"
    check_integer("seed", seed, rule, lambda value: True)
