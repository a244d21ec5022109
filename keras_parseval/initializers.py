"""Initial values for Parseval networks."""

from typing import Any

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._validation import check_integer

__all__ = ["TightFrame"]


@keras.saving.register_keras_serializable(package="keras_parseval")
class TightFrame(HasLayout, keras.initializers.Initializer):
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
        self.layout = KernelLayout(scale, groups, axes, heads)
        _check_seed(seed)
        # Holds the seed too, by the rules of Keras.
        self._normal = keras.initializers.RandomNormal(stddev=1.0, seed=seed)

    @property
    def seed(self) -> Any:
        """The seed that values are drawn with; a random one where none was given."""
        return self._normal.seed

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if hasattr(shape, "dtype"):
            raise TypeError(
                "An initializer must be called with a shape; pass it as `kernel_initializer`, and "
                "for a constraint take `kp.ParsevalTightFrame`. Received: a tensor"
            )
        shape = tuple(shape)
        *groups, inputs, outputs = self.layout.matrices_shape(shape)
        long, short = max(outputs, inputs), min(outputs, inputs)
        orthogonal, triangular = ops.qr(self._normal((*groups, long, short), dtype="float32"))
        # Without the signs, Q is not uniform: QR makes no choice of its own that is.
        diagonal = ops.diagonal(triangular, axis1=-2, axis2=-1)
        frames = orthogonal * ops.where(diagonal < 0, -1.0, 1.0)[..., None, :]
        if inputs < outputs:
            frames = ops.swapaxes(frames, -1, -2)
        kernel = self.layout.to_kernel(frames * self.layout.target(shape), shape)
        return ops.cast(kernel, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {**self.layout.get_config(), "seed": self._normal.get_config()["seed"]}


def _check_seed(seed: Any) -> None:
    # A dictionary is a seed generator that was serialized.
    if seed is None or isinstance(seed, (keras.random.SeedGenerator, dict)):
        return
    rule = "an integer, a `keras.random.SeedGenerator` or None"
    check_integer("seed", seed, rule, lambda value: True)
