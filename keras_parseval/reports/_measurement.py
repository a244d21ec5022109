"""The parts of a report, one after the other: their times, their warnings, their refusals."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._batches import Examples
from keras_parseval._progress import Verbose
from keras_parseval.analysis import singular_values
from keras_parseval.attacks import Attack
from keras_parseval.reports._robustness_report import Spectrum


class Steps:
    """The parts of a report: says which one has begun, and keeps its time, or why there is none."""

    def __init__(self, verbose: Verbose):
        self.verbose, self.name = verbose, ""
        self.seconds: dict[str, float] = {}
        self.refusals: dict[str, str] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if self.verbose == 1:
            print(f"{name} ...", flush=True)
        self.name, start = name, time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start

    def attempt(self, measure: Callable[[], Any], otherwise: Any = None) -> Any:
        """What was measured, or something else for a model that it cannot be measured for."""
        try:
            return measure()
        except (TypeError, ValueError, NotImplementedError) as error:
            self.refusals[self.name] = str(error)
            return otherwise


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """The warnings for users that are raised here; they are raised again at the end."""
    sentences: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield sentences
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        if each.category is UserWarning and str(each.message) not in sentences:
            sentences.append(str(each.message))


def arrays_of(examples: Examples) -> tuple[Any, np.ndarray]:
    """All examples, in arrays."""
    batches = [keras.tree.map_structure(ops.convert_to_numpy, batch) for batch in examples]
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batches)


def moving_input(attack: Any, x: Any) -> np.ndarray:
    """The input that attacks move."""
    if isinstance(attack, Attack):
        return attack.select(x)
    if not hasattr(x, "shape"):
        raise ValueError(
            "For a model with several inputs, `attack` must be an attack that is told which one to "
            f"move, as in `kp.attacks.PGD(norm=2, perturb=0)`. Received: attack={attack!r}"
        )
    return x


def spectra_of(model: Any) -> tuple[Spectrum, ...]:
    """The singular values of every kernel of a model, the classifier's too."""
    values = singular_values(model, relative=True)
    named = values if isinstance(values, dict) else {model.name: values}
    return tuple(
        Spectrum(name, len(each), tuple(np.quantile(each, _QUARTILES).tolist()), _tightness(each))
        for name, each in named.items()
    )


def _tightness(values: np.ndarray) -> float:
    """As `kp.tightness`, which leaves the classifier out."""
    return float(np.sqrt(np.square(np.square(values) - 1.0).mean()))


_QUARTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
