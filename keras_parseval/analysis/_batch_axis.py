"""The axis of the examples, which an operation must leave alone to have a constant."""

import math

import numpy as np


def check_axes(operation, axis, call):
    """The axes that an operation works on, counted from 0; none of them may be the batch's.

    Args:
        operation: The layer or operation.
        axis: An axis, several, or `None` for all, counted with the batch axis.
        call: The `LayerCall`.
    """
    rank = len(call.input_shapes[0]) + 1
    axes = range(rank) if axis is None else np.atleast_1d(axis).tolist()
    axes = sorted({each % rank for each in axes})
    if 0 in axes:
        raise mixes_examples(operation, f"axis={axis}")
    return axes


def mixes_examples(operation, received):
    """The error for what would make the output for an example depend on others."""
    return ValueError(
        "What works along the batch axis, axis 0, has no Lipschitz constant for an example; name "
        f"the other axes. Received: '{operation.name}' of class {type(operation).__name__} with "
        f"{received}"
    )


def check_known(operation, *shapes):
    """Raise unless the shapes are known."""
    if any(None in shape for shape in shapes):
        raise ValueError(
            "The Lipschitz constant depends on the size of the input; give the model's inputs a "
            f"fixed shape. Received: '{operation.name}' of class {type(operation).__name__} with "
            f"shapes {shapes}"
        )


def count(operation, axes, call):
    """The number of elements along some axes of the first input."""
    sizes = [call.input_shapes[0][axis - 1] for axis in axes]
    check_known(operation, sizes)
    return math.prod(sizes)
