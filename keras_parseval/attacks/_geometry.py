"""The balls that attacks move in: one class for each norm."""

from typing import Any

import keras
from keras import ops


class _InfinityBall:
    """All perturbations with no feature larger than epsilon."""

    def direction(self, gradient):
        # PyTorch takes the sign of NaN for zero, and would hide a model that has diverged.
        return ops.where(ops.isnan(gradient), gradient, ops.sign(gradient))

    def project(self, delta, epsilon):
        return ops.clip(delta, -epsilon, epsilon)

    def random(self, x, epsilon, seed):
        noise = keras.random.uniform(ops.shape(x), -1.0, 1.0, seed=seed)
        return epsilon * ops.cast(noise, x.dtype)


class _EuclideanBall:
    """All perturbations with a 2-norm of at most epsilon, example by example."""

    def direction(self, gradient):
        # First to unit size, so that squares of tiny gradients do not vanish.
        gradient = _divide(gradient, _over_features(ops.max, ops.abs(gradient)))
        return _divide(gradient, self.norm(gradient))

    def project(self, delta, epsilon):
        return delta * ops.minimum(1.0, _divide(epsilon, self.norm(delta), 1.0))

    def random(self, x, epsilon, seed):
        noise = keras.random.normal(ops.shape(x), seed=seed)
        return epsilon * ops.cast(self.direction(noise), x.dtype)

    def norm(self, delta):
        return ops.sqrt(_over_features(ops.sum, ops.square(delta)))


def choose(flags: Any, tensor: Any, other: Any) -> Any:
    """For each example of `tensor`, itself where its flag is set, and that of `other` elsewhere."""
    return ops.where(by_example(flags, tensor), tensor, other)


def by_example(values: Any, tensor: Any) -> Any:
    """Values, one for each example, in a shape that broadcasts to `tensor`."""
    return values[(..., *(None,) * (len(tensor.shape) - 1))]


GEOMETRIES: dict[Any, Any] = {"inf": _InfinityBall(), 2: _EuclideanBall()}


def _over_features(reduce, tensor):
    return reduce(tensor, axis=tuple(range(1, len(tensor.shape))), keepdims=True)


def _divide(numerator, denominator, otherwise=0.0):
    """The quotient, or `otherwise` where the denominator is zero."""
    zero = denominator == 0
    return ops.where(zero, otherwise, numerator / ops.where(zero, 1.0, denominator))
