"""The registry of Lipschitz rules: what a layer does to the distance of its inputs."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a layer or operation in a model's graph, as a rule sees it.

    Args:
        norm: `"inf"` or 2.
        method: `"paper"` or `"operator"`.
        input_shapes: Shape of each input, without the batch axis; `None` where unknown.
        output_shape: Shape of the output, likewise; of the first, if there are several.
        arguments: What was passed to `call`, by name. A tensor of the graph is a
            `keras.KerasTensor`, which has a shape and no value; anything else is a constant.
            Defaults to none.
        estimate: Whether an estimate is wanted beside the bound. Defaults to `False`.

    Example:

    ```python
    call = kp.analysis.LayerCall(2, "paper", ((32, 32, 3),), (16, 16, 8))
    call.input_shapes[0]  # (32, 32, 3)
    ```
    """

    norm: Any
    method: str
    input_shapes: tuple[tuple[int | None, ...], ...]
    output_shape: tuple[int | None, ...]
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    estimate: bool = False


@dataclasses.dataclass(frozen=True)
class Constant:
    """What a rule finds.

    Args:
        bound: An upper bound of the Lipschitz constant, certain; one for each input of a merge.
        rule: Where it comes from, in a few words.
        estimate: A number that the constant is probably close to, where there is one; it may
            lie below the constant. Defaults to `None`.

    Example:

    ```python
    class Halve(keras.layers.Layer):
        def call(self, x):
            return x / 2


    @kp.analysis.lipschitz_rule(Halve)
    def halve_rule(layer, call):
        return kp.analysis.Constant(0.5, "halves")
    ```
    """

    bound: Any
    rule: str
    estimate: float | None = None


@dataclasses.dataclass(frozen=True)
class _Rule:
    function: Callable[..., Any]
    combine: str
    refusal: str | None = None


# By class, or by name for the operations of `keras.ops`, whose classes have no public name.
_rules: dict[Any, _Rule] = {}
RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])
Combine = Literal["sum", "stack"]


def lipschitz_rule(
    *layer_classes: type, combine: Combine = "sum"
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers how a layer changes the distance between two inputs.

    The function that is decorated takes the layer and a description of the call, a
    `kp.analysis.LayerCall`. It returns an upper bound of the layer's Lipschitz constant in
    that norm, at inference; for a layer of several inputs a list, one for each, with the others
    held fixed. For a layer of several outputs, the bound holds for each of them.

    Operations of `keras.ops` have rules too. Their classes have no public name: take the
    class from a model that has the operation, as in `type(model.operations[2])`.

    Args:
        *layer_classes: The classes of layers and operations that the rule is for. It holds for
            subclasses too, unless they have a `call` of their own.
        combine: For several inputs, whether their changes meet in the same
            elements of the output (`"sum"`, which is always safe), or each element takes the change
            of one of them (`"stack"`, as in a concatenation). Defaults to `"sum"`.

    Returns:
        A decorator, that returns the function as it is.

    Example:

    ```python
    class Double(keras.layers.Layer):
        def call(self, x):
            return 2 * x


    @kp.analysis.lipschitz_rule(Double)
    def double_rule(layer, call):
        return 2.0


    model = keras.Sequential([keras.Input((8,)), Double(), Double()])
    kp.lipschitz_bound(model).bound  # 4.0
    ```

    For an operation:

    ```python
    inputs = keras.Input((16,))
    model = keras.Model(inputs, keras.ops.std(inputs, axis=-1, keepdims=True))


    @kp.analysis.lipschitz_rule(type(model.operations[-1]))
    def deviation_rule(operation, call):
        return 1.0 if call.norm == "inf" else call.input_shapes[0][-1] ** -0.5


    kp.lipschitz_bound(model).bound  # 0.25
    ```
    """
    if not layer_classes or not all(inspect.isclass(each) for each in layer_classes):
        raise TypeError(
            "`lipschitz_rule` must be given the classes of layers that the rule is for, as in "
            f"`@kp.analysis.lipschitz_rule(MyLayer)`. Received: {layer_classes}"
        )
    if combine not in ("sum", "stack"):
        raise ValueError(f'`combine` must be "sum" or "stack". Received: combine={combine!r}')
    return _register(layer_classes, combine)


def operation_rule(*names: str, combine: Combine = "sum") -> Callable[[RuleFunction], RuleFunction]:
    """`lipschitz_rule` for operations of `keras.ops`, by the names of their classes."""
    return _register(names, combine)


def _register(keys: tuple[Any, ...], combine: str) -> Callable[[RuleFunction], RuleFunction]:
    def register(function: RuleFunction) -> RuleFunction:
        _rules.update({key: _Rule(function, combine) for key in keys})
        return function

    return register


def refuse(reason: str, *keys: Any) -> None:
    """Register why layers (by class) or operations (by name) have no Lipschitz constant."""

    def refusal(operation: Any, call: LayerCall) -> Any:
        raise ValueError(f"No Lipschitz constant is known for {describe(operation)}: {reason}")

    _rules.update({key: _Rule(refusal, "sum", reason) for key in keys})


def has_rule(operation: Any) -> bool:
    """Whether a rule, or a refusal, is registered for the layer or operation."""
    return _find(operation) is not None


def refusal_of(operation: Any) -> str | None:
    """Why a layer or operation has no constant; `None` if it may have one."""
    rule = _find(operation)
    return None if rule is None else rule.refusal


def describe(operation: Any) -> str:
    """A layer or operation in an error message."""
    kind = "layer" if isinstance(operation, keras.layers.Layer) else "operation"
    return f"the {kind} '{operation.name}' of class {type(operation).__name__}"


def advice(class_expression: str) -> str:
    """How to register a rule for a layer or operation, whose class is written like this."""
    return (
        "no rule is registered. If it has a constant, register it: "
        f"`@kp.analysis.lipschitz_rule({class_expression})` before a function of the layer or "
        "operation and the call that returns an upper bound"
    )


def apply_rule(layer: Any, call: LayerCall) -> tuple[Constant, str]:
    """The constant of a layer for each input, and how they combine.

    Returns:
        A `Constant` whose bound is a tuple, and `"sum"` or `"stack"`.
    """
    rule = _find(layer)
    if rule is None:
        raise ValueError(
            f"No Lipschitz constant is known for {describe(layer)}: {advice(type(layer).__name__)}"
        )
    constant = rule.function(layer, call)
    if not isinstance(constant, Constant):
        constant = Constant(constant, rule.function.__name__.strip("_").replace("_", " "))
    bounds = tuple(np.atleast_1d(np.asarray(constant.bound, "float64")).tolist())
    if len(bounds) != len(call.input_shapes) or not all(0 <= each < np.inf for each in bounds):
        raise ValueError(
            "A Lipschitz constant must be a finite number, 0 or more, for each input of the layer; "
            "weights with NaN or infinity have none. "
            f"Received: {constant.bound} for {len(call.input_shapes)} input(s) of '{layer.name}'"
        )
    return dataclasses.replace(constant, bound=bounds), rule.combine


def _find(operation: Any) -> _Rule | None:
    classes: tuple[Any, ...] = type(operation).__mro__
    for each in classes:
        rule = _rules.get(each) or _rules.get(_operation_name(each))
        if rule is not None:
            # A subclass that computes something else is another layer.
            return rule if type(operation).call is each.call else None
    return None


def _operation_name(operation_class: type) -> str | None:
    """The name of a class of `keras.ops`; a class of that name elsewhere may be anyone's."""
    package, *modules = operation_class.__module__.split(".")
    return operation_class.__name__ if package == "keras" and "ops" in modules else None
