"""What the numbers of a report mean, in plain sentences."""

import collections
import math
from typing import Any

import numpy as np

from keras_parseval.analysis import LipschitzBound, LipschitzEntry, RobustAccuracy

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# A layer that multiplies the bound by less is not worth a word.
_WORTH_A_WORD = 1.05


def percent(share: float) -> str:
    """A share of the examples, in percent."""
    return f"{100 * share:.1f}%"


def number(value: float, digits: int = 4) -> str:
    """A number to read, with a power of ten only where it is needed."""
    if value and math.isfinite(value) and not 1e-4 <= abs(value) < 1e6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g} × 10{str(int(power)).translate(_RAISED)}"  # noqa: RUF001
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"


def certified_to(radii: np.ndarray) -> float:
    """Below this size, half of the right answers or more are certain to stay."""
    right = np.sort(radii[radii > 0])[::-1]
    return float(right[math.ceil(len(right) / 2) - 1]) if len(right) else 0.0


def attacked_from(attacked: RobustAccuracy) -> float | None:
    """The smallest size at which more than half of the right answers are gone, if there is one."""
    pairs = zip(attacked.levels, attacked.accuracies)
    return next((size for size, share in pairs if share < attacked.clean / 2), None)


def rounded_down(size: float) -> str:
    """Three digits of a size that must not be exceeded."""
    if not 0 < size < math.inf:
        return number(size)
    unit = 10.0 ** (math.floor(math.log10(size)) - 2)
    return number(math.floor(size / unit * (1 + 1e-12)) * unit, 3)


def verdict(attacked: RobustAccuracy, certified: float, broken: float | None) -> tuple[str, ...]:
    """Certified to here, attacked from there on, not known between.

    Args:
        attacked: The accuracy under attack, at sizes that rise.
        certified: What `certified_to` found; 0 if nothing is certified.
        broken: What `attacked_from` found.
    """
    clean, largest, left = attacked.clean, attacked.levels[-1], attacked.accuracies[-1]
    answers = f"The model gives the right answer for {percent(clean)} of {attacked.examples:,}"
    if not clean:
        nothing = "There is nothing to certify, and nothing to attack."
        return (f"{answers} examples: none.", nothing, "Train the model, or look at the labels.")
    size = rounded_down(certified)
    if not certified:
        first = f"{answers} examples, and there is no proof of how far these answers hold."
    else:
        first = f"{answers} examples, and for half of these answers there is a proof: no change "
        first += f"smaller than {size} alters them, whatever the attack."
        if certified < attacked.levels[0] / 20:
            first += " That is far less than the smallest change that was tried."
    if broken is None:
        second = f"No attack that was tried takes half of them away: at size {largest:.3g}, the "
        second += f"largest, {percent(left)} of the examples are still right."
        unknown = f"Beyond {size}" if certified else "At every size that was tried"
    else:
        share = attacked.accuracies[attacked.levels.index(broken)]
        second = f"From size {broken:.3g} on, the attacks take more than half of them away: "
        second += f"{percent(share)} of the examples are still right there."
        unknown = f"Between {size} and {broken:.3g}" if certified else f"Below {broken:.3g}"
    third = "no proof reaches that far" if certified else "there is no proof"
    third += ", and an attack that fails today may succeed tomorrow."
    return first, second, f"{unknown}, nobody knows: {third}"


def size_in_words(x: np.ndarray, norm: Any, bounds: Any, largest: float) -> str:
    """What a size means for these examples."""
    if norm == 2:
        length = float(np.median(np.linalg.norm(x.reshape(len(x), -1), axis=1))) or 1.0
        return (
            "The size of a change is its length: the root of the sum of the squares of what "
            f"is added to each of the {math.prod(x.shape[1:]):,} numbers of an example. A typical "
            f"example has length {length:.3g}; {largest:.3g} is {largest / length:.1%} of that."
        )
    low, high = (float(x.min()), float(x.max())) if bounds is None else bounds
    return (
        "The size of a change is the largest that is added to, or taken from, any one of the "
        f"{math.prod(x.shape[1:]):,} numbers of an example. They lie between {low:g} and {high:g}."
    )


def spending(entry: LipschitzEntry, norm: Any) -> float:
    """The most by which a call multiplies the constants that arrive at it."""
    if entry.kind == "Concatenate":
        return max(entry.local) if norm == "inf" else math.hypot(*entry.local)
    return sum(entry.local)


def advice(bound: LipschitzBound) -> tuple[str, ...]:
    """Which layers spend the constant, those that spend the most first, and what to change."""
    spenders: dict[str, list[tuple[float, str]]] = collections.defaultdict(list)
    for entry in bound.entries:
        factor = spending(entry, bound.norm)
        if factor > _WORTH_A_WORD:
            spenders[entry.kind].append((factor, entry.name))
    kinds = sorted(spenders, key=lambda kind: -math.prod(factor for factor, _ in spenders[kind]))
    return tuple(_advice(kind, sorted(spenders[kind], reverse=True)) for kind in kinds)


def _advice(kind: str, spenders: list[tuple[float, str]]) -> str:
    (largest, name), *others = spenders
    what, remedy = _REMEDIES.get(kind, (kind, ""))
    sentence = f"{what} in '{name}' multiplies the bound by {number(largest, 3)}"
    if others:
        # From the smallest to the largest; one number where they read alike.
        ends = dict.fromkeys(number(factor, 3) for factor, _ in (others[-1], others[0]))
        sentence += f"; {len(others)} more of its kind by {' to '.join(ends)}"
    return f"{sentence}. {remedy}".strip()


_CONVOLUTION = (
    "The convolution",
    "`kp.tight_convolution()` would hold its factor at 1; weight decay makes it smaller.",
)
_STATISTICS = "It divides by the spread of a single example. Leave it out to have a useful bound."
_REMEDIES = {
    "BatchNormalization": (
        "Batch normalisation",
        "`kp.layers.BatchCentering` subtracts the mean alone, and has factor 1.",
    ),
    "Dense": (
        "The kernel",
        "`kp.tight_frame()` would hold its factor at 1; weight decay makes it smaller.",
    ),
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _CONVOLUTION),
    "Add": ("The sum", "`kp.ConvexAdd` weighs its inputs so that the factor is 1."),
    "Concatenate": ("Joining inputs", "Scale each by the root of its share to have factor 1."),
    "LayerNormalization": ("Layer normalisation", _STATISTICS),
    "GroupNormalization": ("Group normalisation", _STATISTICS),
    "RMSNormalization": ("RMS normalisation", _STATISTICS),
    "Rescaling": ("The rescaling", "It is a change of units, and costs nothing."),
    "Normalization": ("The division by the deviation", "It is a change of units."),
}
