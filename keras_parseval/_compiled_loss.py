"""The loss that a classifier was compiled with, and how it wants its labels."""

from typing import Any

import keras

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


def label_encoding(model: Any, loss: Any = None) -> str | None:
    """How a model's labels are encoded: `"integer"`, `"one-hot"`, `"binary"`, `None` if unknown."""
    return encoding_of(resolve_loss(model, loss))


def encoding_of(loss: Any) -> str | None:
    """How a loss wants its labels: as `label_encoding` says it."""
    return next((name for kind, name in _ENCODINGS.items() if isinstance(loss, kind)), None)


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
