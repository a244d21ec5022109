"""An upper bound of a model's Lipschitz constant, by one walk of its graph."""

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import rich.console
import rich.table
from keras import ops

from keras_parseval._keras_internals import Call, Graph, check_graph, graph_of
from keras_parseval._validation import Norm, check_choice, check_norm
from keras_parseval.analysis._all_rules import check_model, inside
from keras_parseval.analysis._rules import Constant, LayerCall, apply_rule

Method = Literal["paper", "operator"]


@dataclasses.dataclass(frozen=True)
class LipschitzEntry:
    """One call of a layer in the graph.

    Args:
        name: Name of the layer, after those of the models it is nested in.
        kind: Class of the layer.
        local: Constant of the layer with respect to each of its inputs.
        accumulated: Constant from the model's input to the output of the layer.
        rule: Where the local constant comes from.
        estimate: Local constant as estimated, or `None`.
        accumulated_estimate: The accumulated constant, with estimates in place of bounds.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "relu")])
    first = kp.lipschitz_bound(model).entries[0]
    first.name, first.local, first.accumulated
    ```
    """

    name: str
    kind: str
    local: tuple[float, ...]
    accumulated: float
    rule: str
    estimate: float | None
    accumulated_estimate: float


@dataclasses.dataclass(frozen=True)
class LipschitzBound:
    """What `kp.lipschitz_bound` found. Prints as a table.

    Args:
        norm: `"inf"` or 2.
        method: `"paper"` or `"operator"`.
        bound: Upper bound of the Lipschitz constant from input to output. It is certain.
        estimate: The same product with the norms of convolutions as Lanczos iteration estimates
            them. Closer, in general, but not certain: it is not a bound. `None` if
            nothing was estimated.
        entries: A `LipschitzEntry` for each call of a layer, in the order of the graph.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "relu")])
    result = kp.lipschitz_bound(model)
    result.bound, result.to_rows()
    ```
    """

    norm: Any
    method: str
    bound: float
    estimate: float | None
    entries: tuple[LipschitzEntry, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """A dictionary for each entry: what `pandas.DataFrame` takes."""
        return [dataclasses.asdict(entry) for entry in self.entries]

    def __rich__(self) -> rich.table.Table:
        norm = "inf-norm" if self.norm == "inf" else "2-norm"
        estimated = self.estimate is not None
        caption = f"Lipschitz bound in the {norm}: {self.bound:.4g}"
        if estimated:
            caption += f"; estimate, not certain: {self.estimate:.4g}"
        table = rich.table.Table(
            title=f"Lipschitz constants ({norm}, method '{self.method}')", caption=caption
        )
        for heading in ("layer", "class"):
            table.add_column(heading, overflow="fold")
        table.add_column("constant", justify="right")
        table.add_column("so far", justify="right")
        table.add_column("rule")
        for entry in self.entries:
            rule = entry.rule
            if entry.estimate is not None:
                rule += f", estimate {entry.estimate:.4g}"
            table.add_row(
                *(entry.name, entry.kind, _join(entry.local), f"{entry.accumulated:.4g}", rule)
            )
        return table

    def __str__(self) -> str:
        console = rich.console.Console(width=110, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def _join(constants):
    """The constants of a merge; those of many equal inputs once."""
    if len(constants) > 2 and len(set(constants)) == 1:
        return f"{len(constants)} x {constants[0]:.4g}"
    return ", ".join(f"{each:.4g}" for each in constants)


def lipschitz_bound(model: Any, *, norm: Norm = 2, method: Method = "paper") -> LipschitzBound:
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
        method: How convolutions are bounded in the 2-norm. `"paper"`: the norm of
            the kernel as a matrix, times the root of the number of windows that cover an input.
            `"operator"`: tighter and slower, the norm of the convolution itself at its real input
            size. Small ones are decomposed as matrices. For the others the norm on a torus is
            the bound, and Lanczos iteration gives an estimate (relative tolerance 1e-4), which
            is reported as such. In the inf-norm `"operator"` is exact for a convolution.
            Defaults to `"paper"`.

    Returns:
        A `kp.analysis.LipschitzBound`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
    kp.lipschitz_bound(model, method="operator").bound
    ```
    """
    return bound_of(model, norm, method)


def lipschitz_report(model: Any, *, norm: Norm = 2, method: Method = "paper") -> LipschitzBound:
    """Prints the Lipschitz bound of a model, layer by layer.

    Args:
        model: As in `kp.lipschitz_bound`.
        norm: `"inf"` or 2. Defaults to 2.
        method: `"paper"` or `"operator"`. Defaults to `"paper"`.

    Returns:
        The `kp.analysis.LipschitzBound` that it prints.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "relu")])
    kp.lipschitz_report(model)
    ```
    """
    result = lipschitz_bound(model, norm=norm, method=method)
    rich.console.Console().print(result)
    return result


def bound_of(model: Any, norm: Any, method: Method, linear_layer: Any = None) -> LipschitzBound:
    """`lipschitz_bound`, with the option to see one softmax layer as the identity."""
    norm = check_norm(norm)
    check_choice("method", method, ("paper", "operator"))
    check_graph(model)
    check_model(model)
    walk = _Walk(norm, method, linear_layer)
    outputs = walk.through(graph_of(model), [(1.0, 1.0)] * len(model.inputs))
    bound, estimate = walk.combine(outputs, "stack")
    estimated = any(entry.estimate is not None for entry in walk.entries)
    return LipschitzBound(norm, method, bound, estimate if estimated else None, tuple(walk.entries))


class _Walk:
    """The constants from the input to each tensor: a bound and an estimate, side by side."""

    def __init__(self, norm: Any, method: Method, linear_layer: Any):
        self.norm, self.method, self.linear_layer = norm, method, linear_layer
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
