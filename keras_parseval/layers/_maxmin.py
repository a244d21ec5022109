"""An activation that loses nothing of its input."""

from typing import Any

import keras
from keras import ops

from keras_parseval._backend import sort_pairs
from keras_parseval._validation import check_integer


@keras.saving.register_keras_serializable(package="keras_parseval")
class MaxMin(keras.layers.Layer):
    """Sorts pairs of channels: `(a, b)` becomes `(max(a, b), min(a, b))`.

    A 1-Lipschitz activation that only reorders its inputs, so it keeps their
    norm, and the norm of gradients on the way back. ReLU sets half of its
    inputs to zero, and a network of tight frames has no means to scale up what is left.

    Args:
        axis: The axis of the channels, an even number of them. Channels
            `2 i` and `2 i + 1` form a pair. Defaults to -1.
        **kwargs: Name, dtype and other arguments of a Keras layer.

    Example:

    ```python
    kp.MaxMin()(keras.ops.array([[1.0, 2.0, 4.0, 3.0]]))  # [[2.0, 1.0, 4.0, 3.0]]
    ```

    Reference:

    - [Anil et al., 2019](https://arxiv.org/abs/1811.05381)
    """

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = check_integer("axis", axis, "an integer", lambda value: True)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        rank = len(input_shape)
        if not -rank <= self.axis < rank:
            raise ValueError(
                f"`axis` must be an axis of the inputs of `MaxMin`, which have rank {rank}. "
                f"Received: axis={self.axis}, input_shape={tuple(input_shape)}"
            )
        channels = input_shape[self.axis]
        if channels is None or channels % 2:
            raise ValueError(
                "`MaxMin` needs a known, even number of channels, to form pairs; change the "
                "number of units or filters of the layer before it. "
                f"Received: {channels} channels on axis {self.axis}, "
                f"input_shape={tuple(input_shape)}"
            )

    def call(self, inputs: Any) -> Any:
        axis = self.axis % len(inputs.shape)
        outputs = sort_pairs(inputs) if axis == len(inputs.shape) - 1 else None
        if outputs is None:
            before = (slice(None),) * axis
            first, second = (inputs[(*before, slice(start, None, 2))] for start in (0, 1))
            pairs = [ops.maximum(first, second), ops.minimum(first, second)]
            outputs = ops.reshape(ops.stack(pairs, axis=axis + 1), ops.shape(inputs))
        return outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "axis": self.axis}
