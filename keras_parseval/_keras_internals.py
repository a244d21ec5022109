"""The one file that touches what Keras keeps private: the graph, layers inside layers, counters."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_parseval._lending import lend


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer, operation or model in a graph.

    Args:
        operation: What is called.
        inputs: The tensors that it is called on.
        outputs: The tensors that it returns.
        arguments: Its arguments by keyword.
        positional: Its other arguments, tensors and constants as they stand.
    """

    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    arguments: dict[str, Any]
    positional: tuple[Any, ...]

    def named_arguments(self) -> dict[str, Any]:
        """All arguments, by the names in the signature of `call`, in its order."""
        signature = inspect.signature(type(self.operation).call)
        # Keras passes `training` and masks on, and a layer inside may not take them.
        known = {name: value for name, value in self.arguments.items() if name != "training"}
        try:
            bound = signature.bind(self.operation, *self.positional, **self.arguments)
        except TypeError:
            bound = signature.bind(self.operation, *self.positional, **known)
        return dict(list(bound.arguments.items())[1:])


def _as_call(node: Any) -> Call:
    inputs, outputs = tuple(node.input_tensors), tuple(node.outputs)
    arguments = node.arguments
    return Call(node.operation, inputs, outputs, dict(arguments.kwargs), tuple(arguments.args))


def is_graph(operation: Any) -> bool:
    """Whether this is a model that does what its graph says, and nothing else."""
    return isinstance(operation, keras.Model) and type(operation).call in _graph_calls()


@functools.cache
def _graph_calls() -> tuple[Any, ...]:
    """What `call` is in a functional and in a Sequential model."""
    inputs = keras.Input((1,))
    outputs = keras.layers.Identity()(inputs)
    return type(keras.Model(inputs, outputs)).call, keras.Sequential.call


def check_graph(model: Any) -> None:
    """Raise unless the model has a graph that can be walked, and weights."""
    if not is_graph(model):
        raise ValueError(
            "The model must be functional or Sequential, because its graph is walked; a subclassed "
            "model has none. Write it with `keras.Model(inputs, outputs)`. "
            f"Received: {type(model).__name__}"
        )
    if not model.built or not model.inputs:
        raise ValueError(
            "The model must be built, so that it has weights and shapes: begin it with "
            f"`keras.Input(shape)`, or call it once. Received: model '{model.name}'"
        )


def calls_in_order(model: Any) -> list[Call]:
    """Every call on the way from a model's inputs to its outputs, inputs first.

    A model that is nested in this one is one operation.
    """
    entrances = {id(tensor) for tensor in model.inputs}
    stack = [(tensor, False) for tensor in model.outputs]
    order: list[Call] = []
    seen: set[int] = set()
    while stack:
        tensor, ready = stack.pop()
        if id(tensor) in entrances:
            continue
        history = tensor._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        if id(node) in seen:
            continue
        if ready:
            seen.add(id(node))
            order.append(_as_call(node))
        else:
            stack.append((tensor, True))
            stack += [(each, False) for each in node.input_tensors]
    return order


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """What a model, or a layer that calls others, does: every call, inputs first.

    Args:
        inputs: The tensors that it begins with.
        outputs: The tensors that it returns.
        calls: The calls in between. A nested model, or layer, is one of them.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    calls: tuple[Call, ...]


def graph_of(model: Any) -> Graph:
    """The graph of a functional or Sequential model."""
    return Graph(tuple(model.inputs), tuple(model.outputs), tuple(calls_in_order(model)))


def trace(call: Call) -> Graph:
    """What the `call` of a layer does at inference, seen by calling it on tensors without values.

    Raises whatever the layer does, if it needs values. Leaves the layer as it was.
    """
    layer = call.operation
    if type(layer).__call__ is not keras.layers.Layer.__call__:
        raise TypeError("it has a `__call__` of its own")
    placeholders = {id(each): keras.KerasTensor(each.shape, each.dtype) for each in call.inputs}
    arguments, keywords = keras.tree.map_structure(
        lambda each: placeholders.get(id(each), each), (call.positional, call.arguments)
    )
    if "training" in inspect.signature(type(layer).call).parameters:
        keywords["training"] = False
    counts = [(each, len(each._inbound_nodes)) for _, each in layers_by_path(layer)]
    try:
        # What is assigned to a variable stays in this scope.
        with keras.StatelessScope() as scope:
            outputs = tuple(keras.tree.flatten(layer.call(*arguments, **keywords)))
        if scope.state_mapping:
            raise TypeError("it is random, or assigns to variables")
        inputs = tuple(placeholders[id(each)] for each in call.inputs)
        between = Graph(inputs, outputs, ())
        return dataclasses.replace(between, calls=tuple(calls_in_order(between)))
    finally:
        for each, count in counts:
            del each._inbound_nodes[count:]


def calls_of(operation: Any) -> list[Call]:
    """Every call of a layer or operation, in whatever graph."""
    return [_as_call(node) for node in getattr(operation, "_inbound_nodes", [])]


def last_operations(model: Any, passes: Callable[[Any], bool]) -> set[Any]:
    """The operations that one comes to first from the outputs back, those that `passes` left out.

    Nested models are entered.
    """
    found: set[Any] = set()
    for tensor in model.outputs:
        _walk_back(tensor, [], passes, found)
    return found


def _walk_back(
    tensor: Any, callers: list[Any], passes: Callable[[Any], bool], found: set[Any]
) -> None:
    """Add to `found` where the way back from a tensor ends.

    `callers` holds, for each nested model that the walk is inside of, its own inputs and the
    tensors that it was called on.
    """
    operation, node_index, tensor_index = tensor._keras_history
    inputs = operation._inbound_nodes[node_index].input_tensors
    if is_graph(operation):
        inside = operation.outputs[tensor_index]
        _walk_back(inside, [(operation.inputs, inputs), *callers], passes, found)
    elif isinstance(operation, keras.layers.InputLayer) and callers:
        (own, given), *callers = callers
        position = [id(each) for each in own].index(id(tensor))
        _walk_back(given[position], callers, passes, found)
    elif passes(operation):
        for each in inputs:
            _walk_back(each, callers, passes, found)
    else:
        found.add(operation)


def output_layer(model: Any) -> Any:
    """The layer or operation that makes a model's output, inside nested models; or `None`."""
    if isinstance(model, keras.Sequential):
        layer = model.layers[-1]
    else:
        outputs = keras.tree.flatten(getattr(model, "outputs", None) or [])
        history = getattr(outputs[0], "_keras_history", None) if outputs else None
        layer = getattr(history, "operation", None)
    return output_layer(layer) if isinstance(layer, keras.Model) else layer


def is_activated(tensor: Any) -> bool:
    """Whether a tensor is known to be what a softmax or sigmoid returned.

    Keras keeps the logits with it, where the backend lets it.
    """
    return hasattr(tensor, "_keras_logits")


def lineages_of(model: Any, ancestors: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every layer, operation and model inside a model, each at the end of those around it."""
    for operation in getattr(model, "operations", model.layers):
        lineage = (*ancestors, operation)
        yield lineage
        if is_graph(operation):
            yield from lineages_of(operation, lineage)


def layers_by_path(root: Any) -> list[tuple[str, Any]]:
    """A layer and all layers inside it, each once, with the names that lead to them."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(layer: Any, path: str) -> None:
        if id(layer) in found:
            return
        found[id(layer)] = path, layer
        for child in layer._flatten_layers(include_self=False, recursive=False):
            visit(child, child.name if layer is root else f"{path}/{child.name}")

    visit(root, root.name)
    return list(found.values())


def constructor_arguments(layer: Any) -> dict[str, Any]:
    """What a layer was made with, which Keras keeps where it is all numbers and words."""
    kept = getattr(layer, "_auto_config", None)
    if kept is None:
        raise ValueError(f"It is not known what this was made with. Received: {layer}")
    return {**kept.config, "name": layer.name, "dtype": layer.dtype_policy}


def minibatch_counter(optimizer: Any) -> Any:
    """The variable of an optimizer that counts every minibatch.

    `iterations` counts those that gradients accumulate over as one.
    """
    return getattr(optimizer, "inner_optimizer", optimizer).variables[0]


@contextlib.contextmanager
def in_single_precision(model: Any) -> Iterator[None]:
    """Within this context, all that the model computes in half precision is computed in float32."""
    half = ("float16", "bfloat16")
    layers = [layer for _, layer in layers_by_path(model)]
    inputs = [each for layer in layers if is_graph(layer) for each in layer.inputs or ()]
    inputs += [layer for layer in layers if isinstance(layer, keras.layers.InputLayer)]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            if layer.compute_dtype in half:
                stack.enter_context(lend(layer, dtype_policy=keras.DTypePolicy("float32")))
        for each in inputs:
            # A model that is nested in another casts what it is given.
            if each.dtype in half:
                stack.enter_context(lend(each, _dtype="float32"))
        yield
