"""
Title: Attacks on certified networks
Description: What is left of the trained networks under attack, beside what is certain.

    python -m examples.certified.attacks --data-dir DIR --out results

For every finished run in the directory `--out`, one line in `attacks.jsonl`: the accuracy of its
network under the standard suite of attacks, in the 2-norm, at some sizes of the perturbation, and
under Auto-PGD alone at the others; then how many decisions change when every certified example
is attacked by as much as its own certificate, in both norms. An example that breaks within its
certified radius is an error. A command that was interrupted goes on where it was.
"""

import argparse
import time
from pathlib import Path

import keras
import numpy as np

import keras_parseval as kp

from ..experiments.command import check, load_data
from ..experiments.records import append, machine, read, read_runs, versions
from . import networks, recipes

# Which of the levels of `recipes.epsilons` are attacked by the whole suite; it takes hours.
BY_SUITE = {"mnist": (0.5, 1.58)}


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    folder = Path(options.out)
    try:
        for name in ("images", "steps"):
            check(name, getattr(options, name), "a positive integer", getattr(options, name) > 0)
        records = chosen_runs(folder, options.names)
    except ValueError as error:
        parser.error(str(error))
    for number, record in enumerate(records, start=1):
        known = [each["name"] for each in read(folder / "attacks.jsonl")]
        finished = record["name"] in known
        print(f"[{number}/{len(records)}] {record['name']}{': finished before' * finished}")
        if not finished:
            options.dataset, options.limit = record["config"]["dataset"], record["config"]["limit"]
            options.full = record["config"]["full"]
            append(folder / "attacks.jsonl", attack(record, load_data(options), folder, options))


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m examples.certified.attacks",
        description="Attack the networks that `python -m examples.certified` has trained.",
    )
    add = parser.add_argument
    add("--out", default="certified-results", help="the directory that was trained into")
    add("--data-dir", help="where tensorflow-datasets has prepared the data; else it downloads")
    add("--names", nargs="+", help="the runs to attack; by default all that are finished")
    add("--images", type=int, default=1000, help="how many test images to attack")
    add("--steps", type=int, default=100, help="those of gradient attacks")
    add("--queries", type=int, default=5000, help="those of the square attack")
    return parser


def chosen_runs(folder, names):
    """The finished runs that were asked for."""
    runs = read_runs(folder)
    if not runs or not set(names or ()) <= set(runs):
        raise ValueError(
            "`--out` must be a directory with finished runs, and `--names` must be among them. "
            f"Received: {folder} with {', '.join(runs) or 'none'}, and {names}"
        )
    return [runs[name] for name in names or runs]


def attack(record, dataset, folder, options):
    """Attack the network of a finished run, and return a line for the record."""
    name, started = record["name"], time.perf_counter()
    model = networks.finished(keras.models.load_model(folder / "models" / f"{name}.keras"))
    x, y = (array[: options.images] for array in dataset.test)
    suite, alone = levels_of(dataset.name)
    sizes = {"steps": options.steps, "queries": options.queries}
    whole = kp.attacks.standard(2, **sizes, classes=dataset.classes)
    radii = kp.certified_radius(model, x, y, verbose=0)

    def measured(attack, levels, part):
        backup = folder / "checkpoints" / f"{name}-{part}.npz"
        backup.parent.mkdir(exist_ok=True)
        result = kp.robust_accuracy(
            *(model, x, y), epsilon=levels, attack=attack, radii=radii, backup=backup, verbose=0
        )
        return {
            "attack": result.attack,
            "levels": result.levels,
            "accuracies": result.accuracies,
            "intervals": result.intervals[1:],  # without that of the clean images
            "certified": [float((radii > level).mean()) for level in result.levels],
            "warnings": result.warnings,
        }

    parts = {
        "suite": measured(whole, suite, "suite"),
        "alone": measured(
            kp.attacks.APGD(norm=2, bounds=(0, 1), steps=options.steps), alone, "alone"
        ),
    }
    return {
        "name": name,
        "images": len(y),
        "clean": float((predictions(model, x) == y).mean()),
        **parts,
        "inside": [inside(model, x, norm, options.steps) for norm in (2, "inf")],
        "seconds": time.perf_counter() - started,
        "versions": versions(),
        "machine": machine(),
    }


def levels_of(dataset):
    """The levels for the whole suite, and the others."""
    levels = recipes.epsilons(dataset)
    suite = BY_SUITE.get(dataset, (36 / 255, 108 / 255))
    return suite, tuple(level for level in levels if level not in suite)


def inside(model, x, norm, steps):
    """How many decisions change when each image is attacked by as much as its certificate."""
    radii = kp.certified_radius(model, x, norm=norm, verbose=0)
    before, flipped = predictions(model, x), 0
    for attack in (
        kp.attacks.PGD(steps=steps, norm=norm, bounds=(0, 1)),
        kp.attacks.APGD(steps=steps, norm=norm, bounds=(0, 1)),
    ):
        # Up to rounding, which certificates do not count.
        changed = [
            predictions(model, attack(model, part, epsilon=near)) != were
            for part, near, were in batches(x, radii * (1 - 1e-5), before)
        ]
        flipped = flipped | np.concatenate(changed)
    return {
        "norm": norm,
        "attacks": f"PGD and Auto-PGD, {steps} steps",
        "certified": int((radii > 0).sum()),
        "flipped": int((flipped & (radii > 0)).sum()),
        "median_radius": float(np.median(radii)),
    }


def batches(*arrays, size=250):
    """Parts of arrays, each small enough to attack at once."""
    cuts = range(size, len(arrays[0]), size)
    return zip(*(np.split(array, cuts) for array in arrays))


def predictions(model, x):
    return np.argmax(model.predict(x, batch_size=500, verbose=0), axis=-1)


if __name__ == "__main__":
    main()
