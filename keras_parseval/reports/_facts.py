"""How a report was measured, and what to be careful with."""

import datetime
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_parseval.analysis import CertifiedAccuracy, RobustAccuracy

# Of fewer examples, shares are known to ten points or worse.
_FEW_EXAMPLES = 100


def about_the_model(model: Any, moving: np.ndarray) -> dict[str, str]:
    """What was attacked."""
    shape = " × ".join(map(str, moving.shape[1:]))  # noqa: RUF001
    return {
        "Model": f"{model.name}, {type(model).__name__}, {model.count_params():,} parameters",
        "Inputs": f"{shape}, {moving.dtype}",
    }


def about_the_run(seconds: dict[str, float]) -> dict[str, str]:
    """When it was measured, how long it took, and with what."""
    from keras_parseval import __version__  # which is set after its rooms are imported

    name = keras.backend.backend()
    parts = ", ".join(f"{step} {each:.1f} s" for step, each in seconds.items())
    versions = {
        "keras_parseval": __version__,
        "Keras": keras.__version__,
        name: sys.modules[name].__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
    }
    return {
        "Time": f"{sum(seconds.values()):.1f} s ({parts})",
        "Date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def about_the_attack(attacked: RobustAccuracy) -> dict[str, str]:
    """What attacked, and how much each part of it broke at the largest size."""
    details = attacked.details
    if details is None or len(details.attacks) == 1:
        return {"Attack": attacked.attack}
    broken = [
        int((details.broken_by[-1] == number).sum()) for number in range(len(details.attacks))
    ]
    parts = (f"{name} broke {count}" for name, count in zip(details.attacks, broken))
    return {"Attack": f"{', '.join(parts)}, each of what those before it left"}


def about_the_spared(certified: CertifiedAccuracy | None) -> dict[str, str]:
    """How many examples were not attacked at each size, because they are certified there."""
    if certified is None or not any(certified.accuracies):
        return {}
    counts = [f"{round(share * certified.examples):,}" for share in certified.accuracies]
    return {
        "Not attacked": f"{', '.join(counts)} examples at these sizes: they are certified, so that "
        "no attack can break them, and count as right"
    }


def cautions(attacked: RobustAccuracy) -> list[str]:
    """What the reader should be warned of."""
    sentences = list(attacked.warnings)
    if attacked.examples < _FEW_EXAMPLES:
        sentences.append(
            f"There are only {attacked.examples} examples: every share is uncertain by ten points "
            "or more."
        )
    return sentences


def namer(class_names: Sequence[str] | None) -> Callable[[Any], str]:
    """A function from the number of a class to its name."""

    def name(label: Any) -> str:
        if class_names is None or np.ndim(label):
            return str(label)
        if int(label) >= len(class_names):
            raise ValueError(
                "`class_names` must have a name for every class. "
                f"Received: {len(class_names)} names, for class {label}"
            )
        return str(class_names[int(label)])

    return name
