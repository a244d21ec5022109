"""What a reader of a model's bound should know of its weights."""

from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_parseval._keras_internals import layers_by_path
from keras_parseval._sets import constrained_weights
from keras_parseval.analysis._kernel_selection import misread_kernels
from keras_parseval.layers import ConvexAdd

# How far off its set a weight may be without a word, as in `kp.tighten`.
_TOLERANCE = 1e-3
# So many weights and branches are named.
_NAMED = 3


def model_notes(model: Any) -> Iterator[str]:
    """Sentences on weights that are off their sets or misread, and on branches at their floor."""
    off = [
        (each.distance, each.variable.path)
        for each in constrained_weights(model)
        if each.distance > _TOLERANCE
    ]
    if off:
        furthest = [f"'{path}' by {distance:.2g}" for distance, path in sorted(off, reverse=True)]
        yield f"Off its set: {_enumerate(furthest)}; kp.tighten(model) brings it there."
    for remedy, names in misread_kernels(model).items():
        yield f"Misread by its constraint: {_enumerate(names)}; pass {remedy}."
    branches = floored_branches(model)
    if branches:
        yield f"At its floor: {_enumerate(describe_branches(branches))}."


def floored_branches(model: Any) -> set[tuple[str, int]] | None:
    """The branches of `kp.ConvexAdd` layers whose coefficients are at their floor.

    Returns:
        Pairs of a layer, by the names that lead to it, and the index of one of its inputs;
        `None` if there is no such layer. A coefficient that is NaN is not at its floor.
    """
    sums = {
        path: layer
        for path, layer in layers_by_path(model)
        if isinstance(layer, ConvexAdd) and layer.built
    }
    if not sums:
        return None
    floored = set()
    for path, layer in sums.items():
        values = ops.convert_to_numpy(ops.cast(layer.coefficients, "float32"))
        # As a share of what there is to give, which is 1 less all floors.
        shares = (values - layer.floor / len(values)) / (1.0 - layer.floor)
        floored |= {(path, index) for index, share in enumerate(shares) if share < _TOLERANCE}
    return floored


def describe_branches(branches: set[tuple[str, int]]) -> list[str]:
    """The branches in words."""
    return [f"input {index} of '{path}'" for path, index in sorted(branches)]


def _enumerate(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
