"""Curves and bars of what the library measures."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_parseval.analysis._accuracy_by_level import AccuracyByLevel
from keras_parseval.analysis._covariance import CovarianceDimension
from keras_parseval.analysis._lipschitz import LipschitzBound
from keras_parseval.plots._style import axes_or_new, check_named, finish, styles


def accuracies(results: Mapping[str, AccuracyByLevel], *, ax: Any = None) -> Any:
    """The accuracy of several models, attacked or certified, against the strength of attacks.

    Signal-to-noise ratios rise, and so attacks weaken, to the right, where the clean
    accuracy is set apart. Epsilons rise to the right, and the clean accuracy is at 0.

    Args:
        results: Dictionary of what `kp.robust_accuracy` or `kp.certified_accuracy` returned,
            by the names for the legend.
        ax: The Axes to draw into. Defaults to those of a new figure.

    Returns:
        The Axes.

    Example:

    ```python
    levels, result = (40, 33, 25), kp.analysis.RobustAccuracy
    plain = result(0.98, "snr", levels, (0.96, 0.91, 0.60), "FGSM", 1000)
    parseval = result(0.97, "snr", levels, (0.97, 0.95, 0.84), "FGSM", 1000)
    kp.plots.accuracies({"plain": plain, "Parseval": parseval})
    ```
    """
    check_named("results", results, AccuracyByLevel)
    measures = {result.measure for result in results.values()}
    if len(measures) > 1:
        raise ValueError(
            "Results must have levels of one measure to share an axis; plot SNR and epsilon "
            f"apart. Received: measures {', '.join(sorted(measures))}"
        )
    ax = axes_or_new(ax)
    levels = sorted({level for result in results.values() for level in result.levels})
    by_snr = measures == {"snr"}
    clean = levels[-1] + max(3, 0.2 * (levels[-1] - levels[0])) if by_snr else 0
    for (name, result), style in zip(results.items(), styles()):
        points = sorted(zip(result.levels, result.accuracies))
        ax.plot(*zip(*points), label=name, **style)
        ax.plot(clean, result.clean, **style)
        nearest = points[-1 if by_snr else 0]
        ax.plot(*zip(nearest, (clean, result.clean)), color=style["color"], linewidth=0.5)
    if by_snr:
        ticks = levels[:: -(-len(levels) // 8)]
        ax.set_xticks([*ticks, clean], [*(f"{level:g}" for level in ticks), "clean"])
        ax.set_xlabel("signal-to-noise ratio (dB); the attack weakens to the right")
    else:
        ax.set_xlabel("epsilon, in units of the input; 0 is clean")
    ax.set_ylabel("accuracy")
    return finish(ax)


def learning_curves(
    histories: Mapping[str, Any], *, metric: str = "val_loss", ax: Any = None
) -> Any:
    """One metric of several trainings, epoch by epoch. Epochs where it is NaN are skipped.

    Args:
        histories: Dictionary of what `fit` returned, or of its `history`, by the names
            for the legend.
        metric: The key of the metric in the logs. Defaults to `"val_loss"`.
        ax: The Axes to draw into. Defaults to those of a new figure.

    Returns:
        The Axes.

    Example:

    ```python
    histories = {"plain": {"val_loss": [0.9, 0.5, 0.4]}, "Parseval": {"val_loss": [0.7, 0.4, 0.3]}}
    kp.plots.learning_curves(histories)
    ```
    """
    check_named("histories", histories, (keras.callbacks.History, dict))
    logs = {name: getattr(each, "history", each) for name, each in histories.items()}
    for name, log in logs.items():
        if metric not in log:
            raise ValueError(
                f"`metric` must be in the logs of every training; those of '{name}' have "
                f"{', '.join(log)}. Received: metric={metric!r}"
            )
    ax = axes_or_new(ax)
    for (name, log), style in zip(logs.items(), styles()):
        values = np.asarray(log[metric], "float64")
        known = np.flatnonzero(~np.isnan(values))
        ax.plot(known + 1, values[known], label=name, **style, markevery=max(1, len(known) // 10))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("epoch")
    ax.set_ylabel(metric)
    return finish(ax)


def dimensions(results: Mapping[str, CovarianceDimension], *, ax: Any = None) -> Any:
    """How many dimensions the activations of several models fill, layer by layer.

    Args:
        results: Dictionary of `kp.analysis.CovarianceDimension`, by the names for the legend. All
            must have the same number of layers; where the names differ, layers are numbered.
        ax: The Axes to draw into. Defaults to those of a new figure.

    Returns:
        The Axes.

    Example:

    ```python
    layers, features, result = ("first", "second"), (64, 64), kp.analysis.CovarianceDimension
    plain = result(layers, features, (40, 4), (0,), ((20,), (3,)), 0.99, 1000)
    parseval = result(layers, features, (58, 50), (0,), ((25,), (24,)), 0.99, 1000)
    kp.plots.dimensions({"plain": plain, "Parseval": parseval})
    ```
    """
    check_named("results", results, CovarianceDimension)
    kinds = {(len(result.layers), result.variance) for result in results.values()}
    if len(kinds) > 1:
        raise ValueError(
            "Results must have the same number of layers and the same `variance` to be compared. "
            f"Received: {' and '.join(f'{each} layers at {part:g}' for each, part in kinds)}"
        )
    ((layers, variance),) = kinds
    ax = axes_or_new(ax)
    bars = [
        (name, result, kind)
        for name, result in results.items()
        for kind in (("all", "class") if result.classes else ("all",))
    ]
    positions, width = np.arange(layers), 0.8 / len(bars)
    colors = {name: style["color"] for name, style in zip(results, styles())}
    for index, (name, result, kind) in enumerate(bars):
        heights = [row[f"{kind}_percent"] for row in result.to_rows()]
        offset = (index - (len(bars) - 1) / 2) * width
        look = {"color": colors[name], "edgecolor": colors[name]}
        if kind == "class":
            look.update(color="white", hatch="////")
        ax.bar(positions + offset, heights, width * 0.9, label=f"{name}, {kind}", **look)
    names = {result.layers for result in results.values()}
    labels = names.pop() if len(names) == 1 else [f"layer {each + 1}" for each in positions]
    ax.set_xticks(positions, labels)
    ax.set_ylabel(f"dimensions that hold {100 * variance:g}%\nof the covariance (% of all)")
    # Above, because bars leave no room for it.
    return finish(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def bounds(bounds: Mapping[str, LipschitzBound | list[Any]], *, ax: Any = None) -> Any:
    """How the bound on the Lipschitz constant of several models grows from layer to layer.

    The vertical axis is logarithmic, so that values of zero or infinity leave a gap.

    Args:
        bounds: Dictionary of what `kp.lipschitz_bound` returned, by the names for the legend;
            or of lists of pairs, the name of a layer and the bound from the input to it.
        ax: The Axes to draw into. Defaults to those of a new figure.

    Returns:
        The Axes.

    Example:

    ```python
    plain = [("dense", 3.1), ("relu", 3.1), ("dense_1", 12.4)]
    parseval = [("dense", 1.0), ("relu", 1.0), ("dense_1", 1.8)]
    kp.plots.bounds({"plain": plain, "Parseval": parseval})
    ```
    """
    check_named("bounds", bounds, object)
    walks = {name: _walk(name, bound) for name, bound in bounds.items()}
    ax = axes_or_new(ax)
    for (name, walk), style in zip(walks.items(), styles()):
        ax.plot(range(1, len(walk) + 1), [value for _, value in walk], label=name, **style)
    ax.set_yscale("log", nonpositive="mask")
    _plain_numbers(ax.yaxis)
    steps = {tuple(step for step, _ in walk) for walk in walks.values()}
    names = steps.pop()
    if steps or len(names) > 24:
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("layer, counted from the input")
    else:
        ax.set_xticks(range(1, len(names) + 1), names, rotation=45, ha="right")
    ax.set_ylabel("bound on the Lipschitz constant,\nfrom the input to here")
    return finish(ax)


def _plain_numbers(axis: Any) -> None:
    """Numbers such as 1.5 on a logarithmic axis, which would have 1.5 x 10^0."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter())


def _walk(name: str, bound: Any) -> list[tuple[str, float]]:
    """Pairs of names and accumulated bounds."""
    entries = getattr(bound, "entries", None)
    walk = list(bound) if entries is None else [(each.name, each.accumulated) for each in entries]
    if not walk:
        raise ValueError(f"A bound must have one entry at least. Received: none for '{name}'")
    return walk
