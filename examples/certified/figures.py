"""The figures of the page of certified networks, each from lines of JSON."""

import matplotlib.pyplot as plt
import numpy as np

from . import report
from .training import QUANTILES


def band(lines, path):
    """Between what is certified and what attacks leave, against their size."""
    figure, axes = _axes("size of the perturbation, 2-norm", "accuracy of the test images")
    for line in lines:
        parts = line["suite"], line["alone"]
        points = sorted(
            point
            for part in parts
            for point in zip(part["levels"], part["certified"], part["accuracies"])
        )
        levels, certified, attacked = zip((0.0, line["clean"], line["clean"]), *points)
        (drawn,) = axes.plot(levels, certified, marker="o", ms=3, label=line["name"])
        axes.plot(levels, attacked, marker="o", ms=3, ls="--", color=drawn.get_color())
        axes.fill_between(levels, certified, attacked, color=drawn.get_color(), alpha=0.2)
    axes.set(title="certified below, attacked above", ylim=0)
    _save(figure, axes, path)


def time(records, path):
    """Accuracy on augmented training images, after each epoch, against the processor's time."""
    figure, axes = _axes("minutes of one core", "accuracy of training images")
    for record in records:
        minutes = np.cumsum(record["epochs"]["processor_seconds"]) / 60
        axes.plot(minutes, record["history"]["accuracy"], label=_label(record))
    _save(figure, axes, path)


def margins(records, path):
    """What the margin trades: clean accuracy against what is certified."""
    figure, axes = _axes("clean accuracy", "certified accuracy")
    records = sorted(records, key=lambda record: record["config"]["margin"])
    for index, level in enumerate(report.level_names(records[0])[:3], start=1):
        results = [record["results"]["test"] for record in records]
        axes.plot(
            [each[0] for each in results], [each[index] for each in results], "o-", label=level
        )
        for record, each in zip(records, results):
            axes.annotate(f"{record['config']['margin']:g}", (each[0], each[index]), fontsize=7)
    axes.set_title("at each point its margin")
    _save(figure, axes, path)


def spectra(records, path):
    """Singular values of each layer's operator: median, middle half, and the whole range."""
    figure, panels = plt.subplots(
        1, len(records), figsize=(max(4, 3 * len(records)), 3.5), sharey=True, squeeze=False
    )
    for axes, record in zip(panels[0], records):
        values = np.array(list(record["results"]["spectra"].values()))
        layers = np.arange(1, len(values) + 1)
        by_share = dict(zip(QUANTILES, values.T))
        axes.vlines(layers, by_share[0], by_share[1], lw=1)
        axes.vlines(layers, by_share[0.25], by_share[0.75], lw=5)
        axes.plot(layers, by_share[0.5], "k_")
        axes.set(title=_label(record), xlabel="layer")
        axes.title.set_fontsize(8)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("singular values")
    panels[0][0].ticklabel_format(axis="y", useOffset=False)
    _save(figure, None, path)


def _label(record):
    return f"{report.label(record)}, rate {record['config']['rate']:g}"


def _axes(x, y):
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, axes, path):
    if axes:
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
