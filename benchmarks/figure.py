"""Tightness against time: every contestant of the constraint's benchmark a point."""

import json

from benchmarks.constraint import BENCHMARKS, OURS


def draw(source, target, name="constraint_mlp_2048"):
    """Draw the last line of a benchmark in a file of JSON lines."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in source.read_text().splitlines()]
    rows = [line["rows"] for line in lines if line["benchmark"] == name][-1]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for row in rows:
        ours = row["contestant"] in OURS and row["contestant"] != "plain"
        axes.scatter(
            row["ratio"], row["tightness"], s=60, color="#0072B2" if ours else "#999999", zorder=3
        )
        axes.annotate(
            row["contestant"],
            (row["ratio"], row["tightness"]),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="time of a training step, in plain ones",
        ylabel="distance from a tight frame\n(root mean square of W'W - I)",
        title=BENCHMARKS[name].name,
    )
    axes.margins(x=0.25)
    axes.grid(alpha=0.3)
    figure.savefig(target, dpi=120)
    plt.close(figure)
