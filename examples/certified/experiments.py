"""
Title: The experiments behind the page of certified networks
Description: Everything that `docs/certified.md` tells of, in the order of what it needs.

    KERAS_BACKEND=torch python -m examples.certified.experiments --data-dir DIR --out OUT
    python -m examples.certified.results_page OUT

The first command trains and attacks whatever is not finished; it can be killed at any moment and
given again. With names, it does these experiments alone: `experiments comparison long`. The second
copies the lines into `examples/certified/results/` and makes the page of them.
"""

import argparse
from pathlib import Path

from . import attacks, cli

_CIFAR10 = "--dataset cifar10 --precision mixed_bfloat16"
_SHORT = f"{_CIFAR10} --limit 10000 --epochs 8"
_MNIST = "--dataset mnist --precision mixed_bfloat16"
CONTESTANTS = "operator kernel paper plain adversarial orthogonium torchlip"

# Each has a directory of its own. `{out}` is the one that holds them all.
EXPERIMENTS = {
    "comparison": f"{_SHORT} --variants {CONTESTANTS} --rates 2e-3 5e-3",
    "muon": f"{_SHORT} --optimizer muon --rates 0.03 0.06 0.1",
    "mnist-trials": f"{_MNIST} --limit 10000 --epochs 8 --margins 0.7 1.4 2.1 --rates 3e-3",
    "mnist": f"{_MNIST} --full --minutes 30 --margins 1.4 --rates 3e-3",
    "margins": f"{_SHORT} --margins 0.2 0.4 0.7 1.0 1.4 --rates 2e-3",
    "minutes": f"{_CIFAR10} --full --minutes 30 --variants {CONTESTANTS} "
    "--tuned {out}/comparison",
    "long": f"{_CIFAR10} --full --epochs 30 --optimizer muon --rates 0.06 --seeds 0 1 2",
}
ATTACKED = ("mnist", "minutes", "long")


def command(name, out="OUT"):
    """The arguments of `python -m examples.certified` for an experiment."""
    return f"{EXPERIMENTS[name].format(out=out)} --out {out}/{name}"


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m examples.certified.experiments",
        description="Train and attack all networks of the page of certified networks.",
    )
    add = parser.add_argument
    add("names", nargs="*", help=f"some of {', '.join(EXPERIMENTS)}; by default all")
    add("--data-dir", required=True, help="where tensorflow-datasets has prepared the data")
    add("--out", required=True, help="directory for everything that is written")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"experiments must be among {', '.join(EXPERIMENTS)}. Received: {unknown}")
    for name in options.names or EXPERIMENTS:
        print(f"\n{name}: {command(name, options.out)}\n", flush=True)
        where = ["--data-dir", options.data_dir]
        cli.main([*command(name, options.out).split(), *where])
        if name in ATTACKED:
            attacks.main(["--out", str(Path(options.out) / name), *where])


if __name__ == "__main__":
    main()
