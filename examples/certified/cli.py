"""
Title: Certified networks on real images
Description: Networks of Lipschitz constant 1 on MNIST and CIFAR-10, by one command.

    python -m examples.certified --out results
    python -m examples.certified --dataset cifar10 --data-dir DIR --variants operator kernel \\
        --limit 10000 --epochs 8 --rates 2e-3 5e-3 --out results

Run it from the root of the repository. Without more, it trains on the bundled digits. Several rates
are compared on validation images; test images tell the outcome. The directory `--out` receives

- `runs.jsonl`: one line for each finished run, with all that was asked for and measured;
- `models/`: the trained networks.

A command that was interrupted, however, goes on where it was when it is given again: after the last
finished epoch, with the same outcome. It needs scikit-learn, matplotlib, TensorFlow for the data
pipelines, and tensorflow-datasets for all data but the digits.
"""

import argparse
import json

import keras

from .. import data
from ..paper.cli import check, prepare_folder
from ..paper.report import add_run, read_runs
from ..paper.training import checkpoint_config
from . import recipes, report, training


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        runs = plan(options)
        keras.config.set_dtype_policy(options.precision)
        dataset = data.load(options.dataset, options.data_dir, options.limit, options.full)
        folder = prepare_folder(options.out)
        for run in runs:
            recipes.build(run, dataset)
            check_new_or_same(folder, run)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        # Whatever is wrong is found out before any training.
        parser.error(str(error))
    for number, run in enumerate(runs, start=1):
        finished = run.name in read_runs(folder)
        print(f"[{number}/{len(runs)}] {run.name}{': finished before' * finished}", flush=True)
        if not finished:
            checkpoint = checkpoint_of(folder, run)
            record = training.execute(run, dataset, folder, checkpoint, options.verbose)
            add_run(folder, record)
            checkpoint.unlink(missing_ok=True)
            print(json.dumps({"name": run.name, **record["results"]}), flush=True)
    print(f"\n{report.tables(read_runs(folder).values())}")


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m examples.certified",
        description="Train networks of Lipschitz constant 1, and certify them.",
    )
    add = parser.add_argument
    add("--dataset", default="digits", choices=list(data.SOURCES))
    add("--data-dir", help="where tensorflow-datasets has prepared the data; else it downloads")
    add("--limit", type=int, help="use this many training images, and no more of the others")
    add("--full", action="store_true", help="train on the validation images too")
    add("--variants", nargs="+", default=["operator"], choices=list(recipes.VARIANTS))
    add("--rates", type=float, nargs="+", default=[2e-3], help="learning rates to choose among")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--epochs", type=int, default=8)
    add("--batch-size", type=int, default=250)
    add("--margin", type=float, default=0.7, help="see kp.losses.MarginCrossentropy")
    add("--precision", default="float32", help="a policy of Keras, such as mixed_bfloat16")
    add("--network", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the builder, "
        "with values as in JSON: widths=[64,128,256] depth=3")  # fmt: skip
    add("--out", default="certified-results", help="directory for everything that is written")
    add("--verbose", type=int, default=2, choices=(0, 1, 2), help="as in `fit`")
    return parser


def plan(options):
    """The runs that were asked for."""
    for name in ("epochs", "batch_size"):
        value = getattr(options, name)
        check(name, value, "a positive integer", value > 0)
    for rate in options.rates:
        check("rates", rate, "positive numbers", rate > 0)
    for seed in options.seeds:
        check("seeds", seed, "integers, 0 or more", seed >= 0)
    if options.full and len(options.rates) > 1:
        raise ValueError(
            "Rates must be chosen on validation images, which `--full` trains on; choose first, "
            f"without it. Received: --full with {len(options.rates)} rates"
        )
    return [
        recipes.Run(
            dataset=options.dataset,
            variant=variant,
            rate=rate,
            seed=seed,
            network=network_arguments(options.network),
            epochs=options.epochs,
            batch_size=options.batch_size,
            margin=options.margin,
            limit=options.limit,
            full=options.full,
            precision=options.precision,
            backend=keras.backend.backend(),
        )
        for seed in dict.fromkeys(options.seeds)
        for variant in dict.fromkeys(options.variants)
        for rate in dict.fromkeys(options.rates)
    ]


def network_arguments(pairs):
    """Arguments of the builder, from `NAME=VALUE` with values as in JSON."""
    arguments = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(
                "`--network` takes NAME=VALUE with values as in JSON, such as depth=3 or "
                f"widths=[64,128]. Received: {pair!r}"
            ) from error
    return arguments


def checkpoint_of(folder, run):
    return folder / "checkpoints" / f"{run.name}.npz"


def check_new_or_same(folder, run):
    """Refuse to go on with, or to leave out, a run of the same name with other settings."""
    finished = read_runs(folder).get(run.name, {}).get("config")
    for other in filter(None, (finished, checkpoint_config(checkpoint_of(folder, run)))):
        if other != run.to_dict():
            changed = sorted(name for name, value in run.to_dict().items() if other[name] != value)
            raise ValueError(
                f"`--out` has a run {run.name} with other settings; choose another directory. "
                f"Received: {folder}, whose run differs in {', '.join(changed)}"
            )
