"""A Keras model seen as a classifier: its logits, its loss on them, its decisions."""

import contextlib
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled, fast_pooling
from keras_parseval._compiled_loss import (
    CrossentropyOfLogits,
    encoding_of,
    is_one_hot,
    resolve_loss,
    takes_logits,
)
from keras_parseval._keras_internals import calls_of, layers_by_path, output_layer
from keras_parseval._lending import lend

# Layers that return what their activation returns.
_ACTIVATED_LAYERS = (
    keras.layers.Activation,
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)


class Classifier:
    """What an attack needs to know of a model.

    Args:
        model: A Keras model with one output.
        loss: `None` for the cross-entropy that the model was compiled with, another
            cross-entropy, or any function `loss(y_true, y_pred)` of integer labels and the
            model's output as it is.
    """

    def __init__(self, model: Any, loss: Any = None):
        self.model = model
        self.loss = resolve_loss(model, loss)
        self.encoding = encoding_of(self.loss)
        self.activated_layer = None
        self.returns_probabilities = False
        layers = [layer for _, layer in layers_by_path(model)]
        self.pools_images = any(isinstance(layer, keras.layers.MaxPooling2D) for layer in layers)
        if isinstance(self.loss, CrossentropyOfLogits):
            self._check_logits()
        elif self.encoding is not None and not takes_logits(self.loss):
            self._look_behind_the_activation()

    def _check_logits(self):
        for kind in ("integer", "binary"):
            layer = _activated_output_layer(self.model, kind)
            if layer is not None:
                raise ValueError(
                    f"A model with the loss `{type(self.loss).__name__}` must return logits; leave "
                    "out the softmax or sigmoid of its last layer. "
                    f"Received: model '{self.model.name}', which ends with it in '{layer.name}'"
                )

    def _look_behind_the_activation(self):
        self.activated_layer = _activated_output_layer(self.model, self.encoding)
        self.returns_probabilities = self.activated_layer is None
        if self.returns_probabilities:
            warnings.warn(
                f"The model '{self.model.name}' returns probabilities, and its logits cannot be "
                "reached through the activation of a last layer. Attacks use the gradient of the "
                "probabilities, which vanishes where the model is sure: they are weaker than they "
                "could be. Return logits, and compile with `from_logits=True`.",
                stacklevel=3,
            )

    def check_probabilities(self, inputs: Any = None) -> None:
        """Raise if the model should return probabilities for these inputs, and does not.

        Called outside of compiled code. It runs the model only if that cannot be told from its
        last layer.

        Args:
            inputs: The inputs; `None` for random ones, if the model tells their shape.
                Defaults to `None`.
        """
        if not self.returns_probabilities:
            return
        if inputs is None:
            inputs = _random_inputs(self.model)
        if inputs is None:
            return

        def infer(model: Any, inputs: Any) -> Any:
            return ops.cast(model(inputs, training=False), "float32")

        outputs = ops.convert_to_numpy(call_compiled(self.model, "outputs", infer, inputs))
        total = np.ones(1) if self.encoding == "binary" else outputs.sum(axis=-1)
        # As far off as half precision can be. What is not a number is found elsewhere.
        if (abs(outputs - 0.5) > 0.51).any() or (abs(total - 1.0) > 0.02).any():
            raise ValueError(
                "A model whose loss has `from_logits=False` must return probabilities: numbers "
                "from 0 to 1 that sum to 1 over the classes. If it returns logits, compile it with "
                "`from_logits=True`, as in "
                "`keras.losses.SparseCategoricalCrossentropy(from_logits=True)`. "
                f"Received: model '{self.model.name}', with outputs from {outputs.min():.4g} to "
                f"{outputs.max():.4g}"
            )

    def outputs(self, inputs):
        """The model's outputs in inference mode, as logits if the loss is a cross-entropy."""
        pooling = fast_pooling() if self.pools_images else contextlib.nullcontext()
        with pooling, without_activation(self.activated_layer):
            outputs = ops.cast(self.model(inputs, training=False), "float32")
        if not self.returns_probabilities:
            return outputs
        outputs = ops.clip(outputs, 1e-7, 1.0 - 1e-7)
        logits = ops.log(outputs)
        return logits - ops.log1p(-outputs) if self.encoding == "binary" else logits

    def total_loss(self, labels, outputs):
        """A sum over the examples, whose gradient has the direction of the loss's, for each.

        Cross-entropy is `softplus(m)`, where `m` are the log-odds against the label. Its gradient
        is `sigmoid(m)` times that of `m`: the same direction, but zero in floating
        point where the model is sure. So `m` itself is what an attack should raise.

        With `kp.losses.MarginCrossentropy` these are the odds at its temperature. Its margin
        changes `m` by a constant, and no direction.
        """
        if self.encoding is None:
            return ops.sum(self.loss(labels, outputs))
        odds = self.log_odds_against(labels, outputs)
        several = any(size != 1 for size in odds.shape[1:])
        # Several decisions for an example are weighed by the true loss.
        return ops.sum(ops.softplus(odds) if several else odds)

    def losses(self, labels, outputs):
        """For each example a loss to raise: as in `total_loss`, but one by one."""
        if self.encoding is None:
            function = getattr(self.loss, "call", self.loss)
            losses = function(labels, outputs)
            if not len(losses.shape):
                raise ValueError(
                    "This attack needs a loss for each example, not their mean; return one number "
                    f"for each from the loss. Received: loss={self.loss}"
                )
        else:
            losses = self.log_odds_against(labels, outputs)
            if any(size != 1 for size in losses.shape[1:]):
                losses = ops.softplus(losses)
        return mean_by_example(losses)

    def log_odds_against(self, labels, outputs):
        """The logarithm of the odds that another class than the label is right, to the loss."""
        if self.encoding == "binary":
            return outputs * (1.0 - 2.0 * ops.cast(labels, outputs.dtype))
        chosen = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        if isinstance(self.loss, CrossentropyOfLogits):
            outputs = self.loss.adjust(outputs, chosen)
        others = ops.logsumexp(outputs - 1e30 * chosen, axis=-1)
        return others - ops.sum(chosen * outputs, axis=-1)

    def margins(self, labels, outputs):
        """By how much the decision for the label wins, or, below zero, loses."""
        if self.encoding == "binary":
            return -self.log_odds_against(labels, outputs)
        chosen = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        others = ops.max(outputs - 1e30 * chosen, axis=-1)
        return ops.sum(chosen * outputs, axis=-1) - others

    def success(self, labels, outputs):
        """For each example a number that is larger the more the decisions turn from the labels.

        Above zero, an example with one decision is decided otherwise.
        """
        margins = self.margins(labels, outputs)
        if len(margins.shape) == 1:
            return -margins
        margins = ops.reshape(margins, (ops.shape(margins)[0], -1))
        if self.encoding == "binary" or margins.shape[-1] == 1:
            return -ops.min(margins, axis=-1)
        return ops.mean(ops.softplus(-margins), axis=-1)

    def predicted_labels(self, outputs):
        """The most likely classes; for binary classifiers, 0 or 1 for each unit."""
        if self.encoding == "binary":
            return ops.cast(outputs > 0, "int32")
        if outputs.shape[-1] == 1:
            raise ValueError(
                "A classifier with one unit must have a binary cross-entropy, which says what its "
                'output means; pass `loss="binary_crossentropy"` to the attack. '
                f"Received: loss={self.loss}"
            )
        return ops.argmax(outputs, axis=-1)

    def least_likely_labels(self, outputs):
        """The least likely classes."""
        if self.encoding == "binary":
            return ops.cast(outputs <= 0, "int32")
        return ops.argmin(outputs, axis=-1)

    def true_labels(self, y, outputs):
        """The given labels, from whatever encoding the loss takes, as classes."""
        if self.encoding == "one-hot" or (self.encoding == "either" and is_one_hot(y, outputs)):
            return ops.argmax(y, axis=-1)
        rank = len(outputs.shape) - (self.encoding != "binary")
        if len(y.shape) != rank:
            # Keras takes labels of shape (n, 1) for (n,), and the reverse.
            y = ops.squeeze(y, -1) if len(y.shape) > rank else ops.expand_dims(y, -1)
        if self.encoding == "binary":
            y = ops.cast(y, outputs.dtype) > 0.5
        return ops.cast(y, "int32")

    def correct(self, y, outputs):
        """For each example, 1 if the decision is right (or the fraction of those that are)."""
        labels, decided = self.true_labels(y, outputs), self.predicted_labels(outputs)
        right = ops.cast(decided == ops.cast(labels, decided.dtype), "float32")
        if self.encoding == "binary":
            right = ops.min(right, axis=-1)
        return mean_by_example(right)


def mean_by_example(values: Any) -> Any:
    """One number for each example, the mean where it has several."""
    if len(values.shape) == 1:
        return values
    return ops.mean(ops.reshape(values, (ops.shape(values)[0], -1)), axis=-1)


def not_a_number(model: Any) -> ValueError:
    """The error for a model that makes NaN of finite inputs."""
    return ValueError(
        "The outputs and gradients of the model must be numbers; look for NaN and infinity in its "
        f"weights, and for an epsilon out of all proportion. Received: NaN from '{model.name}'"
    )


def _random_inputs(model: Any) -> Any:
    """A few inputs that the model takes, or `None` where it does not tell their shape."""
    inputs = getattr(model, "inputs", None) or [None]
    if any(each is None or None in each.shape[1:] or each.dtype == "string" for each in inputs):
        return None
    rng = np.random.default_rng(0)
    # Of these, tokens are 0 or 1.
    arrays = [rng.uniform(high=2.0, size=(each.shape[0] or 8, *each.shape[1:])) for each in inputs]
    tensors = [ops.cast(array, each.dtype) for array, each in zip(arrays, inputs)]
    sequential = isinstance(model, keras.Sequential)
    return tensors[0] if sequential else keras.tree.pack_sequence_as(model.input, tensors)


def _activated_output_layer(model, encoding):
    """The layer whose softmax or sigmoid makes the model's output, if there is one."""
    layer = output_layer(model)
    # In a layer that is used twice, the other activation is part of the model.
    if len(calls_of(layer)) > 1:
        return None
    if isinstance(layer, keras.layers.Softmax):
        return layer if encoding != "binary" else None
    functions = {"binary": keras.activations.sigmoid}
    wanted = functions.get(encoding, keras.activations.softmax)
    applies_it_last = isinstance(layer, _ACTIVATED_LAYERS) and layer.activation is wanted
    return layer if applies_it_last else None


def without_activation(layer: Any) -> contextlib.AbstractContextManager[None]:
    """Within this context, the layer returns what it would have passed to its activation."""
    if layer is None:
        return contextlib.nullcontext()
    if isinstance(layer, keras.layers.Softmax):
        return lend(layer, call=lambda inputs, mask=None: inputs)
    return lend(layer, activation=keras.activations.linear)
