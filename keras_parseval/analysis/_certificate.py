"""What a Lipschitz bound says of the decisions of a classifier."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled
from keras_parseval._batches import Examples, check_labels
from keras_parseval._classifier import Classifier, not_a_number, without_activation
from keras_parseval._compiled_loss import compiled_loss
from keras_parseval._progress import Progress, Verbose
from keras_parseval.analysis._lipschitz import Method, bound_of


class Certificate:
    """A classifier, and how fast the difference of two of its logits can change."""

    def __init__(self, model: Any, norm: Any, method: Method, loss: Any):
        self.model, self.loss = model, loss
        self.classifier = Classifier(model, loss)
        if self.classifier.returns_probabilities:
            raise ValueError(
                "Certificates need logits, or a softmax or sigmoid that is the activation of the "
                "last layer. Return logits, and compile with `from_logits=True`. "
                f"Received: model '{model.name}', whose logits cannot be reached"
            )
        layer = self.classifier.activated_layer
        softmax = layer if isinstance(layer, keras.layers.Softmax) else None
        with without_activation(layer):
            bound = bound_of(model, norm, method, linear_layer=softmax)
        self.norm = bound.norm
        several = 2.0 if bound.norm == "inf" else math.sqrt(2.0)
        self.constant = bound.bound * (1.0 if self.classifier.encoding == "binary" else several)

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
        margins = self._evaluate(_margins, inputs, labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A constant network never changes its mind.
            return np.where(margins > 0, margins / self.constant, 0.0)

    def losses(self, inputs: Any, labels: Any) -> np.ndarray:
        """The log-loss of each example."""
        if self.classifier.encoding is None:
            raise ValueError(
                "The bound is one of the log-loss; compile the model with a cross-entropy of "
                f"Keras, or pass one as `loss`. Received: loss={self.loss}"
            )
        return self._evaluate(_losses, inputs, labels)

    def _evaluate(self, function: Callable[..., Any], inputs: Any, labels: Any) -> np.ndarray:
        tensors = {"x": inputs} if labels is None else {"x": inputs, "y": labels}
        loss = compiled_loss(self.model) if self.loss is None else self.loss
        evaluate = functools.partial(function, loss)
        values = ops.convert_to_numpy(
            call_compiled(self.model, (function, loss), evaluate, tensors)
        )
        if np.isnan(values).any():
            raise not_a_number(self.model)
        return values


def _margins(loss: Any, model: Any, tensors: dict[str, Any]) -> Any:
    """The smallest margin of each example's decisions."""
    classifier = Classifier(model, loss)
    outputs = classifier.outputs(tensors["x"])
    if "y" in tensors:
        labels = classifier.true_labels(tensors["y"], outputs)
    else:
        labels = classifier.predicted_labels(outputs)
    margins = classifier.margins(labels, outputs)
    return ops.min(ops.reshape(margins, (ops.shape(margins)[0], -1)), axis=-1)


def _losses(loss: Any, model: Any, tensors: dict[str, Any]) -> Any:
    classifier = Classifier(model, loss)
    outputs = classifier.outputs(tensors["x"])
    labels = classifier.true_labels(tensors["y"], outputs)
    losses = ops.softplus(classifier.log_odds_against(labels, outputs))
    return ops.mean(ops.reshape(losses, (ops.shape(losses)[0], -1)), axis=-1)
