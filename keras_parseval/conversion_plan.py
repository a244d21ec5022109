"""What becomes of each layer of a model that is made Parseval, and why."""

import collections
import dataclasses
import fnmatch

import keras

from keras_parseval._validation import check_flag
from keras_parseval.constraints import ParsevalTightFrame
from keras_parseval.graph import check_graph, is_graph
from keras_parseval.layer_kernels import LayerKernel, layer_kernels
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
    layer: keras.Operation
    kernel: LayerKernel | None
    becomes: type | None
    note: str = ""

    def to_row(self):
        return {
            "layer": self.path,
            "class": type(self.layer).__name__,
            "weight": self.kernel and self.kernel.attribute,
            "becomes": self.becomes and self.becomes.__name__,
            "note": self.note,
        }


def decide(model, merge, skip):
    """The decision for each kernel and sum of a model."""
    check_graph(model)
    check_flag("merge", merge)
    lineages = list(lineages_of(model))
    skipped = _find_skipped(skip, lineages)
    classifiers = set()
    for tensor in model.outputs:
        _find_classifiers(tensor, [], classifiers)
    decisions = []
    # In reverse, so that a layer that is met twice goes by the first of its paths.
    paths = {lineage[-1]: _path(lineage) for lineage in reversed(lineages)}
    for layer in dict.fromkeys(lineage[-1] for lineage in lineages):
        reason = _SKIPPED if layer in skipped else _CLASSIFIER if layer in classifiers else ""
        decisions += _decide_layer(paths[layer], layer, reason, merge)
    return decisions


def _decide_layer(path, layer, reason, merge):
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


def _obstacle(kernel):
    """Why a kernel cannot be constrained, or an empty string."""
    if kernel.constraint is not None:
        return f"it has a constraint already, {type(kernel.constraint).__name__}"
    variable = kernel.variable
    if not isinstance(variable, keras.Variable) or not keras.backend.is_float_dtype(variable.dtype):
        return "it is quantized, or adapted by LoRA"
    return ""


def _is_sum(operation):
    """Whether it is `keras.layers.Add`, or a `+` between two tensors."""
    if type(operation).__name__ != "Add":
        return False
    return len(operation._inbound_nodes[0].input_tensors) > 1


def _obstacle_to_merge(layer):
    """Why a sum cannot become convex, or an empty string."""
    if not isinstance(layer, keras.layers.Add):
        return "an operation holds no coefficients; write `keras.layers.Add()([x, y])`"
    shapes = [[tuple(x.shape) for x in node.input_tensors] for node in layer._inbound_nodes]
    if len({len(each) for each in shapes}) > 1:
        return "it is called on different numbers of inputs"
    try:
        for each in shapes:
            ConvexAdd().compute_output_shape(each)
    except ValueError:
        return f"its inputs differ in shape, {shapes[0]}"
    return ""


def norm_penalty(kernel):
    """The L1 or L2 regularizer of a kernel, which pulls against the constraint, or `None`."""
    regularizer = getattr(kernel.layer, f"{kernel.prefix}_regularizer")
    return regularizer if isinstance(regularizer, _NORM_PENALTIES) else None


def _dropped_penalty(kernel):
    penalty = norm_penalty(kernel)
    return f"without its {type(penalty).__name__} regularizer" if penalty else ""


def _holds_matrices(layer):
    return isinstance(layer, keras.layers.Layer) and any(
        len(weight.shape) > 1 for weight in layer.weights
    )


def lineages_of(model, ancestors=()):
    """Every layer, operation and model inside a model, each at the end of those around it."""
    for operation in getattr(model, "operations", model.layers):
        lineage = (*ancestors, operation)
        yield lineage
        if is_graph(operation):
            yield from lineages_of(operation, lineage)


def _path(lineage):
    return "/".join(operation.name for operation in lineage)


def _find_classifiers(tensor, callers, found):
    """Walk back from an output to the first kernels, and add their layers to `found`.

    `callers` holds, for each nested model that the walk is inside of, its own inputs and the
    tensors that it was called on.
    """
    operation, node_index, tensor_index = tensor._keras_history
    inputs = operation._inbound_nodes[node_index].input_tensors
    if is_graph(operation):
        inside = operation.outputs[tensor_index]
        _find_classifiers(inside, [(operation.inputs, inputs), *callers], found)
    elif isinstance(operation, keras.layers.InputLayer) and callers:
        (own, given), *callers = callers
        position = [id(each) for each in own].index(id(tensor))
        _find_classifiers(given[position], callers, found)
    elif layer_kernels(operation):
        found.add(operation)
    elif type(operation).__name__ in _AFTER_A_CLASSIFIER:
        for each in inputs:
            _find_classifiers(each, callers, found)


def _find_skipped(skip, lineages):
    """All layers that `skip` means, by themselves or by a model around them."""
    skipped = set()
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


def _matches(entry, lineage):
    """Whether an entry of `skip` means this layer, or a model around it."""
    if isinstance(entry, type):
        return any(isinstance(operation, entry) for operation in lineage)
    names = [_path(lineage), *(operation.name for operation in lineage)]
    return any(fnmatch.fnmatchcase(name, entry) for name in names)


def summary_of(model, decisions):
    """A line for all decisions of a kind, with the names of the layers that were left alone."""
    kinds = collections.defaultdict(list)
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
