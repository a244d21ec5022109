"""Tightness after training against the time of a step: each way to constrain is a point."""

from benchmarks import summary

TICKS = (1, 2, 5)


def draw(source, target, timed="constraint_mlp_1024", trained="trained_mlp_1024"):
    """Draw what a file of JSON lines says of one network."""
    import matplotlib.pyplot as plt

    rows = summary.read(source, "tensorflow")[timed]
    ratios = {row["contestant"]: row["ratio"] for row in rows}
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for row in summary.read(source)[trained]:
        name = row["contestant"]
        offset = max(row["largest"] - 1, 1 - row["smallest"], 5e-4)
        axes.plot(ratios[name], offset, "X" if name == "plain" else "o", ms=10, label=name)
    axes.set(xscale="log", yscale="log", xlim=(0.9, 7))
    axes.set_xticks(TICKS, map(str, TICKS), minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("time of a training step, in plain ones")
    axes.set_ylabel("furthest singular value from 1\nat the end of training")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(target, dpi=100)
    plt.close(figure)
