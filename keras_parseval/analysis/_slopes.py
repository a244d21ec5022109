"""How fast the logits that a decision compares can move apart: what certificates divide by."""

import contextlib
import functools
import math
from typing import Any

import keras
import numpy as np

from keras_parseval._classifier import Classifier, without_activation
from keras_parseval._keras_internals import last_operations, lineages_of
from keras_parseval._precision import finite_float64
from keras_parseval.analysis._lipschitz import LipschitzBound, Method, bound_of


class Slopes:
    """Bounds of the change of differences of logits, for each unit that the input moves.

    All logits together move by at most the Lipschitz bound of the model, so the difference of any
    two by that times `sqrt(2)`, or 2 in the inf-norm: the rule `"margin"`.

    Where logits are `W^T f + b`, the difference of two moves by `(w_y - w_j) . f`, so by
    at most the bound up to `f` times the dual norm of `w_y - w_j`: the rule `"pairs"`. It
    is never larger. In the inf-norm there are two ways to bound it, because a perturbation of
    inf-norm 1 has a 2-norm of at most the root of its number of entries.

    Args:
        model: A functional or Sequential model.
        classifier: The same model as a classifier, whose logits can be reached.
        norm: `"inf"` or 2.
        method: As in `kp.lipschitz_bound`.

    Attributes:
        norm: `"inf"` or 2.
        rule: `"pairs"` if the model ends with a Dense layer, or `"margin"`.
    """

    def __init__(self, model: Any, classifier: Classifier, norm: Any, method: Method):
        layer = classifier.activated_layer
        softmax = layer if isinstance(layer, keras.layers.Softmax) else None
        bound_in = functools.partial(bound_of, model, method=method, linear_layer=softmax)
        # For each way to bound the features: that bound, and the norm that is dual to it.
        self._ways: list[tuple[float, int]] = []
        self._rows: dict[int, Any] = {}
        with without_activation(layer):
            bound = bound_in(norm)
            dense = _final_dense(model, softmax)
            name = None if dense is None else _name_of_only_call(dense, model, bound)
            if name is not None:
                self._ways = _ways(bound, name, bound_in, model)
        self.norm = bound.norm
        self.rule = "pairs" if self._ways else "margin"
        several = 2.0 if self.norm == "inf" else math.sqrt(2.0)
        self._constant = bound.bound * (1.0 if classifier.encoding == "binary" else several)
        self._kernel = finite_float64(dense.kernel, dense.name) if self._ways else None

    def of_units(self) -> Any:
        """The slope of each logit alone, for sigmoid units."""
        return self._along(self._kernel)

    def from_label(self, label: int) -> Any:
        """The slopes of the differences between the logit of a class and each of the others."""
        if label not in self._rows:
            kernel = self._kernel
            self._rows[label] = self._along(None if kernel is None else kernel - kernel[:, [label]])
        return self._rows[label]

    def _along(self, directions: Any) -> Any:
        """The smallest of all bounds, for each column of weights of the features."""
        slopes = [bound * np.linalg.norm(directions, dual, axis=0) for bound, dual in self._ways]
        return functools.reduce(np.fmin, slopes, self._constant)


def _final_dense(model: Any, softmax: Any) -> Any:
    """The Dense layer whose outputs are the model's logits; or `None`."""
    linear = keras.activations.linear

    def leaves_logits_alone(operation: Any) -> bool:
        if isinstance(operation, keras.layers.Activation):
            return operation.activation is linear
        return operation is softmax or type(operation) is keras.layers.Identity

    last = last_operations(model, leaves_logits_alone).pop()
    # A subclass that computes something else is another layer.
    is_dense = isinstance(last, keras.layers.Dense) and type(last).call is keras.layers.Dense.call
    return last if is_dense and last.activation is linear else None


def _name_of_only_call(layer: Any, model: Any, bound: LipschitzBound) -> str | None:
    """What the report calls a layer that the model uses once; `None` if it does so more often."""
    lineages = [each for each in lineages_of(model) if each[-1] is layer]
    names = {"/".join(each.name for each in lineage) for lineage in lineages}
    calls = [entry.name for entry in bound.entries if entry.name in names]
    return calls[0] if len(calls) == 1 else None


def _ways(bound: LipschitzBound, name: str, bound_in: Any, model: Any) -> list[tuple[float, int]]:
    """Bounds of how fast the inputs of a layer change, each with the dual of the norm it is in."""
    if bound.norm == 2:
        return [(_before(name, bound), 2)]
    ways = [(_before(name, bound), 1)]
    sizes = [size for tensor in model.inputs for size in tensor.shape[1:]]
    if None not in sizes:
        entries = sum(math.prod(tensor.shape[1:]) for tensor in model.inputs)
        # A model may have a bound in one norm, and none in the other.
        with contextlib.suppress(ValueError):
            ways.append((math.sqrt(entries) * _before(name, bound_in(2)), 2))
    return ways


def _before(name: str, bound: LipschitzBound) -> float:
    """The bound from the model's input to that of a layer."""
    (entry,) = (each for each in bound.entries if each.name == name)
    # A kernel of zeros lets nothing through.
    return entry.accumulated / entry.local[0] if entry.local[0] else 0.0
