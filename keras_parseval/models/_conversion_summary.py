"""What `kp.parseval` says about a model that it made."""

import collections
import dataclasses
import inspect
import textwrap
from typing import Any

import keras

from keras_parseval._keras_internals import is_graph
from keras_parseval._layer_kernels import kernels_inside
from keras_parseval.analysis._spectra import kernel_singular_values
from keras_parseval.constraints import ParsevalConvolution
from keras_parseval.models._bound_factors import bound_factors
from keras_parseval.models._cloning import untied_weights
from keras_parseval.models._conversion_plan import CLASSIFIER, SKIPPED, Decision, is_sum

_WIDTH = 100
# What a class may define anew and still train and predict as every model does.
_NO_BEHAVIOUR = ("build", "get_config")


@dataclasses.dataclass(frozen=True)
class Remark:
    """A sentence on what a counterpart lacks; `serious` where that may be a mistake."""

    sentence: str
    serious: bool


def summary_of(counterpart: Any, decisions: list[Decision], remarks: list[Remark]) -> str:
    """A line for all decisions of a kind, with the names of the layers that were left alone.

    Args:
        counterpart: The new model.
        decisions: What was decided for each kernel and sum.
        remarks: What to add.
    """
    changes, factors = _changes(decisions), bound_factors(counterpart)
    multiplies = [(factor.count, factor.kind, str(factor)) for factor in factors]
    longest = max((len(what) for _, what, _ in changes + multiplies), default=0)
    width = min(longest, _WIDTH // 3)
    lines = [f"Parseval counterpart of '{counterpart.name}', not compiled:"]
    lines += _table(changes, width)
    if multiplies:
        lines += ["What no constraint holds, and multiplies the Lipschitz bound:"]
        lines += _table(multiplies, width)
    if not {CLASSIFIER, SKIPPED} & {decision.note for decision in decisions}:
        lines += ["No classifier was found; name it in `skip` if there is one."]
    return "\n".join([*lines, *(textwrap.fill(remark.sentence, _WIDTH) for remark in remarks)])


def _changes(decisions: list[Decision]) -> list[tuple[int, str, str]]:
    kinds: dict[tuple[Any, ...], list[str]] = collections.defaultdict(list)
    for decision in decisions:
        row = decision.to_row()
        what = f"{row['class']} {row['weight'] or ''}".strip()
        kinds[what, row["becomes"], row["note"]].append(row["layer"])
    rows = []
    for (what, becomes, note), names in kinds.items():
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        result = f"-> {becomes}" if becomes else f"left alone ({few})"
        rows.append((len(names), what, f"{result}{': ' if note else ''}{note}"))
    return rows


def _table(rows: list[tuple[int, str, str]], width: int) -> list[str]:
    """Columns as wide as their content; what is longer than a line goes on below its column."""
    lines = []
    for count, what, text in rows:
        start, indent = f"{count:>5} x {what:<{width}}  ", " " * (width + 10)
        if len(what) > width:
            lines.append(start.rstrip())
            start = indent
        wrap = textwrap.TextWrapper(_WIDTH, start, indent, break_on_hyphens=False)
        lines += wrap.wrap(text)
    return lines


def _reached(clones: dict[Any, Any], decisions: list[Decision]) -> str:
    """A sentence on convolutions that are not tight, with what each reached, or an empty string."""
    far = []
    for decision in decisions:
        if decision.becomes is ParsevalConvolution and decision.weight:
            kernel = kernels_inside(clones[decision.layer])[decision.weight]
            values = kernel_singular_values(kernel, relative=True)
            if abs(values - 1.0).max() > 0.02:
                far.append(f"{decision.path} [{values.min():.2f}, {values.max():.2f}]")
    if not far:
        return ""
    return (
        f"These convolutions are not tight, with singular values in: {', '.join(far)}. From many "
        'trained kernels no tight convolution is reached; init="random" draws tight ones.'
    )


def remarks_on(model: Any, clones: dict[Any, Any], decisions: list[Decision]) -> list[Remark]:
    """What the user should know of a counterpart, beyond the decisions.

    Args:
        model: The original.
        clones: Its clone, and that of everything inside it, by the originals.
        decisions: What was decided for each kernel and sum.
    """
    remarks = [
        Remark(_lost_class(graph, clones[graph]), False)
        for graph in clones
        if is_graph(graph) and graph is not model and type(clones[graph]) is not type(graph)
    ]
    if type(clones[model]) is not type(model):
        redefined = _redefined(type(model), type(clones[model]))
        sentence = _lost_class(model, clones[model]) + _lost_methods(model, redefined)
        remarks.insert(0, Remark(sentence, bool(redefined)))
    sentences = (
        _nothing_constrained(model, decisions),
        untied_weights(clones),
        _reached(clones, decisions),
    )
    for sentence in sentences:
        remarks += [Remark(sentence, True)] if sentence else []
    return remarks


def _lost_class(model: Any, counterpart: Any) -> str:
    return (
        f"'{model.name}' is a plain {type(counterpart).__name__} model now: Keras cannot clone the "
        f"class {type(model).__name__}, which is not made from `inputs` and `outputs`."
    )


def _redefined(kind: type, plain: type) -> list[str]:
    """The methods of a Keras model that a class has its own of, so that it behaves differently."""
    return [
        name
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and name not in _NO_BEHAVIOUR
        and hasattr(plain, name)
        and inspect.getattr_static(kind, name) is not inspect.getattr_static(plain, name)
    ]


def _lost_methods(model: Any, redefined: list[str]) -> str:
    kind = type(model)
    own = [
        name for name in dir(kind) if not name.startswith("_") and not hasattr(keras.Model, name)
    ]
    sentence = f" Its own {_listed(redefined)} are Keras's again." if redefined else ""
    return sentence + (f" It has no {_listed(own)}." if own else "")


def _listed(names: list[str]) -> str:
    few = ", ".join(f"`{name}`" for name in names[:6])
    return few + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _nothing_constrained(model: Any, decisions: list[Decision]) -> str:
    """A sentence if no kernel was constrained, with the reasons, or an empty string."""
    if any(decision.kernel and decision.becomes for decision in decisions):
        return ""
    notes = collections.Counter(each.note for each in decisions if not is_sum(each.layer))
    reasons = "; ".join(f"{note} ({count})" for note, count in notes.most_common())
    return f"Nothing was constrained in '{model.name}': {reasons or 'it has no kernels'}."
