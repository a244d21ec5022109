"""Certificates: perturbations below a size that cannot change a decision, whatever the attack."""

import contextlib
import functools
import math

import keras
import numpy as np
from keras import ops

from keras_parseval._attack_checks import check_finite, check_labels, not_a_number
from keras_parseval._backend import call_compiled
from keras_parseval._data import as_pair, batches_of
from keras_parseval.analysis.lipschitz import bound_of
from keras_parseval.classifier import Classifier, compiled_loss, without_activation
from keras_parseval.noise import check_levels
from keras_parseval.robustness import RobustAccuracy


def certified_radius(model, x, y=None, norm=2, method="paper", loss=None, batch_size=128):
    """The size of perturbation up to which a decision is certain not to change, for each example.

    The logits move by at most the Lipschitz bound times the perturbation, and the decision stands
    as long as its margin over the next class is left. The radius is
    `margin / (sqrt(2) L)` in the 2-norm, with `L` the bound up to the logits, and
    `margin / (2 L)` in the inf-norm; `margin / L` in both for a sigmoid unit.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs.
        y: The labels; `None` for the model's own decisions.
        norm: The norm that perturbations are measured in, `"inf"` or 2.
        method: As in `kp.lipschitz_bound`; `"operator"` gives larger radii with convolutions.
        loss: As in `kp.FGSM`, for a model that is not compiled with a cross-entropy.
        batch_size: Number of examples at a time.

    Returns:
        Array with one radius for each example, in the units of the model's input; 0 where the
        decision is not for the label.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    kp.certified_radius(model, keras.random.uniform((16, 8)))
    ```
    """
    certificate = _Certificate(model, norm, method, loss)
    # Where no labels are given these stand in for them, and are not read.
    labels = np.zeros(len(keras.tree.flatten(x)[0])) if y is None else y
    batches, _ = batches_of(x, labels, batch_size)
    radii = [certificate.radii(inputs, None if y is None else own) for inputs, own in batches]
    return np.concatenate([np.zeros(0), *radii])


def certified_accuracy(model, data, epsilon, norm=2, method="paper", loss=None, batch_size=128):
    """The share of examples that are right, and certain to stay right, at several sizes of attack.

    No attack of that size, known or not yet known, brings the accuracy below this number.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        data: Arrays `(x, y)`, or a data set of batches `(x, y)`.
        epsilon: One or several sizes of perturbation, in the units of the model's input.
        norm: The norm that these are measured in, `"inf"` or 2.
        method: As in `kp.lipschitz_bound`.
        loss: As in `kp.FGSM`.
        batch_size: Number of examples at a time, where the data is arrays.

    Returns:
        A `kp.RobustAccuracy`, with the levels in `epsilon`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    print(kp.certified_accuracy(model, (x, y), epsilon=(0.01, 0.1)))
    ```
    """
    levels = check_levels("epsilon", epsilon)
    certificate = _Certificate(model, norm, method, loss)
    batches, _ = batches_of(*as_pair(data), batch_size)
    radii = [certificate.radii(inputs, labels) for inputs, labels in batches]
    radii = np.concatenate([np.zeros(0), *radii])
    if not len(radii):
        raise ValueError("There must be at least one example. Received: an empty data set")
    clean, *accuracies = (float((radii > level).mean()) for level in [0.0, *levels])
    name = f"certified (norm {certificate.norm}, method '{method}')"
    return RobustAccuracy(clean, "epsilon", tuple(levels), tuple(accuracies), name, len(radii))


def adversarial_loss_bound(model, data, epsilon, norm=2, method="paper", loss=None, batch_size=128):
    """A bound of the mean log-loss under any attack: `L_adv <= L + l L_model epsilon`.

    Here `L` is the mean log-loss on the clean data, `L_model` the Lipschitz bound up to the
    logits, and `l` that of the log-loss: `sqrt(2)` in the 2-norm and 2 in the
    inf-norm, or 1 for sigmoid units.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        data: Arrays `(x, y)`, or a data set of batches `(x, y)`.
        epsilon: Size of the perturbation, in the units of the model's input.
        norm: As in `kp.certified_radius`.
        method: As in `kp.lipschitz_bound`.
        loss: As in `kp.FGSM`.
        batch_size: Number of examples at a time, where the data is arrays.

    Returns:
        The bound, a number.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    kp.adversarial_loss_bound(model, (x, y), epsilon=0.1)
    ```
    """
    (epsilon,) = check_levels("epsilon", [epsilon])
    certificate = _Certificate(model, norm, method, loss)
    batches, _ = batches_of(*as_pair(data), batch_size)
    losses = [certificate.losses(inputs, labels) for inputs, labels in batches]
    if not losses:
        raise ValueError("There must be at least one example. Received: an empty data set")
    return float(np.concatenate(losses).mean()) + certificate.constant * epsilon


class _Certificate:
    """A classifier, and how fast the difference of two of its logits can change."""

    def __init__(self, model, norm, method, loss):
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
        with contextlib.nullcontext() if layer is None else without_activation(layer):
            bound = bound_of(model, norm, method, linear_layer=softmax)
        self.norm = bound.norm
        several = 2.0 if bound.norm == "inf" else math.sqrt(2.0)
        self.constant = bound.bound * (1.0 if self.classifier.encoding == "binary" else several)

    def radii(self, inputs, labels):
        """The certified radius of each example."""
        margins = self._evaluate(_margins, inputs, labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A constant network never changes its mind.
            return np.where(margins > 0, margins / self.constant, 0.0)

    def losses(self, inputs, labels):
        """The log-loss of each example."""
        if self.classifier.encoding is None:
            raise ValueError(
                "The bound is one of the log-loss; compile the model with a cross-entropy of "
                f"Keras, or pass one as `loss`. Received: loss={self.loss}"
            )
        return self._evaluate(_losses, inputs, labels)

    def _evaluate(self, function, inputs, labels):
        check_finite(inputs)
        if labels is not None:
            check_labels(self.model, self.loss, labels, len(keras.tree.flatten(inputs)[0]))
        tensors = {"x": inputs} if labels is None else {"x": inputs, "y": labels}
        loss = compiled_loss(self.model) if self.loss is None else self.loss
        evaluate = functools.partial(function, loss)
        values = ops.convert_to_numpy(
            call_compiled(self.model, (function, loss), evaluate, tensors)
        )
        if np.isnan(values).any():
            raise not_a_number(self.model)
        return values


def _margins(loss, model, tensors):
    """The smallest margin of each example's decisions."""
    classifier = Classifier(model, loss)
    outputs = classifier.outputs(tensors["x"])
    if "y" in tensors:
        labels = classifier.true_labels(tensors["y"], outputs)
    else:
        labels = classifier.predicted_labels(outputs)
    margins = classifier.margins(labels, outputs)
    return ops.min(ops.reshape(margins, (ops.shape(margins)[0], -1)), axis=-1)


def _losses(loss, model, tensors):
    classifier = Classifier(model, loss)
    outputs = classifier.outputs(tensors["x"])
    labels = classifier.true_labels(tensors["y"], outputs)
    losses = ops.softplus(classifier.log_odds_against(labels, outputs))
    return ops.mean(ops.reshape(losses, (ops.shape(losses)[0], -1)), axis=-1)
