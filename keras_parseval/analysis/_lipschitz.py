"""An upper bound of a model's Lipschitz constant, by one walk of its graph."""

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import rich.console
from keras import ops

from keras_parseval._keras_internals import Call, Graph, check_graph, graph_of
from keras_parseval._validation import Norm, check_choice, check_flag, check_norm
from keras_parseval.analysis._all_rules import check_model, inside
from keras_parseval.analysis._lipschitz_result import LipschitzBound, LipschitzEntry
from keras_parseval.analysis._model_notes import model_notes
from keras_parseval.analysis._rules import Constant, LayerCall, apply_rule
from keras_parseval.analysis._steepest_slope import steepest_slope

Method = Literal["paper", "operator"]


def lipschitz_bound(
    model: Any,
    *,
    norm: Norm = 2,
    method: Method = "operator",
    estimate: bool = False,
    slope_at: Any = None,
) -> LipschitzBound:
    """An upper bound of a model's Lipschitz constant, from its input to its output.

    Whatever two inputs, the outputs differ by at most the bound times the difference
    of the inputs, in the given norm, at inference. A product along a path and a sum over
    paths, as in section 3 of the paper; for a model with several inputs or outputs, of all of
    them together. Its cost does not depend on any data.

    Args:
        model: A functional or Sequential model, built and not quantized; models nested in it are
            entered, and so are layers without a rule whose `call` consists of other layers and of
            operations. Each of these needs a rule, see `kp.analysis.lipschitz_rule`.
        norm: `"inf"` or 2. Defaults to 2.
        method: How convolutions are bounded. `"operator"`: by the norm of the convolution itself.
            In the 2-norm, small ones are decomposed as matrices. The others are looked at by
            frequencies, those of the image with its ends joined (a torus), or a small grid of
            them where that has fewer points: the bound is then certain for images of any size, and
            at most 1% above the norm there. In the inf-norm it is exact. `"paper"`: closed forms,
            in the 2-norm the norm of the kernel as a matrix, times the root of the number of
            windows that cover an input. They are never smaller. Defaults to `"operator"`.
        estimate: Whether to estimate the norms of large convolutions too, with
            `method="operator"` in the 2-norm, by Lanczos iteration at the size of the input
            (relative tolerance 1e-4). That takes a while. Defaults to `False`.
        slope_at: Where to look for a steep slope, a lower bound that shows how much
            the upper one may leave: a number of random inputs in [0, 1], or inputs, as the model
            takes them, and best those that it was made for. Defaults to `None`, nowhere.

    Returns:
        A `kp.analysis.LipschitzBound`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
    result = kp.lipschitz_bound(model, slope_at=4)
    result.slope, result.bound  # the Lipschitz constant lies in between
    ```
    """
    check_flag("estimate", estimate)
    result = bound_of(model, norm, method, estimate=estimate)
    slope = None
    if slope_at is not None:
        # Rounding alone can take it above the bound.
        slope = min(steepest_slope(model, result.norm, slope_at), result.bound)
    return dataclasses.replace(result, slope=slope, notes=tuple(model_notes(model)))


def lipschitz_report(model: Any, **options: Any) -> LipschitzBound:
    """Prints the Lipschitz bound of a model, layer by layer, and by which rule each was found.

    Below the table it says which weights are off the set that constrains them, and which branches
    of a `kp.ConvexAdd` are at their floor.

    Args:
        model: As in `kp.lipschitz_bound`.
        **options: Further arguments of `kp.lipschitz_bound`.

    Returns:
        The `kp.analysis.LipschitzBound` that it prints.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "relu")])
    kp.lipschitz_report(model)
    ```
    """
    result = lipschitz_bound(model, **options)
    rich.console.Console().print(result)
    return result


def bound_of(
    model: Any, norm: Any, method: Method, linear_layer: Any = None, estimate: bool = False
) -> LipschitzBound:
    """`lipschitz_bound`, with the option to see one softmax layer as the identity."""
    norm = check_norm(norm)
    check_choice("method", method, ("paper", "operator"))
    check_graph(model)
    check_model(model)
    walk = _Walk(norm, method, linear_layer, estimate)
    outputs = walk.through(graph_of(model), [(1.0, 1.0)] * len(model.inputs))
    bound, product = walk.combine(outputs, "stack")
    estimated = any(entry.estimate is not None for entry in walk.entries)
    return LipschitzBound(norm, method, bound, product if estimated else None, tuple(walk.entries))


class _Walk:
    """The constants from the input to each tensor: a bound and an estimate, side by side."""

    def __init__(self, norm: Any, method: Method, linear_layer: Any, estimate: bool):
        self.norm, self.method, self.estimate = norm, method, estimate
        self.linear_layer = linear_layer
        self.entries: list[LipschitzEntry] = []

    def through(self, graph: Graph, inputs: list[Any], path: str = "") -> list[Any]:
        """The constants of a graph's outputs, from those of its inputs."""
        known = {id(tensor): each for tensor, each in zip(graph.inputs, inputs)}
        for call in graph.calls:
            arrived = [known[id(tensor)] for tensor in call.inputs]
            name, nested = path + call.operation.name, inside(call)
            if nested is not None:
                left = self.through(nested, arrived, f"{name}/")
            else:
                # Each of several outputs has the bound that the rule gives for all of them.
                left = [self.over(call, name, arrived)] * len(call.outputs)
            known |= {id(tensor): each for tensor, each in zip(call.outputs, left)}
        return [known[id(tensor)] for tensor in graph.outputs]

    def over(self, call: Call, name: str, arrived: list[Any]) -> tuple[float, float]:
        """The constants after one call of a layer."""
        _check_weights(call.operation, name)
        constant, combine = self.constant(call, name)
        estimates = constant.bound if constant.estimate is None else (constant.estimate,)
        accumulated = self.combine(
            [
                (bound * before, estimate * before_estimate)
                for bound, estimate, (before, before_estimate) in zip(
                    constant.bound, estimates, arrived
                )
            ],
            combine,
        )
        entry = LipschitzEntry(
            name=name,
            kind=type(call.operation).__name__,
            local=constant.bound,
            accumulated=accumulated[0],
            rule=constant.rule,
            estimate=constant.estimate,
            accumulated_estimate=accumulated[1],
        )
        self.entries.append(entry)
        return accumulated

    def constant(self, call: Call, name: str) -> tuple[Constant, str]:
        if call.operation is self.linear_layer:
            return Constant((1.0,), "left out: logits"), "sum"
        layer_call = LayerCall(
            self.norm,
            self.method,
            tuple(tuple(tensor.shape[1:]) for tensor in call.inputs),
            tuple(call.outputs[0].shape[1:]),
            call.named_arguments(),
            self.estimate,
        )
        try:
            return apply_rule(call.operation, layer_call)
        except ValueError as error:
            if name == call.operation.name:
                raise
            raise ValueError(f"{error} (as '{name}')") from error

    def combine(self, pairs: list[Any], how: str) -> tuple[float, float]:
        """One constant for several inputs: their sum, or that of the elements they stack to."""
        bounds, estimates = zip(*pairs)
        if how == "sum":
            return sum(bounds), sum(estimates)
        if self.norm == "inf":
            return max(bounds), max(estimates)
        return math.hypot(*bounds), math.hypot(*estimates)


def _check_weights(layer, name):
    # Without this, the largest of several constants may hide one that is not a number.
    for variable in getattr(layer, "weights", ()):
        if not np.isfinite(ops.convert_to_numpy(ops.cast(variable, "float32"))).all():
            raise ValueError(
                "Weights must be finite to have a bound; look for where the training diverged. "
                f"Received: layer '{name}', with NaN or infinity in '{variable.name}'"
            )
