"""The tables of README.md, from the lines of JSON that the benchmarks have left."""

import json

from benchmarks import attacks, constraint
from benchmarks.timing import as_markdown


def read(path, backend=""):
    """The rows of each benchmark, from its first line in a file that is of this backend."""
    found = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if line["backend"].startswith(backend):
            found.setdefault(line["benchmark"], line["rows"])
    return found


def summary(path):
    """All tables, as Markdown."""
    results = read(path)
    tables = [
        *(_constraints(read(path, "tensorflow")), _backends(path)),
        *(results["trained_mlp_1024"], results["trained_mlp_1024_adam"], results["torch_layers"]),
        *(_attacks(read(path, "tensorflow")), _suites(path)),
    ]
    return "\n\n".join(map(as_markdown, tables))


def _constraints(results):
    """A row for each contestant: the time of a step on each network."""
    found = {
        constraint.BENCHMARKS[name].name: {row["contestant"]: row["ratio"] for row in rows}
        for name, rows in results.items()
        if name in constraint.BENCHMARKS
    }
    contestants = dict.fromkeys(name for ratios in found.values() for name in ratios)
    return [
        {
            "step": contestant,
            **{
                network: f"{ratios[contestant]:.2f}" if contestant in ratios else ""
                for network, ratios in found.items()
            },
        }
        for contestant in contestants
    ]


def _backends(path):
    """A row for each backend: the time of a step with the default on each network."""
    rows = []
    for title, backend in (("TensorFlow", "tensorflow"), ("JAX", "jax"), ("PyTorch", "torch")):
        results, row = read(path, backend), {"backend": title}
        for name, benchmark in constraint.BENCHMARKS.items():
            ratios = {each["contestant"]: each["ratio"] for each in results[name]}
            row[benchmark.name] = f"{ratios[constraint.DEFAULT[1]]:.2f}"
        rows.append(row)
    return rows


def _attacks(results):
    """A row for each contestant that trains or evaluates under attack."""
    names = ("adversarial_training", "robust_accuracy_4", "robust_accuracy_16")
    return [
        {
            "": row["contestant"],
            "to": results[name][0]["contestant"],
            "ratio": f"{row['ratio']:.2f}",
            "quartiles": row["quartiles"],
            "by the clock": f"{row['by the clock']:.2f}",
        }
        for name in names
        for row in results[name][1:]
    ]


def _suites(path):
    """A row for each attack that looks for the worst case, and backend."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {
        (line["benchmark"], line["backend"]): {row["contestant"]: row for row in line["rows"]}
        for line in lines
        if line["benchmark"] in attacks.BENCHMARKS
    }
    return [
        {
            "attack": attacks.BENCHMARKS[name].name,
            "backend": backend,
            "to torchattacks": f"{rows['keras_parseval']['ratio']:.2f}",
            "quartiles": rows["keras_parseval"]["quartiles"],
            "first call": f"{rows['keras_parseval']['first call, ms'] / 1000:.1f} s",
            "later": f"{rows['keras_parseval']['ms'] / 1000:.1f} s",
            "torchattacks": f"{rows['torchattacks']['ms'] / 1000:.1f} s",
        }
        for (name, backend), rows in found.items()
    ]
