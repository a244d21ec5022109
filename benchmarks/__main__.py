"""Run benchmarks and print a Markdown table and a line of JSON for each."""

import argparse
import json
import os
import platform

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from benchmarks.adversarial_training import AdversarialTraining
from benchmarks.robust_accuracy import RobustAccuracy
from benchmarks.timing import as_markdown, compare

BENCHMARKS = {
    "adversarial_training": AdversarialTraining(rounds=15),
    "robust_accuracy_4": RobustAccuracy(levels=4, rounds=15),
    "robust_accuracy_16": RobustAccuracy(levels=16, rounds=7),
}


def machine():
    """Where the figures come from."""
    return {
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        benchmark = BENCHMARKS[name]
        rows = compare(benchmark.run(), benchmark.baseline)
        print(f"## {benchmark.title}\n\n{as_markdown(rows)}\n")
        print(json.dumps({"benchmark": name, **machine(), "rows": rows}) + "\n", flush=True)


if __name__ == "__main__":
    main()
