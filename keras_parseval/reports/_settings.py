"""What a report measures unless it is told otherwise, chosen in one place."""

import numbers
from typing import Any, Literal

import keras
import numpy as np

from keras_parseval import attacks
from keras_parseval._classifier import Classifier
from keras_parseval._validation import check_number
from keras_parseval.attacks import Attack
from keras_parseval.reports._pictures import as_images

Bounds = tuple[float, float] | Literal["auto"] | None

# Sizes of attack, as shares of the range of a pixel. 36/255 and 8/255 are those of the literature.
_OF_THE_RANGE = {
    2: tuple(36 / 255 * factor for factor in (0.5, 1, 2, 4, 8)),
    "inf": tuple(factor / 255 for factor in (1, 2, 4, 8, 16)),
}
# And as shares of the standard deviation of a feature, for all other inputs.
_OF_THE_DEVIATION = {2: (0.05, 0.1, 0.2, 0.5, 1.0), "inf": (0.01, 0.02, 0.05, 0.1, 0.2)}
# What `attack="glance"` takes of the suite of reports.
_GLANCE = {"steps": 20, "targets": 1, "queries": 50}
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))


def choose_bounds(bounds: Any, x: np.ndarray) -> tuple[tuple[float, float] | None, str]:
    """The interval that inputs lie in, if there is one, and why."""
    if not isinstance(bounds, str):
        return bounds, "as given" if bounds is not None else "none, as given"
    if bounds != "auto":
        raise ValueError(
            '`bounds` must be "auto", None, or a pair of numbers (low, high). '
            f"Received: bounds={bounds!r}"
        )
    if as_images(x) is None:
        return None, "none, because the inputs are not images"
    for low, high in _RANGES:
        if low <= x.min() and x.max() <= high:
            return (low, high), "the usual range of pixels that all inputs lie in"
    return None, "none, because the images are in no usual range of pixels"


def choose_levels(epsilon: Any, norm: Any, bounds: Any, x: np.ndarray) -> tuple[list[float], str]:
    """The sizes of attack, rising, and why these."""
    if epsilon is not None:
        several = [epsilon] if isinstance(epsilon, numbers.Number) else list(epsilon)
        rule = "positive, in the units of the model's input"
        levels = [check_number("epsilon", each, rule, lambda size: size > 0) for each in several]
        if not levels:
            raise ValueError(f"`epsilon` must have at least one level. Received: {epsilon!r}")
        return sorted(set(levels)), "as given"
    if bounds is not None:
        unit = float(bounds[1]) - float(bounds[0])
        return [
            unit * share for share in _OF_THE_RANGE[norm]
        ], "usual shares of the range of pixels"
    unit = float(np.sqrt(np.var(x, axis=0, dtype="float64").mean())) or 1.0
    sizes = [float(f"{unit * share:.2g}") for share in _OF_THE_DEVIATION[norm]]
    return sizes, "shares of the standard deviation of a feature"


def choose_attack(
    attack: Any, norm: Any, bounds: Any, model: Any, x: Any, moving: Any, seed: int
) -> Attack:
    """The attack that was given, or a suite."""
    if isinstance(attack, Attack):
        if attack.norm != norm:
            raise ValueError(
                "`norm` must be that of the attack, because certificates are compared with it. "
                f"Received: norm={norm!r}, attack={attack.describe()}"
            )
        return attack
    if attack not in ("glance", "quick", "standard"):
        raise ValueError(
            '`attack` must be "glance", "quick", "standard" or an attack such as '
            f"`kp.attacks.PGD(norm=2)`. Received: attack={attack!r}"
        )
    suite = attacks.standard if attack == "standard" else attacks.quick
    options = {"classes": _number_of_classes(model, x), "seed": seed}
    options |= _GLANCE if attack == "glance" else {}
    if moving.ndim != 4:
        options["queries"] = 0  # the search by squares is one for images
    return suite(norm=norm, bounds=bounds, **options)


def _number_of_classes(model: Any, x: Any) -> int:
    """How many classes an example may be in; two for units that decide between yes and no."""
    first = keras.tree.map_structure(lambda array: array[:1], x)
    outputs = model(first, training=False)
    return 2 if Classifier(model).encoding == "binary" else max(2, int(outputs.shape[-1]))
