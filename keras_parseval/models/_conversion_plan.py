"""What becomes of each layer of a model that is made Parseval, and why."""

import dataclasses
import fnmatch
from collections.abc import Iterator
from typing import Any

import keras

from keras_parseval._final_layers import classifiers_of
from keras_parseval._keras_internals import (
    calls_of,
    check_graph,
    is_graph,
    layers_by_path,
    lineages_of,
)
from keras_parseval._kernel_readings import misreading
from keras_parseval._layer_kernels import (
    ATTENTION,
    LayerKernel,
    attention_layout,
    kernels_inside,
)
from keras_parseval._validation import check_choice, check_flag
from keras_parseval.constraints import ParsevalConvolution, ParsevalTightFrame
from keras_parseval.layers import ConvexAdd

_NORM_PENALTIES = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
CLASSIFIER = "the classifier; give it weight decay"
SKIPPED = "skipped"
_FROZEN = "frozen"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is done with one kernel, or with one sum: `becomes` is `None` where it is left alone.

    `weight` leads to the kernel inside the layer, such as `"kernel"` or `"query/kernel"`.
    """

    path: str
    layer: Any
    kernel: LayerKernel | None
    becomes: type | None
    note: str = ""
    weight: str | None = None

    def to_row(self) -> dict[str, Any]:
        return {
            "layer": self.path,
            "class": type(self.layer).__name__,
            "weight": self.weight,
            "becomes": self.becomes and self.becomes.__name__,
            "note": self.note,
        }


def decide(model: Any, merge: bool, skip: Any, convolutions: str) -> list[Decision]:
    """The decision for each kernel and sum of a model."""
    check_graph(model)
    check_flag("merge", merge)
    check_choice("convolutions", convolutions, ("kernel", "operator"))
    lineages = list(lineages_of(model))
    skipped = _find_skipped(skip, lineages)
    classifiers = classifiers_of(model)
    decisions: list[Decision] = []
    # In reverse, so that a layer that is met twice goes by the first of its paths.
    paths = {lineage[-1]: _path(lineage) for lineage in reversed(lineages)}
    for layer in dict.fromkeys(lineage[-1] for lineage in lineages):
        reason = SKIPPED if layer in skipped else CLASSIFIER if layer in classifiers else ""
        decisions += _decide_layer(paths[layer], layer, reason, merge, convolutions)
    return decisions


def _decide_layer(
    path: str, layer: Any, reason: str, merge: bool, convolutions: str
) -> Iterator[Decision]:
    kernels = kernels_inside(layer)
    if isinstance(layer, ATTENTION):
        reason = reason or _obstacle_in_attention(layer, kernels)
    for weight, kernel in kernels.items():
        note = reason or _obstacle(kernel)
        by_operator = convolutions == "operator" and kernel.operator
        becomes = None if note else ParsevalConvolution if by_operator else ParsevalTightFrame
        yield Decision(path, layer, kernel, becomes, note or _dropped_penalty(kernel), weight)
    if is_sum(layer):
        note = reason or ("" if merge else "merge=False") or _obstacle_to_merge(layer)
        yield Decision(path, layer, None, None if note else ConvexAdd, note)
    elif not kernels and not is_graph(layer) and _holds_matrices(layer):
        yield Decision(path, layer, None, None, reason or _unknown(layer))


def _obstacle(kernel: LayerKernel) -> str:
    """Why a kernel cannot be constrained, or an empty string."""
    if kernel.constraint is not None:
        remedy = misreading(kernel)
        mistake = f", which does not read it as the layer does; pass {remedy}" if remedy else ""
        return f"it has a constraint already, {type(kernel.constraint).__name__}{mistake}"
    variable = kernel.variable
    if not isinstance(variable, keras.Variable) or not keras.backend.is_float_dtype(variable.dtype):
        return "it is quantized, or adapted by LoRA"
    # A constraint acts on weights after they are updated, and these never are.
    return "" if variable.trainable else _FROZEN


def _obstacle_in_attention(layer: Any, kernels: dict[str, LayerKernel]) -> str:
    """Why the kernels of an attention layer, which share a constraint, cannot have one."""
    obstacles = filter(None, map(_obstacle, kernels.values()))
    unclear = "" if attention_layout(layer) else "the shapes of its kernels do not tell them apart"
    return next(obstacles, unclear)


def is_sum(operation: Any) -> bool:
    """Whether it is `keras.layers.Add`, or a `+` between two tensors."""
    if type(operation).__name__ != "Add":
        return False
    return len(calls_of(operation)[0].inputs) > 1


def _obstacle_to_merge(layer: Any) -> str:
    """Why a sum cannot become convex, or an empty string."""
    if not isinstance(layer, keras.layers.Add):
        return "an operation holds no coefficients; write `keras.layers.Add()([x, y])`"
    if not layer.trainable:
        return _FROZEN
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


def _unknown(layer: Any) -> str:
    """Why the weights of a layer cannot be constrained."""
    if any(kernels_inside(part) for _, part in layers_by_path(layer)):
        return "its kernels are in layers of its own, which its configuration has no constraint for"
    return "no layer with known kernels"


def _path(lineage: tuple[Any, ...]) -> str:
    return "/".join(operation.name for operation in lineage)


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
