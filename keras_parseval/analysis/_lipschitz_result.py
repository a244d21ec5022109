"""What the walk of a model's graph found: its Lipschitz bound, call by call."""

import dataclasses
from typing import Any

import rich.console
import rich.markup
import rich.table

from keras_parseval._html import html_table


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
        slope: The steepest slope that was found, a lower bound of the Lipschitz constant. `None`
            if none was looked for. Defaults to `None`.
        notes: What else the reader should know, a sentence each: weights that are off the set that
            constrains them, and branches of a `kp.ConvexAdd` at their floor. Defaults to none.

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
    slope: float | None = None
    notes: tuple[str, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """A dictionary for each entry: what `pandas.DataFrame` takes."""
        return [dataclasses.asdict(entry) for entry in self.entries]

    def __rich__(self) -> rich.table.Table:
        table = rich.table.Table(title=self._title(), caption="\n".join(self._captions()))
        for heading in _HEADINGS[:2]:
            table.add_column(heading, overflow="fold")
        for heading in _HEADINGS[2:4]:
            table.add_column(heading, justify="right")
        table.add_column(_HEADINGS[4])
        for row in map(_cells, self.entries):
            # A layer's name is text, also where rich would take it for a colour.
            table.add_row(*map(rich.markup.escape, row))
        return table

    def _repr_html_(self) -> str:
        return html_table(self._title(), _HEADINGS, map(_cells, self.entries), self._captions())

    def _norm(self) -> str:
        return "inf-norm" if self.norm == "inf" else "2-norm"

    def _title(self) -> str:
        return f"Lipschitz constants ({self._norm()}, method '{self.method}')"

    def _captions(self) -> list[str]:
        caption = f"Lipschitz bound in the {self._norm()}: {self.bound:.4g}"
        if self.slope is not None:
            caption += f"; steepest slope found, a lower bound: {self.slope:.4g}"
        if self.estimate is not None:
            caption += f"; estimate, not certain: {self.estimate:.4g}"
        return [caption, *self.notes]

    def __str__(self) -> str:
        console = rich.console.Console(width=110, no_color=True)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


_HEADINGS = ("layer", "class", "constant", "so far", "rule")


def _cells(entry: LipschitzEntry) -> tuple[str, ...]:
    rule = entry.rule
    if entry.estimate is not None:
        rule += f", estimate {entry.estimate:.4g}"
    return entry.name, entry.kind, _join(entry.local), f"{entry.accumulated:.4g}", rule


def _join(constants):
    """The constants of a merge; those of many equal inputs once."""
    if len(constants) > 2 and len(set(constants)) == 1:
        return f"{len(constants)} x {constants[0]:.4g}"
    return ", ".join(f"{each:.4g}" for each in constants)
