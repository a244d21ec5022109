"""What becomes of each layer of a model that is made Parseval, and why."""

import collections
import dataclasses
import fnmatch
from collections.abc import Iterator
from typing import Any

import keras

from keras_parseval._keras_internals import (
    calls_of,
    check_graph,
    is_graph,
    last_operations,
    lineages_of,
)
from keras_parseval._layer_kernels import LayerKernel, layer_kernels
from keras_parseval._validation import check_flag
from keras_parseval.constraints import ParsevalTightFrame
from keras_parseval.layers import ConvexAdd

_NORM_PENALTIES = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
# Layers, and operations of `keras.ops`, that may stand between a classifier and the output.
_AFTER_A_CLASSIFIER = frozenset(
    "Activation ReLU Relu LeakyReLU PReLU ELU Elu Softmax LogSoftmax Sigmoid Tanh MaxMin Identity "
    "Dropout Flatten Reshape Permute Transpose Squeeze ExpandDims Cast GlobalAveragePooling1D "
    "GlobalAveragePooling2D GlobalAveragePooling3D".split()
)
_CLASSIFIER = "the classifier; give it weight decay"
_SKIPPED = "skipped"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is done with one kernel, or with one sum: `becomes` is `None` where it is left alone."""

    path: str
    layer: Any
    kernel: LayerKernel | None
    becomes: type | None
    note: str = ""

    def to_row(self) -> dict[str, Any]:
        return {
            "layer": self.path,
            "class": type(self.layer).__name__,
            "weight": self.kernel and self.kernel.attribute,
            "becomes": self.becomes and self.becomes.__name__,
            "note": self.note,
        }


def decide(model: Any, merge: bool, skip: Any) -> list[Decision]:
    """The decision for each kernel and sum of a model."""
    check_graph(model)
    check_flag("merge", merge)
    lineages = list(lineages_of(model))
    skipped = _find_skipped(skip, lineages)
    last = last_operations(model, _may_follow_a_classifier)
    classifiers = {operation for operation in last if layer_kernels(operation)}
    decisions: list[Decision] = []
    # In reverse, so that a layer that is met twice goes by the first of its paths.
    paths = {lineage[-1]: _path(lineage) for lineage in reversed(lineages)}
    for layer in dict.fromkeys(lineage[-1] for lineage in lineages):
        reason = _SKIPPED if layer in skipped else _CLASSIFIER if layer in classifiers else ""
        decisions += _decide_layer(paths[layer], layer, reason, merge)
    return decisions


def _decide_layer(path: str, layer: Any, reason: str, merge: bool) -> Iterator[Decision]:
    kernels = layer_kernels(layer)
    for kernel in kernels:
        note = reason or _obstacle(kernel)
        becomes = None if note else ParsevalTightFrame
        yield Decision(path, layer, kernel, becomes, note or _dropped_penalty(kernel))
    if _is_sum(layer):
        note = reason or ("" if merge else "merge=False") or _obstacle_to_merge(layer)
        yield Decision(path, layer, None, None if note else ConvexAdd, note)
    elif not kernels and not is_graph(layer) and _holds_matrices(layer):
        yield Decision(path, layer, None, None, reason or "no layer with known kernels")


def _obstacle(kernel: LayerKernel) -> str:
    """Why a kernel cannot be constrained, or an empty string."""
    if kernel.constraint is not None:
        return f"it has a constraint already, {type(kernel.constraint).__name__}"
    variable = kernel.variable
    if not isinstance(variable, keras.Variable) or not keras.backend.is_float_dtype(variable.dtype):
        return "it is quantized, or adapted by LoRA"
    return ""


def _is_sum(operation: Any) -> bool:
    """Whether it is `keras.layers.Add`, or a `+` between two tensors."""
    if type(operation).__name__ != "Add":
        return False
    return len(calls_of(operation)[0].inputs) > 1


def _obstacle_to_merge(layer: Any) -> str:
    """Why a sum cannot become convex, or an empty string."""
    if not isinstance(layer, keras.layers.Add):
        return "an operation holds no coefficients; write `keras.layers.Add()([x, y])`"
    shapes = [[tuple(x.shape) for x in call.inputs] for call in calls_of(layer)]
    if len({len(each) for each in shapes}) > 1:
        return "it is called on different numbers of inputs"
    try:
        for each in shapes:
            ConvexAdd().compute_output_shape(each)
    except ValueError:
        return f"its inputs differ in shape, {shapes[0]}"
    return ""


def norm_penalty(kernel: LayerKernel) -> Any:
    """The L1 or L2 regularizer of a kernel, which pulls against the constraint, or `None`."""
    regularizer = getattr(kernel.layer, f"{kernel.prefix}_regularizer")
    return regularizer if isinstance(regularizer, _NORM_PENALTIES) else None


def _dropped_penalty(kernel: LayerKernel) -> str:
    penalty = norm_penalty(kernel)
    return f"without its {type(penalty).__name__} regularizer" if penalty else ""


def _holds_matrices(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Layer) and any(
        len(weight.shape) > 1 for weight in layer.weights
    )


def _path(lineage: tuple[Any, ...]) -> str:
    return "/".join(operation.name for operation in lineage)


def _may_follow_a_classifier(operation: Any) -> bool:
    return type(operation).__name__ in _AFTER_A_CLASSIFIER and not layer_kernels(operation)


def _find_skipped(skip: Any, lineages: list[tuple[Any, ...]]) -> set[Any]:
    """All layers that `skip` means, by themselves or by a model around them."""
    skipped: set[Any] = set()
    for entry in tuple(skip) if isinstance(skip, (list, tuple, set)) else (skip,):
        if not isinstance(entry, (str, type)):
            raise TypeError(
                "`skip` must hold names (or patterns) of layers, and classes of layers. "
                f"Received: {entry!r} of type {type(entry).__name__}"
            )
        matches = {lineage[-1] for lineage in lineages if _matches(entry, lineage)}
        if not matches:
            names = ", ".join(_path(lineage) for lineage in lineages)
            raise ValueError(
                f"Every entry of `skip` must match a layer. Received: {entry!r}, which matches "
                f"none of {names}"
            )
        skipped |= matches
    return skipped


def _matches(entry: str | type, lineage: tuple[Any, ...]) -> bool:
    """Whether an entry of `skip` means this layer, or a model around it."""
    if isinstance(entry, type):
        return any(isinstance(operation, entry) for operation in lineage)
    names = [_path(lineage), *(operation.name for operation in lineage)]
    return any(fnmatch.fnmatchcase(name, entry) for name in names)


def summary_of(model: Any, decisions: list[Decision]) -> str:
    """A line for all decisions of a kind, with the names of the layers that were left alone."""
    kinds: dict[tuple[Any, ...], list[str]] = collections.defaultdict(list)
    for decision in decisions:
        row = decision.to_row()
        what = f"{row['class']} {row['weight'] or ''}".strip()
        kinds[what, row["becomes"], row["note"]].append(row["layer"])
    lines = [f"Parseval counterpart of '{model.name}', not compiled:"]
    for (what, becomes, note), names in kinds.items():
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        result = f"-> {becomes}" if becomes else f"left alone ({few})"
        lines.append(f"{len(names):>5} x {what:<28}{result}{': ' if note else ''}{note}")
    if not {_CLASSIFIER, _SKIPPED} & {decision.note for decision in decisions}:
        lines.append("      No classifier was found; name it in `skip` if there is one.")
    return "\n".join(lines)
