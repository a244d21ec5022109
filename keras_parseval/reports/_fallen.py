"""The examples that fell first, to look at."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_parseval.analysis import RobustAccuracy
from keras_parseval.attacks import snr
from keras_parseval.reports._pictures import as_images, pictures
from keras_parseval.reports._robustness_report import FallenExample

# So many changes are listed, for inputs that are not images.
_LISTED = 5


def fallen_examples(
    attacked: RobustAccuracy, x: np.ndarray, bounds: Any, name: Callable[[Any], str]
) -> tuple[FallenExample, ...]:
    """What is to be shown of the examples that `kp.robust_accuracy` kept.

    Args:
        attacked: Its result, with details.
        x: The inputs that were attacked.
        bounds: The interval that inputs lie in, or `None`.
        name: From the number of a class to its name.
    """
    details = attacked.details
    if details is None or not len(details.kept):
        return ()
    clean, perturbed = x[details.kept], np.asarray(details.inputs)
    images = as_images(clean), as_images(perturbed)
    low, high = bounds or (float(clean.min()), float(clean.max()))
    ratios, fallen = snr(clean, perturbed), []
    for place, (index, level) in enumerate(zip(details.kept, details.kept_levels)):
        shown: tuple[str, ...] = ()
        magnified, changes = 1.0, ()
        if images[0] is not None and images[1] is not None:
            shown, magnified = pictures(images[0][place], images[1][place], low, high)
        else:
            changes = _largest_changes(clean[place], perturbed[place])
        fallen.append(
            FallenExample(
                index=int(index),
                label=name(details.labels[index]),
                before=name(details.decisions[0, index]),
                after=name(details.decisions[level + 1, index]),
                epsilon=attacked.levels[level],
                snr=float(ratios[place]),
                attack=details.attacks[details.broken_by[level, index]],
                pictures=shown,
                magnified=magnified,
                changes=changes,
            )
        )
    return tuple(fallen)


def _largest_changes(clean: np.ndarray, perturbed: np.ndarray) -> tuple[Any, ...]:
    """Where the largest changes are, the value before, and after."""
    order = np.argsort(-np.abs(perturbed - clean), axis=None)[:_LISTED]
    places = [np.unravel_index(place, clean.shape) for place in order]
    return tuple(
        (", ".join(str(int(each)) for each in place), float(clean[place]), float(perturbed[place]))
        for place in places
    )
