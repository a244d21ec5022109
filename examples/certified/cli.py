"""
Title: Certified networks on real images
Description: Networks of Lipschitz constant 1 on MNIST and CIFAR-10, by one command.

    python -m examples.certified --out results
    python -m examples.certified --dataset cifar10 --data-dir DIR --variants operator kernel \\
        --limit 10000 --epochs 8 --rates 2e-3 5e-3 --out results

Run it from the root of the repository. Without more, it trains on the bundled digits. Several rates
are compared on validation images; test images tell the outcome. With `--minutes`, every network has
as many epochs as there is time for, at the speed of its first steps. The directory `--out` receives

- `runs.jsonl`: one line for each finished run, with all that was asked for and measured;
- `models/`: the trained networks, in float32.

`python -m examples.certified.attacks` attacks them. A command that was interrupted, however, goes
on where it was when it is given again: after the last finished epoch, with the same outcome. It
needs scikit-learn, matplotlib, TensorFlow for the data pipelines, and tensorflow-datasets for all
data but the digits.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import keras

from ..experiments import command
from ..experiments.records import read_runs
from ..experiments.training import checkpoint_config
from . import recipes, report, training


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        runs = plan(options)
        keras.config.set_dtype_policy(options.precision)
        dataset = command.load_data(options)
        folder = command.prepare_folder(options.out)
        for run in runs:
            recipes.build(run, dataset)
            check_new_or_same(folder, run)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        # Whatever is wrong is found out before any training.
        parser.error(str(error))

    def execute(run, checkpoint):
        run = with_epochs(run, dataset, checkpoint)
        return training.execute(run, dataset, folder, checkpoint, options.verbose)

    for record in command.execute_all(runs, folder, execute):
        print(json.dumps({"name": record["name"], **record["results"]}), flush=True)
    print(f"\n{report.tables(read_runs(folder).values())}")


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m examples.certified",
        description="Train networks of Lipschitz constant 1, and certify them.",
    )
    command.add_shared_options(parser, out="certified-results")
    add = parser.add_argument
    add("--variants", nargs="+", default=["operator"], choices=list(recipes.VARIANTS))
    add("--rates", type=float, nargs="+", default=[2e-3], help="learning rates to choose among")
    add("--tuned", type=Path, metavar="DIR", help="in place of --rates: for each variant, the one "
        "that validation images chose among the runs in this directory")  # fmt: skip
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=8)
    length.add_argument("--minutes", type=float, help="in place of --epochs: the time for each run")
    add("--batch-size", type=int, default=250)
    add("--margins", type=float, nargs="+", help="see kp.losses.MarginCrossentropy; by default "
        "what suits the variant, like --temperature and --weight-decays")  # fmt: skip
    add("--temperature", type=float, help="the same")
    add("--weight-decays", type=float, nargs="+", help="those of the optimizer, for kernels")
    add("--optimizer", default="adam", choices=list(recipes.OPTIMIZERS))
    add("--precision", default="float32", help="a policy of Keras, such as mixed_bfloat16")
    add("--network", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of the builder, "
        "with values as in JSON: widths=[64,128,256] depth=3")  # fmt: skip
    return parser


def plan(options):
    """The runs that were asked for."""
    for name in ("epochs", "batch_size", "minutes"):
        value = getattr(options, name)
        if value is not None:
            command.check(
                name, value, f"a positive {'number' if name == 'minutes' else 'integer'}", value > 0
            )
    for rate in options.rates:
        command.check("rates", rate, "positive numbers", rate > 0)
    command.check_seeds(options.seeds)
    if options.full and options.tuned is None and len(options.rates) > 1:
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
            minutes=options.minutes,
            batch_size=options.batch_size,
            margin=margin,
            temperature=given(options.temperature, recipes.VARIANTS[variant].temperature),
            weight_decay=weight_decay,
            optimizer=options.optimizer,
            limit=options.limit,
            full=options.full,
            precision=options.precision,
            backend=keras.backend.backend(),
        )
        for seed in dict.fromkeys(options.seeds)
        for variant in dict.fromkeys(options.variants)
        for margin in given(options.margins, [recipes.VARIANTS[variant].margin])
        for weight_decay in given(options.weight_decays, [recipes.VARIANTS[variant].weight_decay])
        for rate in rates_of(options, variant)
    ]


def rates_of(options, variant):
    """The learning rates of a variant: those that were given, or the best of other runs."""
    if options.tuned is None:
        return list(dict.fromkeys(options.rates))
    tried = report.by_rate(read_runs(options.tuned).values())
    if variant not in tried:
        raise ValueError(
            f"`--tuned` must be a directory with runs of {variant}; run it there first, at several "
            f"rates. Received: {options.tuned}, with runs of {', '.join(tried) or 'nothing'}"
        )
    return [report.chosen_rate(tried[variant])]


def given(value, otherwise):
    """What the user gave, or else the other."""
    return otherwise if value is None else value


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


def with_epochs(run, dataset, checkpoint):
    """The run with the number of epochs that its checkpoint has, or else that its minutes allow."""
    if run.minutes is None:
        return run
    begun = checkpoint_config(checkpoint)
    if begun:
        return dataclasses.replace(run, epochs=begun["epochs"])
    return training.within_budget(run, dataset)


def check_new_or_same(folder, run):
    """Refuse to go on with, or to leave out, a run of the same name with other settings."""
    finished = read_runs(folder).get(run.name, {}).get("config")
    # Where minutes were given, they decide the epochs.
    ours = {
        name: value
        for name, value in run.to_dict().items()
        if name != "epochs" or run.minutes is None
    }
    for other in filter(None, (finished, checkpoint_config(command.checkpoint_of(folder, run)))):
        changed = sorted(name for name, value in ours.items() if other.get(name) != value)
        if changed:
            raise ValueError(
                f"`--out` has a run {run.name} with other settings; choose another directory. "
                f"Received: {folder}, whose run differs in {', '.join(changed)}"
            )
