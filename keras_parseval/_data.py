"""Batches from whatever a user of Keras calls data."""

import time

import keras
import numpy as np
from keras import ops

from keras_parseval._validation import check_integer


def batches_of(x, y, batch_size):
    """Pairs of inputs and labels, and how many there will be if that is known."""
    if y is not None:
        return _array_batches(x, y, batch_size)
    if isinstance(x, keras.utils.PyDataset):
        batches, total = (x[index] for index in range(len(x))), len(x)
    elif hasattr(x, "__iter__") and not hasattr(x, "dtype"):
        batches, total = iter(x), _length(x)
    else:
        raise ValueError(
            "Labels are needed to count right decisions; pass `y`, or a data set of batches "
            f"(x, y). Received: x of type {type(x).__name__}, y=None"
        )
    return (_unpack(batch) for batch in batches), total


def as_pair(data):
    """What a user calls data, as arrays `(x, y)`, or as the data set and `None`."""
    if isinstance(data, (list, tuple)) and len(data) == 2:
        return tuple(data)
    if data is None or isinstance(data, (list, tuple)) or hasattr(data, "__next__"):
        raise TypeError(
            "`data` must be arrays (x, y), or a data set of batches (x, y) that can be read more "
            f"than once. Received: data of type {type(data).__name__}"
        )
    return data, None


def first_batch(x, y):
    """The first batch of arrays or of a data set, or an error if there is none."""
    batches, _ = batches_of(x, y, batch_size=128)
    for batch in batches:
        return batch
    raise ValueError("There must be at least one example. Received: an empty data set")


def padded(arrays, size):
    """The arrays of a batch, with its last example repeated until there are `size`.

    A compiler takes another size for another function.
    """

    def pad(array):
        array = ops.convert_to_numpy(array)
        return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])

    return keras.tree.map_structure(pad, arrays)


def _length(dataset):
    try:
        return len(dataset)
    except TypeError:  # a generator, or a tf.data pipeline of unknown length
        return None


def _unpack(batch):
    x, y, _ = keras.utils.unpack_x_y_sample_weight(tuple(batch))
    if y is None:
        raise ValueError(
            "A data set must consist of batches (x, y), with labels to count right decisions by. "
            "Received: a batch without labels"
        )
    return x, y


def _array_batches(x, y, batch_size):
    check_integer("batch_size", batch_size, "a positive integer", lambda value: value > 0)
    count = len(y)
    lengths = {len(each) for each in keras.tree.flatten(x)}
    if lengths != {count}:
        raise ValueError(
            "Inputs and labels must have the same number of examples. "
            f"Received: {sorted(lengths)} inputs and {count} labels"
        )
    slices = [slice(start, start + batch_size) for start in range(0, count, batch_size)]

    def take(part):
        return keras.tree.map_structure(lambda each: each[part], x), y[part]

    return map(take, slices), len(slices)


class Progress:
    """A progress bar, or none, or one that appears when it is worth the space."""

    def __init__(self, total, verbose):
        if verbose not in (0, 1, "auto"):
            raise ValueError(f'`verbose` must be 0, 1 or "auto". Received: verbose={verbose!r}')
        self.total, self.verbose = total, verbose
        self.start, self.done, self.bar = time.monotonic(), 0, None

    def advance(self):
        self.done += 1
        long = self.verbose == "auto" and time.monotonic() - self.start > 5
        if self.bar is None and (self.verbose == 1 or long):
            self.bar = keras.utils.Progbar(self.total, unit_name="batch")
        if self.bar is not None:
            self.bar.update(self.done)
