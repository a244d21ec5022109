"""What multiplies the Lipschitz bound of a model, because no constraint holds it at 1."""

import collections
import dataclasses
import math
from typing import Any

import keras

from keras_parseval._keras_internals import Call, calls_in_order, is_graph
from keras_parseval.analysis._rules import LayerCall, apply_rule

_NORMALIZATIONS = frozenset(
    "BatchNormalization LayerNormalization RMSNormalization GroupNormalization UnitNormalization "
    "Normalization".split()
)


@dataclasses.dataclass(frozen=True)
class BoundFactor:
    """What all layers of a class multiply the bound by.

    Args:
        kind: The class of the layers.
        count: How many there are.
        largest: The largest factor of one of them; `None` if it is not known.
        where: The layer that has it.
        product: The largest product of such factors along a path from input to output.
        reason: Where the factor comes from.
    """

    kind: str
    count: int
    largest: float | None
    where: str
    product: float | None
    reason: str

    def __str__(self) -> str:
        if self.largest is None:
            return f"by a factor that is not known: {self.reason}"
        if self.count == 1:
            return f"by up to {self.largest:.3g} ({self.where}): {self.reason}"
        return (
            f"by up to {self.largest:.3g} each ({self.where}), "
            f"{self.product:.3g} along a path: {self.reason}"
        )


def bound_factors(model: Any) -> list[BoundFactor]:
    """The factors of normalisations, concatenations and plain sums, in the 2-norm.

    Args:
        model: A functional or Sequential model, built.
    """
    found: dict[str, dict[Any, tuple[float | None, str]]] = collections.defaultdict(dict)
    _collect(model, found)
    return [_summarize(model, kind, factors) for kind, factors in found.items()]


def _collect(model: Any, found: dict[str, dict[Any, tuple[float | None, str]]]) -> None:
    for call in calls_in_order(model):
        operation = call.operation
        if is_graph(operation):
            _collect(operation, found)
        elif (factor := _factor(call)) is not None:
            found[type(operation).__name__].setdefault(operation, factor)


def _factor(call: Call) -> tuple[float | None, str] | None:
    """The factor of one call and the reason for it; `None` for what is not looked for."""
    kind, count = type(call.operation).__name__, len(call.inputs)
    if kind == "Concatenate" and count > 1:
        return math.sqrt(count), "the root of the number of its inputs"
    if kind in ("Add", "Subtract") and count > 1:
        return float(count), "the number of its inputs"
    if kind not in _NORMALIZATIONS or not isinstance(call.operation, keras.layers.Layer):
        return None
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in call.inputs)
    layer_call = LayerCall(2, "paper", shapes, tuple(call.outputs[0].shape[1:]))
    try:
        constant, _ = apply_rule(call.operation, layer_call)
    except ValueError:
        return None, "no rule gives its constant"
    learned = bool(call.operation.weights) and kind != "Normalization"
    return max(constant.bound), constant.rule + (", which training moves" if learned else "")


def _summarize(model: Any, kind: str, factors: dict[Any, tuple[float | None, str]]) -> BoundFactor:
    known = {operation: factor for operation, (factor, _) in factors.items() if factor is not None}
    if len(known) < len(factors):
        unknown = next(reason for factor, reason in factors.values() if factor is None)
        return BoundFactor(kind, len(factors), None, "", None, unknown)
    where = max(known, key=lambda operation: known[operation])
    product = max(_products(model, known, [1.0] * len(model.inputs)))
    return BoundFactor(kind, len(known), known[where], where.name, product, factors[where][1])


def _products(model: Any, factors: dict[Any, float], arrived: list[float]) -> list[float]:
    """The largest product along a path to each output of a model."""
    known = {id(tensor): product for tensor, product in zip(model.inputs, arrived)}
    for call in calls_in_order(model):
        before = [known[id(tensor)] for tensor in call.inputs] or [1.0]
        if is_graph(call.operation):
            after = _products(call.operation, factors, before)
        else:
            after = [max(before) * factors.get(call.operation, 1.0)] * len(call.outputs)
        known |= {id(tensor): product for tensor, product in zip(call.outputs, after)}
    return [known[id(tensor)] for tensor in model.outputs]
