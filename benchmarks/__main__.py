"""Run benchmarks, and print a Markdown table and a line of JSON for each."""

import argparse
import json
import os
import platform
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from benchmarks import (
    adversarial_training,
    attacks,
    constraint,
    convolution,
    exact_steps,
    figure,
    first_calls,
    gpu,
    gradients,
    lipschitz,
    memory,
    robust_accuracy,
    scaling,
    simplex,
    summary,
    torch_layers,
    trained,
)
from benchmarks.timing import as_markdown

MODULES = (
    *(constraint, trained, convolution, torch_layers, adversarial_training, robust_accuracy),
    *(attacks, lipschitz, gradients, first_calls, simplex, scaling, exact_steps, memory, gpu),
)
BENCHMARKS = {name: each for module in MODULES for name, each in module.BENCHMARKS.items()}


def machine():
    """Where the figures come from."""
    backend = keras.backend.backend()
    return {
        "backend": f"{backend} {__import__(backend).__version__}",
        "keras": keras.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, help="add the lines of JSON to this file")
    parser.add_argument("--figure", type=Path, help="draw tightness against time, from `--json`")
    parser.add_argument("--summary", action="store_true", help="README's tables, from `--json`")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    reports = bool(options.figure or options.summary)
    if reports and not options.json:
        parser.error("`--figure` and `--summary` tell what is in `--json`; name it too")
    # A report of what was measured before needs no new measurement.
    for name in options.names or ([] if reports else BENCHMARKS):
        benchmark = BENCHMARKS[name]
        rows = benchmark.run()
        if not rows:
            continue
        line = json.dumps({"benchmark": name, **machine(), "rows": rows})
        print(f"## {benchmark.title}\n\n{as_markdown(rows)}\n\n{line}\n", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(line + "\n")
    if options.figure:
        figure.draw(options.json, options.figure)
    if options.summary:
        print(summary.summary(options.json))


if __name__ == "__main__":
    main()
