"""What attacks raise in place of the model's own loss: differences of logits."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_parseval._classifier import Classifier, mean_by_example


def crossentropy(classifier: Classifier, labels: Any) -> Callable[[Any], Any]:
    """The loss of the label, for each example, in a form whose gradient does not vanish."""
    return lambda outputs: classifier.losses(labels, outputs)


def targeted_crossentropy(classifier: Classifier, target: Any) -> Callable[[Any], Any]:
    """The loss of the target, with its sign turned: it grows while the target wins."""
    return lambda outputs: -classifier.losses(target, outputs)


def logits_ratio(classifier: Classifier, labels: Any) -> Callable[[Any], Any]:
    """The difference of logits ratio, `-(z_y - max z_j) / (z_(1) - z_(3))`, for each example.

    Neither a shift of all logits nor a factor changes it, so that no model hides its gradient by
    its scale.
    """

    def loss(outputs: Any) -> Any:
        highest = _highest(outputs, 3, 'loss="dlr"')
        spread = highest[..., 0] - highest[..., 2]
        return mean_by_example(-classifier.margins(labels, outputs) / (spread + 1e-12))

    return loss


def targeted_logits_ratio(classifier: Classifier, labels: Any, target: Any) -> Any:
    """The same towards a target `t`: `-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2)`."""

    def loss(outputs: Any) -> Any:
        highest = _highest(outputs, 4, 'loss="dlr" with targets')
        spread = highest[..., 0] - (highest[..., 2] + highest[..., 3]) / 2
        lead = _logit(outputs, target) - _logit(outputs, labels)
        return mean_by_example(lead / (spread + 1e-12))

    return loss


def likeliest_others(labels: Any, outputs: Any, count: int, rank: Any) -> Any:
    """The class of this rank, from 0, among the `count` likeliest that are not the label."""
    chosen = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
    _, classes = ops.top_k(outputs - 1e30 * chosen, count)
    return ops.cast(ops.take(classes, rank, axis=-1), "int32")


def _highest(outputs: Any, count: int, name: str) -> Any:
    if outputs.shape[-1] < count:
        raise ValueError(
            f"An attack with {name} is defined for {count} classes or more; use "
            f'`loss="ce"`. Received: a model with {outputs.shape[-1]} outputs'
        )
    return ops.top_k(outputs, count)[0]


def _logit(outputs: Any, classes: Any) -> Any:
    return ops.sum(outputs * ops.one_hot(classes, outputs.shape[-1], dtype=outputs.dtype), axis=-1)
