"""The loss that a classifier was compiled with, and how it wants its labels."""

from typing import Any

import keras


class CrossentropyOfLogits(keras.losses.Loss):
    """The base of this library's own cross-entropies, that take logits and change them first.

    Labels are integers or one-hot vectors: their shape tells.
    """

    def adjust(self, logits: Any, chosen: Any) -> Any:
        """The logits whose cross-entropy it is; `chosen` are the labels as one-hot vectors."""
        raise NotImplementedError(f"{type(self).__name__} must implement `adjust`.")


_LOSSES = keras.losses
# How each cross-entropy of Keras wants its labels.
_ENCODINGS = {
    _LOSSES.SparseCategoricalCrossentropy: "integer",
    _LOSSES.CategoricalCrossentropy: "one-hot",
    _LOSSES.CategoricalFocalCrossentropy: "one-hot",
    _LOSSES.BinaryCrossentropy: "binary",
    _LOSSES.BinaryFocalCrossentropy: "binary",
    CrossentropyOfLogits: "either",
}
_BY_NAME = {
    "sparse_categorical_crossentropy": _LOSSES.SparseCategoricalCrossentropy,
    "categorical_crossentropy": _LOSSES.CategoricalCrossentropy,
    "categorical_focal_crossentropy": _LOSSES.CategoricalFocalCrossentropy,
    "binary_crossentropy": _LOSSES.BinaryCrossentropy,
    "binary_focal_crossentropy": _LOSSES.BinaryFocalCrossentropy,
}


def label_encoding(model: Any, loss: Any, labels: Any) -> str | None:
    """How labels are encoded: `"integer"`, `"one-hot"`, `"binary"`, `None` if unknown."""
    encoding = encoding_of(resolve_loss(model, loss))
    if encoding != "either":
        return encoding
    outputs = getattr(model, "outputs", None)
    # Where only data would tell the shape of the outputs, the labels' own values must do.
    one_hot = is_one_hot(labels, outputs[0]) if outputs else labels.ndim > 1 and (labels <= 1).all()
    return "one-hot" if one_hot else "integer"


def encoding_of(loss: Any) -> str | None:
    """How a loss wants its labels: as `label_encoding` says it, or `"either"` of the first two."""
    return next((name for kind, name in _ENCODINGS.items() if isinstance(loss, kind)), None)


def is_one_hot(labels: Any, logits: Any) -> bool:
    """Whether labels that may be integers are one-hot vectors, or other distributions."""
    return len(labels.shape) == len(logits.shape) and labels.shape[-1] == logits.shape[-1] != 1


def takes_logits(loss: Any) -> bool:
    """Whether a cross-entropy is one of logits, not of probabilities."""
    return isinstance(loss, CrossentropyOfLogits) or loss.get_config()["from_logits"]


def check_model(model: Any) -> None:
    """Raise unless this is a model with one output, a tensor."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            "The model must be a Keras model, and comes first, before the data. "
            f"Received: {type(model).__name__}"
        )
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


def resolve_loss(model: Any, loss: Any) -> Any:
    """The given loss, or that of the model, as an object of Keras or a function; or an error."""
    check_model(model)
    given = loss is not None
    if isinstance(loss, type) and not issubclass(loss, keras.losses.Loss):
        raise TypeError(
            "`loss` must be a loss of Keras, its name, or a function of labels and outputs. "
            f"Received: loss={loss!r}"
        )
    loss = keras.losses.get(loss if given else compiled_loss(model))
    loss = _BY_NAME.get(getattr(loss, "__name__", ""), lambda: loss)()
    if not given and not isinstance(loss, tuple(_ENCODINGS)):
        raise ValueError(
            "Attacks need a classifier: a model compiled with a cross-entropy of Keras. For a "
            "classifier with another loss, pass the loss to the attack, as in "
            f"`kp.FGSM(loss=...)`. Received: model '{model.name}' compiled with loss={loss}"
        )
    return loss


def compiled_loss(model: Any) -> Any:
    """The loss that the model was compiled with, or an error that says what to do."""
    check_model(model)
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    if isinstance(loss, (list, tuple, dict)) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    if loss is None or isinstance(loss, (list, tuple, dict)):
        raise ValueError(
            "The model must be compiled with a loss for its one output, which tells an attack "
            "what to increase: call `model.compile(loss=...)`, or pass the loss to the "
            f"attack, as in `kp.FGSM(loss=...)`. Received: model '{model.name}' with "
            f"loss={loss}"
        )
    return loss
