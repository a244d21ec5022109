"""What a Lipschitz bound says of the decisions of a classifier."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled
from keras_parseval._batches import Examples, check_labels
from keras_parseval._classifier import Classifier, not_a_number
from keras_parseval._compiled_loss import compiled_loss
from keras_parseval._keras_internals import in_single_precision
from keras_parseval._progress import Progress, Verbose
from keras_parseval.analysis._lipschitz import Method
from keras_parseval.analysis._slopes import Slopes


class Certificate:
    """A classifier, and how fast the difference of two of its logits can change."""

    def __init__(self, model: Any, norm: Any, method: Method = "operator", loss: Any = None):
        self.model, self.method, self.loss = model, method, loss
        self.classifier = Classifier(model, loss)
        if self.classifier.returns_probabilities:
            raise ValueError(
                "Certificates need logits, or a softmax or sigmoid that is the activation of the "
                "last layer. Return logits, and compile with `from_logits=True`. "
                f"Received: model '{model.name}', whose logits cannot be reached"
            )
        self.slopes = Slopes(model, self.classifier, norm, method)

    def examples(self, x: Any, y: Any, batch_size: int, labels: bool = True) -> Examples:
        """The data, with labels that fit the classifier."""
        check = functools.partial(check_labels, self.model, self.loss)
        return Examples(x, y, batch_size=batch_size, labels=labels, check_labels=check)

    def for_each(
        self, measure: Callable[[Any, Any], np.ndarray], examples: Examples, verbose: Verbose
    ) -> np.ndarray:
        """What `measure` finds for each example."""
        progress, values = Progress(examples.total, verbose), []
        for inputs, labels in examples:
            values.append(measure(inputs, labels))
            progress.advance()
        return np.concatenate(values)

    def radii(self, inputs: Any, labels: Any) -> np.ndarray:
        """The certified radius of each example."""
        margins, slopes = self._rivals(inputs, labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A constant network never changes its mind.
            radii = np.where(margins > 0, margins / slopes, 0.0)
        return radii.reshape(len(radii), -1).min(axis=-1)

    def losses(self, inputs: Any, labels: Any, epsilon: float) -> np.ndarray:
        """The largest log-loss of each example under perturbations of size epsilon."""
        if self.classifier.encoding is None:
            raise ValueError(
                "The bound is one of the log-loss; compile the model with a cross-entropy of "
                f"Keras, or pass one as `loss`. Received: loss={self.loss}"
            )
        margins, slopes = self._rivals(inputs, labels)
        odds = np.logaddexp.reduce(epsilon * slopes - margins, axis=-1)
        losses = np.logaddexp(0.0, odds)
        return losses.reshape(len(losses), -1).mean(axis=-1)

    def _rivals(self, inputs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        """By how much each decision wins, and how fast that can change.

        The last axis is that of its rivals: the other classes, or the other side of a unit.
        """
        labels, outputs = self._decide(inputs, labels)
        if self.classifier.encoding == "binary":
            margins = np.where(labels > 0, outputs, -outputs)
            slopes = np.broadcast_to(self.slopes.of_units(), margins.shape)
            return margins[..., None], slopes[..., None]
        margins = np.take_along_axis(outputs, labels[..., None], axis=-1) - outputs
        slopes = np.empty_like(margins)
        for label in np.unique(labels):
            slopes[labels == label] = self.slopes.from_label(int(label))
        rivals = np.arange(outputs.shape[-1]) != labels[..., None]
        shape = (*labels.shape, -1)
        return margins[rivals].reshape(shape), slopes[rivals].reshape(shape)

    def _decide(self, inputs: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        """The classes to certify, the model's own without labels, and its logits."""
        tensors = {"x": inputs} if labels is None else {"x": inputs, "y": labels}
        loss = compiled_loss(self.model) if self.loss is None else self.loss
        decide = functools.partial(_decide, loss)
        decided = call_compiled(self.model, (_decide, loss), decide, tensors)
        classes, outputs = (ops.convert_to_numpy(each) for each in decided)
        if np.isnan(outputs).any():
            raise not_a_number(self.model)
        return classes.astype("int64"), outputs.astype("float64")


def _decide(loss: Any, model: Any, tensors: dict[str, Any]) -> tuple[Any, Any]:
    classifier = Classifier(model, loss)
    # In half precision, rounding could move a logit by more than its margin.
    with in_single_precision(model):
        outputs = classifier.outputs(tensors["x"])
    decided = classifier.predicted_labels(outputs)
    labels = classifier.true_labels(tensors["y"], outputs) if "y" in tensors else decided
    return labels, outputs
