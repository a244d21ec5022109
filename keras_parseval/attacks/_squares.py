"""The random changes of the square attack, in either norm, for static shapes."""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_parseval._seed import Seed
from keras_parseval.attacks._geometry import GEOMETRIES

if TYPE_CHECKING:
    from keras_parseval.attacks._problem import Problem


class Squares:
    """Squares of one batch of images, at other places for each image.

    Everything is computed with the channels last. A square is a product of rows and columns, both
    chosen by comparison, so that its side may be a tensor.

    Args:
        problem: The batch.
        sides: The side of the square for each query.
        channels_first: Whether the channels are the first axis of an image.
        seed: Seed of the changes.
        count: How many changes there are at most.
    """

    def __init__(
        self,
        problem: "Problem",
        sides: np.ndarray,
        channels_first: bool,
        seed: Seed,
        count: int,
    ):
        self.problem, self.channels_first = problem, channels_first
        shape = self._channels_last(problem.x).shape
        self.height, self.width, self.channels = shape[1:]
        self.sides = ops.convert_to_tensor(sides)
        # For all changes at once, because to draw takes long on some backends.
        self.draws = ops.moveaxis(self._uniform((count, 5 + self.channels), seed), 1, 0)
        self.euclidean = problem.attack.norm == 2
        if self.euclidean:
            kinds, numbers = np.unique(sides, return_inverse=True)
            largest = int(kinds[-1])
            self.bumps = ops.convert_to_tensor(np.stack([_bumps(int(s), largest) for s in kinds]))
            self.bump_of_query = ops.convert_to_tensor(numbers.astype("int32"))

    def start(self, seed: Seed) -> Any:
        """Stripes of plus and minus epsilon, or with the 2-norm bumps all over the image."""
        if not self.euclidean:
            signs = self._signs(self._uniform((1, self.width, self.channels), seed))
            stripes = ops.broadcast_to(signs, ops.shape(self._channels_last(self.problem.x)))
            return self._finish(self._epsilon() * stripes)
        side = max(1, min(self.height, self.width) // 5)
        down, across = -(-self.height // side), -(-self.width // side)
        signs = self._signs(self._uniform((down, across, self.channels), seed))
        signs = ops.repeat(ops.repeat(signs, side, axis=1), side, axis=2)
        pattern = np.tile(_bumps(side, side), (down, across))[: self.height, : self.width, None]
        return self._finish(signs[:, : self.height, : self.width] * ops.convert_to_tensor(pattern))

    def change(self, delta: Any, number: Any, query: Any) -> Any:
        """The perturbation, with another square: the change of this number, for this query."""
        side, delta = ops.take(self.sides, query), self._channels_last(delta)
        draws = ops.take(self.draws, number, axis=0)
        signs = self._signs(draws[:, 5:])[:, None, None]
        square = self._square(draws[:, 0], draws[:, 1], side)
        if not self.euclidean:
            return self._finish(delta + 2.0 * self._epsilon() * square * signs)
        emptied = self._square(draws[:, 2], draws[:, 3], side)
        bumps = self._place_bumps(draws, query, side) * signs
        return self._finish(_fill(delta, square, emptied, bumps, self._epsilon()))

    def _finish(self, delta: Any) -> Any:
        """The perturbation as the model takes it, of the largest size that is allowed."""
        if self.euclidean:
            delta = self._epsilon() * GEOMETRIES[2].direction(delta)
        if self.channels_first:
            delta = ops.moveaxis(delta, -1, 1)
        return self.problem.limit(self.problem.masked(delta))

    def _place_bumps(self, draws: Any, query: Any, side: Any) -> Any:
        """The bumps where the square is, lying or standing."""
        bumps = ops.take(self.bumps, ops.take(self.bump_of_query, query), axis=0)
        standing = draws[:, 4, None, None] > 0.5
        bumps = ops.where(standing, ops.transpose(bumps), bumps)
        size = bumps.shape[-1]
        rows = self._offsets(draws[:, 0], side, self.height, size)
        columns = self._offsets(draws[:, 1], side, self.width, size)
        return (rows @ bumps @ ops.transpose(columns, (0, 2, 1)))[..., None]

    def _offsets(self, draw: Any, side: Any, length: int, size: int) -> Any:
        """For each place along an axis, the number of the row of the square that lies there."""
        behind = ops.arange(length)[None] - self._corner(draw, side, length)[:, None]
        return ops.cast(behind[..., None] == ops.arange(size), self.problem.x.dtype)

    def _square(self, down: Any, across: Any, side: Any) -> Any:
        """1 inside of a square, 0 outside, for each image."""
        inside = []
        for draw, length in ((down, self.height), (across, self.width)):
            behind = ops.arange(length)[None] - self._corner(draw, side, length)[:, None]
            inside.append(ops.cast((behind >= 0) & (behind < side), self.problem.x.dtype))
        return inside[0][:, :, None, None] * inside[1][:, None, :, None]

    def _corner(self, draw: Any, side: Any, length: int) -> Any:
        places = ops.cast(length - side + 1, draw.dtype)
        return ops.minimum(ops.cast(draw * places, "int32"), length - side)

    def _uniform(self, shape: tuple[int, ...], seed: Seed) -> Any:
        count = ops.shape(self.problem.x)[0]
        noise = keras.random.uniform((count, *shape), seed=seed)
        return ops.cast(noise, self.problem.x.dtype)

    def _signs(self, draws: Any) -> Any:
        return ops.where(draws < 0.5, -1.0, 1.0)

    def _epsilon(self) -> Any:
        epsilon = self.problem.epsilon
        # One for each channel stands where the model has its channels.
        return self._channels_last(epsilon) if len(epsilon.shape) == 4 else epsilon

    def _channels_last(self, images: Any) -> Any:
        return ops.moveaxis(images, 1, -1) if self.channels_first else images


def _fill(delta: Any, square: Any, emptied: Any, bumps: Any, epsilon: Any) -> Any:
    """Empty one square, and give what it held, and what was left over, to another, as bumps."""

    def length(each: Any) -> Any:
        return ops.sqrt(ops.sum(ops.square(each), axis=(1, 2), keepdims=True))

    held = ops.square(length(delta * ops.maximum(square, emptied)))
    total = ops.sum(ops.square(delta), axis=(1, 2, 3), keepdims=True)
    left = ops.maximum(ops.square(epsilon) - total, 0.0) / delta.shape[-1]
    fresh = bumps + delta * square / (length(delta * square) + 1e-12)
    fresh = fresh / (length(fresh) + 1e-12) * ops.sqrt(held + left)
    return ops.where(square > 0, fresh, delta * (1.0 - emptied))


def _bumps(side: int, size: int) -> np.ndarray:
    """Two bumps of opposite sign, one above the other, of length 1; zero beyond `side`."""
    upper = _bump(side // 2, side)
    lower = _bump(side - side // 2, side)
    bumps = np.zeros((size, size), "float32")
    bumps[:side, :side] = np.concatenate([upper, -lower])
    return bumps / np.linalg.norm(bumps)


def _bump(height: int, width: int) -> np.ndarray:
    """A heap that falls off from its middle: the sum of `1 / (k + 1)^2` from the distance k on."""
    rings = 1.0 / np.arange(1, max(height, width) // 2 + 2) ** 2
    heap = np.append(np.cumsum(rings[::-1])[::-1], 0.0)
    distance = np.maximum(
        abs(np.arange(height) - height // 2)[:, None], abs(np.arange(width) - width // 2)
    )
    bump = heap[np.minimum(distance, len(rings))]
    return bump / (np.linalg.norm(bump) or 1.0)
