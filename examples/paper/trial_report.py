"""What the trials add up to: the cells of the tables, and the figure of every trial."""

import matplotlib.pyplot as plt

from ..experiments.records import markdown
from . import tuning
from .recipes import Run
from .report import covariance_dimension

SETTINGS = {
    "learning_rate": "Rate",
    "beta": "Beta",
    "weight_decay": "Weight decay",
    "dropout": "Dropout",
}
LEVELS = [f"{level:g}" for level in tuning.LEVELS]
DRAWN = (33, 25)
MARKERS = "osDXv^P"


def by_label(trials, group):
    """The trials of a group, as `{label: trials}`."""
    found = {}
    for trial in trials:
        run = Run(**trial["config"])
        if run.group == group:
            found.setdefault(run.label, []).append(trial)
    return found


def compact_table(heading, rows):
    """A table in Markdown, without the columns that are empty."""
    columns = [column for column in zip(heading, *rows) if any(column[1:])]
    heading, *rows = zip(*columns)
    return markdown(heading, rows)


def chosen(trial):
    """The setting of a trial, a cell for each of `SETTINGS`."""
    values = [trial["setting"].get(key) for key in SETTINGS]
    return ["" if value is None else f"{value:g}" for value in values]


def measured(trial):
    """Its validation accuracies in %, clean and at each of `LEVELS`."""
    if trial["validation"] is None:
        return ["diverged", *("" for _ in tuning.LEVELS)]
    values = (trial["validation"]["clean"], *trial["validation"]["accuracies"])
    return [f"{100 * value:.1f}" for value in values]


def filled_dimensions(results, separator=", "):
    """The dimensions of the activations of each layer, in % of all."""
    if "covariance_dimension" not in results:
        return ""
    layers = covariance_dimension(results["covariance_dimension"]).to_rows()
    return separator.join(f"{layer['all_percent']:.1f}" for layer in layers)


def near_target(results):
    """The smallest share of singular values near their target, over the layers, in %."""
    if "singular_values" not in results:
        return ""
    return f"{100 * min(results['singular_values']['near_target'].values()):.1f}"


def draw_trials(trials, draw):
    """Draw clean accuracy against accuracy under attack.

    Each trial is a point, and a line goes through those of a variant that no other of its trials
    beats in both.

    Args:
        trials: The trials, by label.
        draw: A `Drawing`.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
    for axes, level in zip(panels, DRAWN):
        for (label, tried), marker in zip(trials.items(), MARKERS):
            points = [_point(trial, level) for trial in tried if trial["validation"]]
            (drawn,) = axes.plot(*zip(*points), marker, label=label, alpha=0.8, ls="")
            axes.plot(*zip(*_unbeaten(points)), color=drawn.get_color(), lw=1)
        axes.set(xlabel="clean accuracy", title=f"{level:g} dB, {tuning.STEPS} steps")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy under attack")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    draw("trials", figure)


def _point(trial, level):
    result = trial["validation"]
    return result["clean"], dict(zip(result["levels"], result["accuracies"]))[level]


def _unbeaten(points):
    """Those that no other point reaches in both coordinates, in the order of the first."""
    return [
        point
        for point in sorted(set(points))
        if not any(
            other != point and other[0] >= point[0] and other[1] >= point[1] for other in points
        )
    ]
