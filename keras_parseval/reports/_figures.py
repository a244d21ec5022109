"""Where the lines of the page's figures run, in percent of their width and height."""

import dataclasses
import math
from typing import Any

import numpy as np

from keras_parseval.analysis import LipschitzBound, RobustAccuracy

# So many kernels fit into a figure; the table has all.
MOST_SPECTRA = 32


@dataclasses.dataclass(frozen=True)
class Axis:
    """A linear axis from `low` to `high`, with the numbers to write along it."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """The position of a value, in percent."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(max(share, 0.0), 1.0), 2)


def axis(low: float, high: float, most: int = 5) -> Axis:
    """An axis with at most so many steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * each for each in (1, 2, 5, 10) if span / (power * each) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(round(step * each, 12) for each in range(first, last + 1)))


def sizes(attacked: RobustAccuracy) -> Axis:
    """The axis of sizes: a little longer than the largest, so that one sees what it broke."""
    return axis(0.0, 1.06 * attacked.levels[-1])


def band(attacked: RobustAccuracy, radii: tuple[float, ...]) -> dict[str, Any]:
    """Accuracy against size: what is certified from below, what was broken from above."""
    across, up = sizes(attacked), axis(0.0, 1.0)
    # What was broken at a size is broken at all larger ones: a staircase.
    upper, share = [(0.0, 100 - up(attacked.clean))], attacked.clean
    for level, accuracy in zip(attacked.levels, attacked.accuracies):
        upper += [(across(level), 100 - up(share)), (across(level), 100 - up(accuracy))]
        share = accuracy
    upper.append((100.0, 100 - up(share)))
    grid = np.linspace(0.0, across.high, 161)
    known = np.sort(np.asarray(radii))
    shares = 1.0 - np.searchsorted(known, grid, side="right") / max(len(known), 1)
    lower = [(across(size), 100 - up(share)) for size, share in zip(grid, shares)] if radii else []
    points = zip((0.0, *attacked.levels), (attacked.clean, *attacked.accuracies))
    return {
        "x": across,
        "y": up,
        "broken": _path([*upper, (100, 0), (0, 0)]),
        "unknown": _path([*upper, *(lower[::-1] or [(100, 100), (0, 100)])]),
        "certified": _path([*lower, (100, 100), (0, 100)]) if radii else "",
        "upper": _path(upper),
        "lower": _path(lower),
        "points": [(across(size), 100 - up(share)) for size, share in points],
        "whiskers": [
            (across(size), 100 - up(low), 100 - up(high))
            for size, (low, high) in zip((0.0, *attacked.levels), attacked.intervals)
        ],
    }


def depth(bound: LipschitzBound) -> dict[str, Any]:
    """The constant from the input to each call, on a scale of powers of ten."""
    values = [1.0, *(entry.accumulated for entry in bound.entries)]
    powers = [math.log10(min(max(value, 1e-30), 1e30)) for value in values]
    low, high = math.floor(min(powers) + 1e-9), math.ceil(max(powers) - 1e-9)
    up = axis(min(low, -1), max(high, 1))
    whole = dataclasses.replace(up, ticks=tuple(tick for tick in up.ticks if tick == round(tick)))
    across = Axis(0, len(values) - 1, ())
    line = [(across(number), 100 - up(power)) for number, power in enumerate(powers)]
    return {"y": whole, "line": _path(line), "one": 100 - up(0.0), "calls": len(bound.entries)}


def strips(spectra: tuple[Any, ...]) -> dict[str, Any]:
    """For each kernel, where its singular values lie: those furthest from tight, in their order."""
    finite = [each for each in spectra if all(map(math.isfinite, each.quantiles))]
    furthest = sorted(finite, key=lambda each: -each.tightness)[:MOST_SPECTRA]
    shown = [each for each in finite if each in furthest]
    across = axis(0.0, max([1.2, *(each.quantiles[-1] for each in shown)]))
    rows = [(each.name, [across(value) for value in each.quantiles]) for each in shown]
    return {"x": across, "rows": rows, "one": across(1.0), "left_out": len(spectra) - len(shown)}


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""
