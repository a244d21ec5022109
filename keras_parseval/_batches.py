"""Batches of examples from whatever a user of Keras calls data, and all checks of examples."""

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._compiled_loss import label_encoding
from keras_parseval._validation import check_integer


class Examples:
    """Data as `model.evaluate` takes it, read in batches, each of which is checked.

    Args:
        x: Arrays, one or a structure of several; a pair `(x, y)` of such; or a data set
            of batches `(x, y)`. Lists of numbers are taken for arrays.
        y: The labels, where `x` is arrays.
        batch_size: Number of examples at a time, where `x` is arrays.
        labels: Whether there must be labels. Where there need not be, they may be `None`.
        check_labels: Called with the labels of a batch and the number of its examples.

    Iterating gives pairs of inputs and labels, and fails if there is no example at all.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 128,
        labels: bool = True,
        check_labels: Callable[[Any, int], None] | None = None,
    ):
        self.batch_size = check_integer(
            "batch_size", batch_size, "a positive integer", lambda value: value > 0
        )
        self.x, self.y = _as_pair(x, y)
        self.labels, self.check_labels = labels, check_labels
        self.is_data_set = self.y is None and _is_data_set(self.x)
        if labels and self.y is None and not self.is_data_set:
            raise ValueError(
                "Labels are needed here; pass `y`, or a data set of batches (x, y). "
                f"Received: x of type {type(x).__name__}, y=None"
            )
        if not self.is_data_set:
            self.size = _common_length(self.x, self.y)

    @property
    def total(self) -> int | None:
        """The number of batches, if it is known."""
        if not self.is_data_set:
            return math.ceil(self.size / self.batch_size)
        try:
            return len(self.x)
        except TypeError:  # a generator, or a tf.data pipeline of unknown length
            return None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        empty = True
        for inputs, labels in self._batches():
            count = _common_length(inputs, labels)
            if not count:
                continue
            empty = False
            check_finite(inputs)
            if labels is not None and self.check_labels is not None:
                self.check_labels(labels, count)
            yield inputs, labels
        if empty:
            raise ValueError("There must be at least one example. Received: an empty data set")

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        if self.is_data_set:
            is_indexed = isinstance(self.x, keras.utils.PyDataset)
            batches = map(self.x.__getitem__, range(len(self.x))) if is_indexed else self.x
            yield from map(self._unpack, batches)
            return
        for start in range(0, self.size, self.batch_size):
            part = slice(start, start + self.batch_size)
            x = keras.tree.map_structure(operator.itemgetter(part), self.x)
            yield x, None if self.y is None else self.y[part]

    def _unpack(self, batch: Any) -> tuple[Any, Any]:
        batch = tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        if y is None and self.labels:
            raise ValueError(
                "A data set must consist of batches (x, y), with the labels that are needed here. "
                "Received: a batch without labels"
            )
        x, y = as_inputs(x), as_labels(y)
        if y is not None and not np.ndim(y):
            raise ValueError(
                "A data set must consist of batches (x, y); batch its examples, as in "
                f"`dataset.batch(128)`. Received: single examples, with a label such as {y}"
            )
        return x, y


def _as_pair(x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs, or a data set, and labels."""
    if y is None and isinstance(x, tuple):
        if len(x) != 2:
            raise TypeError(
                "Data must be arrays x and y, a pair (x, y), or a data set of batches (x, y). "
                f"Received: a tuple of {len(x)}"
            )
        x, y = x
    if x is None:
        raise TypeError("Data must be arrays, or a data set of batches (x, y). Received: x=None")
    return as_inputs(x), as_labels(y)


def as_inputs(x: Any) -> Any:
    """Inputs, with a list of numbers made into an array, and a list of arrays left as it is."""
    holds_numbers = isinstance(x, list) and x
    if not holds_numbers or any(hasattr(each, "shape") for each in keras.tree.flatten(x)):
        return x
    array = np.asarray(x)
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def as_labels(y: Any) -> Any:
    """Labels, with a list made into an array."""
    return y if y is None or hasattr(y, "shape") else np.asarray(y)


def _is_data_set(x: Any) -> bool:
    """Whether this is read batch by batch; otherwise it is arrays."""
    if isinstance(x, keras.utils.PyDataset):
        return True
    if isinstance(x, list):
        return not x or any(isinstance(each, (list, tuple)) for each in x)
    return hasattr(x, "__iter__") and not hasattr(x, "shape") and not isinstance(x, (dict, str))


def _common_length(x: Any, y: Any) -> int:
    """The number of examples, the same in all arrays."""
    inputs = {_length(each) for each in keras.tree.flatten(x)}
    count = max(inputs, default=0) if y is None else _length(y)
    if inputs != {count}:
        labels = "" if y is None else f" and {count} labels"
        raise ValueError(
            "Inputs and labels must have the same number of examples; a data set must consist "
            "of batches, as `dataset.batch(128)` makes them. "
            f"Received: {sorted(inputs)} inputs{labels}"
        )
    return count


def _length(array: Any) -> int:
    if not np.ndim(array) and not getattr(array, "shape", None):
        raise TypeError(
            "Inputs and labels must be arrays or tensors, with the examples along the first axis. "
            f"Received: {array!r} of type {type(array).__name__}"
        )
    return len(array)


def padded(arrays: Any, size: int) -> Any:
    """The arrays of a batch, with its last example repeated until there are `size`.

    A compiler takes another size for another function.
    """

    def pad(array: Any) -> np.ndarray:
        array = ops.convert_to_numpy(array)
        return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])

    return keras.tree.map_structure(pad, arrays)


def check_finite(inputs: Any) -> None:
    """Raise if an input holds NaN or infinity, which spread to whatever is computed from it."""
    for array in map(ops.convert_to_numpy, keras.tree.flatten(inputs)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                "The inputs must be finite; look for NaN in the data. "
                "Received: inputs with NaN or infinity"
            )


def check_labels(model: Any, loss: Any, y: Any, count: int) -> None:
    """Raise unless these can be the labels of so many examples, in the encoding of the loss."""
    labels = ops.convert_to_numpy(y)
    by_number = label_encoding(model, loss, labels) in ("integer", None)
    output = _output_shape(model, labels, by_number)
    shape = (count, *(output[1:-1] if by_number else output[1:]))
    if labels.dtype.kind not in "biuf" or not _same_shape(labels.shape, shape):
        raise ValueError(
            "Labels must be numbers, in the shape that the loss takes for this model and these "
            f"inputs, {shape}. Received: labels of shape {labels.shape} and dtype {labels.dtype}"
        )
    # What is wrong with a single unit, the classifier itself says better.
    unknown = output[-1] in (None, 1)
    largest = 1 if not by_number else math.inf if unknown else output[-1] - 1
    whole = not by_number or (labels == np.floor(labels)).all()
    if labels.size and not (whole and labels.min() >= 0 and labels.max() <= largest):
        end = "on" if largest == math.inf else f"to {largest}"
        rule = f"the numbers of classes, from 0 {end}" if by_number else "between 0 and 1"
        raise ValueError(
            f"Labels must be {rule}, because a classifier is attacked on its decisions; the "
            "targets of a regression have none. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )


def _output_shape(model: Any, labels: np.ndarray, by_number: bool) -> tuple[Any, ...]:
    """The shape of the model's output; where only data would tell, of one that fits the labels."""
    outputs = getattr(model, "outputs", None)
    if outputs:
        return tuple(outputs[0].shape)
    return (None, *labels.shape[1:], None) if by_number else labels.shape


def _same_shape(shape: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    shape, other = _without_last_one(shape), _without_last_one(other)
    return len(shape) == len(other) and all(a == b or b is None for a, b in zip(shape, other))


def _without_last_one(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    # Keras takes labels of shape (n, 1) for (n,), and the reverse.
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
