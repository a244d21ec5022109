"""The registry of Lipschitz rules: what a layer does to the distance of its inputs."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a layer in a model's graph, as a rule sees it.

    Args:
        norm: `"inf"` or 2.
        method: `"paper"` or `"operator"`.
        input_shapes: Shape of each input, without the batch axis; `None` where unknown.
        output_shape: Shape of the output, likewise.

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


_rules: dict[Any, _Rule] = {}
RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])


def lipschitz_rule(
    *layer_classes: type, combine: Literal["sum", "stack"] = "sum"
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers how a layer changes the distance between two inputs.

    The function that is decorated takes the layer and a description of the call, with
    the attributes `norm` (`"inf"` or 2), `method`, `input_shapes` and `output_shape` (without the
    batch axis). It returns an upper bound of the layer's Lipschitz constant in that norm, at
    inference; for a layer of several inputs a list, one for each, with the others held fixed.

    Args:
        *layer_classes: The classes of layers that the rule is for. It holds for
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
    """
    if not layer_classes or not all(inspect.isclass(each) for each in layer_classes):
        raise TypeError(
            "`lipschitz_rule` must be given the classes of layers that the rule is for, as in "
            f"`@kp.analysis.lipschitz_rule(MyLayer)`. Received: {layer_classes}"
        )
    if combine not in ("sum", "stack"):
        raise ValueError(f'`combine` must be "sum" or "stack". Received: combine={combine!r}')

    def register(function: RuleFunction) -> RuleFunction:
        for layer_class in layer_classes:
            _rules[layer_class] = _Rule(function, combine)
        return function

    return register


def has_rule(layer: Any) -> bool:
    """Whether a rule is registered for the layer."""
    return _find(layer) is not None


def apply_rule(layer: Any, call: LayerCall) -> tuple[Constant, str]:
    """The constant of a layer for each input, and how they combine.

    Returns:
        A `Constant` whose bound is a tuple, and `"sum"` or `"stack"`.
    """
    rule = _find(layer)
    if rule is None:
        raise ValueError(
            f"No Lipschitz constant is known for the layer '{layer.name}' of class "
            f"{type(layer).__name__}. If it has one, register it: "
            f"`@kp.analysis.lipschitz_rule({type(layer).__name__})` before a function of the layer "
            "and the call that returns an upper bound. Arithmetic on tensors, such as `x + y`, has "
            "rules as a layer, such as `keras.layers.Add()([x, y])`"
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


def _find(layer: Any) -> _Rule | None:
    classes: tuple[Any, ...] = type(layer).__mro__
    for layer_class in classes:
        if layer_class in _rules:
            # A subclass that computes something else is another layer.
            same = type(layer).call is layer_class.call
            return _rules[layer_class] if same else None
    return None
