"""Losses for networks that are to be certified."""

from typing import Any

import keras
from keras import ops

from keras_parseval._compiled_loss import CrossentropyOfLogits, is_one_hot
from keras_parseval._keras_internals import is_activated
from keras_parseval._validation import check_number

__all__ = ["MarginCrossentropy"]

# Up to here all whole numbers have a place in half precision, and so have the numbers of classes.
_WHOLE_NUMBERS = {"float16": 2**11, "bfloat16": 2**8}


@keras.saving.register_keras_serializable(package="keras_parseval")
class MarginCrossentropy(CrossentropyOfLogits):
    """Cross-entropy that is content only with decisions that win by a margin.

    `T CE((z - m y) / T)`, where `z` are logits, `y` is the label as a one-hot vector, `m` the
    margin and `T` the temperature. Plain cross-entropy asks a network for large logits, which one
    whose Lipschitz constant is 1 cannot have. This one asks for the label to win by about `m`,
    and a lower temperature lets it care less for what has won by more.

    In the 2-norm, a decision of a 1-Lipschitz network that wins by `m` is certified up to
    `m / sqrt(2)`, so that a margin of `2 sqrt(2) epsilon` is a good start for certificates at
    `epsilon`. A larger margin buys certified accuracy with clean accuracy, up to a point.
    Published figures for CIFAR-10 (AOL-Small, `T = 1/4`), in %:

    | margin | clean | certified at 36/255 |
    |---|---|---|
    | `sqrt(2) / 16`, about 0.09 | 80.3 | 46.4 |
    | `sqrt(2) / 4`, about 0.35 | 77.8 | 63.0 |
    | `sqrt(2)`, about 1.41 | 70.6 | 62.8 |

    Attacks ascend this loss: the log-odds against the label, at its temperature. Its margin changes
    no direction. Certificates do not depend on it.

    Args:
        margin: By how much the label is to win, in units of logits; 0 or more.
        temperature: What logits are divided by, and the loss multiplied. Defaults to 0.25.
        reduction: As in `keras.losses.CategoricalCrossentropy`. Defaults to
            `"sum_over_batch_size"`.
        name: Name of the loss. Defaults to `"margin_crossentropy"`.
        dtype: What it is computed in. Defaults to `None`, for Keras's `floatx`.

    Labels are integers, of the shape of the logits without the last axis, or with a last axis of
    size 1; or one-hot vectors or other distributions, of the shape of the logits. A
    label that is the number of no class makes the loss NaN. A model that ends in a softmax is
    refused where that can be seen: by attacks and certificates, and by `fit`, but for that of JAX.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("adam", kp.losses.MarginCrossentropy(margin=0.4))
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    model.fit(x, y, verbose=0)
    ```

    Reference:

    - [Prach and Lampert, 2022](https://arxiv.org/abs/2208.03160)
    """

    def __init__(
        self,
        margin: float,
        temperature: float = 0.25,
        reduction: str | None = "sum_over_batch_size",
        name: str = "margin_crossentropy",
        dtype: Any = None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.margin = check_number(
            "margin", margin, "a number, 0 or more, in units of logits", lambda value: value >= 0
        )
        self.temperature = check_number(
            "temperature", temperature, "a positive number", lambda value: value > 0
        )

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if is_activated(y_pred):
            raise ValueError(
                "`MarginCrossentropy` must be given logits; leave out the softmax or sigmoid of "
                "the last layer. Received: outputs of a softmax or sigmoid"
            )
        chosen = self._one_hot(y_true, y_pred)
        log_shares = ops.log_softmax(self.adjust(y_pred, chosen), axis=-1)
        return -self.temperature * ops.sum(chosen * log_shares, axis=-1)

    def adjust(self, logits: Any, chosen: Any) -> Any:
        """The logits whose cross-entropy it is: `(z - m y) / T`."""
        return (logits - self.margin * chosen) / self.temperature

    def _one_hot(self, labels: Any, logits: Any) -> Any:
        """Labels of either kind as one-hot vectors."""
        classes, shape, rank = logits.shape[-1], tuple(labels.shape), len(logits.shape)
        if rank < 2 or classes is None or classes < 2:
            raise ValueError(
                "`MarginCrossentropy` needs a known number of classes, two or more, along the last "
                "axis of the logits; a single unit has a binary cross-entropy. "
                f"Received: logits of shape {tuple(logits.shape)}"
            )
        if is_one_hot(labels, logits):
            return labels
        if len(shape) == rank and shape[-1] == 1:
            labels = ops.squeeze(labels, -1)
        elif len(shape) != rank - 1:
            raise ValueError(
                "Labels must be integers, of the shape of the logits without the last axis, or "
                "one-hot vectors, of the shape of the logits. "
                f"Received: labels of shape {shape}, logits of shape {tuple(logits.shape)}"
            )
        if classes > _WHOLE_NUMBERS.get(self.dtype, classes):
            raise ValueError(
                "Integer labels must be exact in the type that the loss is computed in; use "
                f'`dtype="float32"`, or one-hot labels. Received: {classes} classes, '
                f"dtype={self.dtype}"
            )
        chosen = ops.expand_dims(labels, -1) == ops.arange(classes, dtype=labels.dtype)
        known = ops.any(chosen, axis=-1, keepdims=True)
        return ops.where(known, ops.cast(chosen, logits.dtype), float("nan"))

    def get_config(self) -> dict[str, Any]:
        arguments = {"margin": self.margin, "temperature": self.temperature, "dtype": self.dtype}
        return {**super().get_config(), **arguments}
