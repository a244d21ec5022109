"""All rules of the library, registered, and the check that a model has one for each call."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras

# Imported for the rules that they register.
import keras_parseval.analysis._image_rules
import keras_parseval.analysis._kernel_rules
import keras_parseval.analysis._layer_rules
import keras_parseval.analysis._movement_rules
import keras_parseval.analysis._normalization_rules
import keras_parseval.analysis._operation_rules
import keras_parseval.analysis._pooling_rules
import keras_parseval.analysis._refusals  # noqa: F401
from keras_parseval._keras_internals import (
    Call,
    Graph,
    graph_of,
    is_graph,
    layers_by_path,
    trace,
)
from keras_parseval.analysis._rules import advice, describe, has_rule, refusal_of


def inside(call: Call) -> Graph | None:
    """The calls inside a call, for a model, or a layer without a rule; `None` for any other.

    Raises what a layer raises that cannot be called on tensors without values.
    """
    operation = call.operation
    if isinstance(operation, keras.layers.TimeDistributed) and is_graph(operation.layer):
        # The same for each step, on elements of its own: no step adds to the others' constants.
        return graph_of(operation.layer)
    if has_rule(operation) or not isinstance(operation, keras.layers.Layer):
        return None
    return graph_of(operation) if is_graph(operation) else trace(call)


def check_model(model: Any) -> None:
    """Raise if the model as it is has no Lipschitz constant, and name all that is in the way."""
    for path, layer in layers_by_path(model):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            raise ValueError(
                "A quantized model rounds, so its output jumps, and it has no Lipschitz constant; "
                "measure the model before `quantize`. "
                f"Received: layer '{path}' with quantization_mode={mode!r}"
            )
    problems: dict[type, list[str]] = {}
    for operation, problem in _problems(graph_of(model), model, "model"):
        problems.setdefault(type(operation), []).append(problem)
    if problems:
        lines = [
            first + (f" (the same for {len(others)} more)" if others else "")
            for first, *others in problems.values()
        ]
        raise ValueError(
            "Each layer and operation of a model must have a known Lipschitz constant. "
            f"Received: model '{model.name}', with\n- " + "\n- ".join(lines)
        )


def _problems(graph: Graph, owner: Any, expression: str) -> Iterator[tuple[Any, str]]:
    """What has no rule in a graph, with the reason.

    Args:
        graph: The graph.
        owner: The model or layer whose graph it is.
        expression: How the owner is written in Python, from the model on.
    """
    for call in graph.calls:
        operation = call.operation
        _check_inference(call)
        reason = refusal_of(operation)
        if reason is None:
            try:
                nested = inside(call)
            except Exception as error:
                why = str(error).strip().splitlines()[0]
                advised = advice(type(operation).__name__)
                reason = f"{advised}. Its `call` cannot be followed without values: {why}"
            else:
                if nested is not None:
                    path = f"{expression}.get_layer({operation.name!r})"
                    yield from _problems(nested, operation, path)
                elif not has_rule(operation):
                    reason = advice(_class_expression(operation, owner, expression))
        if reason is not None:
            where = "" if is_graph(owner) else f" (in the layer '{owner.name}')"
            yield operation, f"{describe(operation)}{where}: {reason}"


def _class_expression(operation: Any, owner: Any, expression: str) -> str:
    """How to write the class of an operation; inside a layer, that of the layer."""
    if not is_graph(owner):
        return type(owner).__name__
    operations = [id(each) for each in owner.operations]
    return f"type({expression}.operations[{operations.index(id(operation))}])"


def _check_inference(call: Call) -> None:
    arguments, name = call.named_arguments(), call.operation.name
    parameter = inspect.signature(type(call.operation).call).parameters.get("training")
    # Keras records the default of the layer, as if it had been passed: augmentation layers have
    # `training=True` there, which does not count at inference.
    written = parameter is not None and parameter.default is not True
    if arguments.get("training") and written:
        raise ValueError(
            "A layer that is called with `training=True` has no Lipschitz constant: its output is "
            f"random, or depends on other examples. Leave the argument out. Received: '{name}'"
        )
    masks = keras.tree.flatten(arguments.get("mask"))
    if any(isinstance(mask, keras.KerasTensor) for mask in masks):
        raise ValueError(
            "A layer that takes a mask of the inputs jumps where the mask changes, and has no "
            "Lipschitz constant; bound a model without `Masking` and `mask_zero`. "
            f"Received: '{name}'"
        )
