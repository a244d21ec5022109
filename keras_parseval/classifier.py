"""A Keras model seen as a classifier: its logits, its loss on them, its decisions."""

import contextlib
import warnings

import keras
from keras import ops

_LOSSES = keras.losses
# How each cross-entropy of Keras wants its labels.
_ENCODINGS = {
    _LOSSES.SparseCategoricalCrossentropy: "integer",
    _LOSSES.CategoricalCrossentropy: "one-hot",
    _LOSSES.CategoricalFocalCrossentropy: "one-hot",
    _LOSSES.BinaryCrossentropy: "binary",
    _LOSSES.BinaryFocalCrossentropy: "binary",
}
_BY_NAME = {
    "sparse_categorical_crossentropy": _LOSSES.SparseCategoricalCrossentropy,
    "categorical_crossentropy": _LOSSES.CategoricalCrossentropy,
    "categorical_focal_crossentropy": _LOSSES.CategoricalFocalCrossentropy,
    "binary_crossentropy": _LOSSES.BinaryCrossentropy,
    "binary_focal_crossentropy": _LOSSES.BinaryFocalCrossentropy,
}
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

    def __init__(self, model, loss=None):
        self.model = model
        self.loss = _resolve_loss(model, loss)
        self.encoding = _encoding_of(self.loss)
        self.activated_layer = None
        self.returns_probabilities = False
        if self.encoding is not None and not self.loss.get_config()["from_logits"]:
            self._look_behind_the_activation()

    def _look_behind_the_activation(self):
        self.activated_layer = _activated_output_layer(self.model, self.encoding)
        self.returns_probabilities = self.activated_layer is None
        if self.returns_probabilities:
            warnings.warn(
                f"The model '{self.model.name}' returns probabilities, and its logits cannot be "
                "reached through the activation of a last layer. Attacks use the gradient of the "
                "probabilities, which vanishes where the model is sure: they are weaker than they "
                "could be. Return logits, and compile with `from_logits=True`.",
                stacklevel=2,
            )

    def outputs(self, inputs):
        """The model's outputs in inference mode, as logits if the loss is a cross-entropy."""
        layer = self.activated_layer
        with contextlib.nullcontext() if layer is None else without_activation(layer):
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
        """
        if self.encoding is None:
            return ops.sum(self.loss(labels, outputs))
        odds = self.log_odds_against(labels, outputs)
        several = any(size != 1 for size in odds.shape[1:])
        # Several decisions for an example are weighed by the true loss.
        return ops.sum(ops.softplus(odds) if several else odds)

    def log_odds_against(self, labels, outputs):
        """The logarithm of the odds that another class than the label is the right one."""
        if self.encoding == "binary":
            return outputs * (1.0 - 2.0 * ops.cast(labels, outputs.dtype))
        chosen = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        others = ops.logsumexp(outputs - 1e30 * chosen, axis=-1)
        return others - ops.sum(chosen * outputs, axis=-1)

    def margins(self, labels, outputs):
        """By how much the decision for the label wins, or, below zero, loses."""
        if self.encoding == "binary":
            return -self.log_odds_against(labels, outputs)
        chosen = ops.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype)
        others = ops.max(outputs - 1e30 * chosen, axis=-1)
        return ops.sum(chosen * outputs, axis=-1) - others

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
        if self.encoding == "one-hot":
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
        return ops.mean(ops.reshape(right, (ops.shape(right)[0], -1)), axis=-1)


def label_encoding(model, loss=None):
    """How a model's labels are encoded: `"integer"`, `"one-hot"`, `"binary"`, `None` if unknown."""
    return _encoding_of(_resolve_loss(model, loss))


def _encoding_of(loss):
    return next((name for kind, name in _ENCODINGS.items() if isinstance(loss, kind)), None)


def _check_model(model):
    if not isinstance(model, keras.Model):
        raise TypeError(f"The model must be a Keras model. Received: {type(model).__name__}")
    outputs = getattr(model, "outputs", None)
    if isinstance(getattr(model, "output", None), dict):
        raise ValueError(
            "The model must return a tensor, not a dictionary, to be attacked as a classifier; "
            f"make a `keras.Model` that returns the tensor. Received: model '{model.name}'"
        )
    if outputs is not None and len(outputs) != 1:
        raise ValueError(
            "The model must have one output to be attacked as a classifier; make a "
            "`keras.Model` of the inputs and the one output to attack. "
            f"Received: model '{model.name}' with {len(outputs)} outputs"
        )


def _resolve_loss(model, loss):
    _check_model(model)
    given = loss is not None
    if isinstance(loss, type) and not issubclass(loss, keras.losses.Loss):
        raise TypeError(
            "`loss` must be a loss of Keras, its name, or a function of labels and outputs. "
            f"Received: loss={loss!r}"
        )
    loss = keras.losses.get(loss if given else compiled_loss(model))
    loss = _BY_NAME.get(getattr(loss, "__name__", None), lambda: loss)()
    if not given and not isinstance(loss, tuple(_ENCODINGS)):
        raise ValueError(
            "Attacks need a classifier: a model compiled with a cross-entropy of Keras. For a "
            "classifier with another loss, pass the loss to the attack, as in "
            f"`FGSM(epsilon, loss=...)`. Received: model '{model.name}' compiled with loss={loss}"
        )
    return loss


def compiled_loss(model):
    """The loss that the model was compiled with, or an error that says what to do."""
    _check_model(model)
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    if isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    if loss is None or isinstance(loss, (list, tuple, dict)):
        raise ValueError(
            "The model must be compiled with a loss for its one output, which tells an attack "
            "what to increase: call `model.compile(loss=...)`, or pass the loss to the "
            f"attack, as in `FGSM(epsilon, loss=...)`. Received: model '{model.name}' with "
            f"loss={loss}"
        )
    return loss


def _activated_output_layer(model, encoding):
    """The layer whose softmax or sigmoid makes the model's output, if there is one."""
    if isinstance(model, keras.Sequential):
        layer = model.layers[-1]
    else:
        outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
        history = getattr(outputs[0], "_keras_history", None) if outputs else None
        layer = getattr(history, "operation", None)
    if isinstance(layer, keras.Model):
        return _activated_output_layer(layer, encoding)
    # In a layer that is used twice, the other activation is part of the model.
    if len(getattr(layer, "_inbound_nodes", [])) > 1:
        return None
    if isinstance(layer, keras.layers.Softmax):
        return layer if encoding != "binary" else None
    functions = {"binary": keras.activations.sigmoid}
    wanted = functions.get(encoding, keras.activations.softmax)
    applies_it_last = isinstance(layer, _ACTIVATED_LAYERS) and layer.activation is wanted
    return layer if applies_it_last else None


@contextlib.contextmanager
def without_activation(layer):
    """Let the layer return what it would have passed to its activation."""
    if isinstance(layer, keras.layers.Softmax):
        layer.call = lambda inputs, mask=None: inputs
        try:
            yield
        finally:
            del layer.call
        return
    activation, layer.activation = layer.activation, keras.activations.linear
    try:
        yield
    finally:
        layer.activation = activation
