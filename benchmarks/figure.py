"""Tightness against time: every contestant of the constraint's benchmark a point."""

from benchmarks import summary
from benchmarks.constraint import BENCHMARKS, OURS

TICKS = (1, 2, 5, 10, 20)


def draw(source, target, names=("constraint_mlp_1024", "constraint_mlp_2048")):
    """Draw the last line of each benchmark in a file of JSON lines."""
    import matplotlib.pyplot as plt

    results = summary.read(source)
    figure, panels = plt.subplots(1, len(names), figsize=(10, 3.8), layout="constrained")
    for axes, name in zip(panels, names):
        for row in results[name]:
            marker = "o" if row["contestant"] in OURS and row["contestant"] != "plain" else "X"
            axes.plot(row["ratio"], row["tightness"], marker, ms=9, label=row["contestant"])
        axes.set(xscale="log", yscale="log", xlim=(0.8, 25), title=BENCHMARKS[name].name)
        axes.set_xticks(TICKS, map(str, TICKS), minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("time of a training step, in plain ones")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("distance from a tight frame")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    figure.savefig(target, dpi=100)
    plt.close(figure)
