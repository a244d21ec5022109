"""
Title: The experiments of the paper
Description: Vanilla and Parseval networks on MNIST, CIFAR and SVHN, by one command.

    python -m examples.paper --out results
    python -m examples.paper --dataset cifar10 --model wrn-28-10 --seeds 0 1 2 --out results

Run it from the root of the repository. Without more, small networks learn the bundled digits. With
`--dataset`, networks and training are those of the paper, unless an option says otherwise. The
directory `--out` receives

- `runs.jsonl`: one line for each finished run, with all that was asked for and measured;
- `table.md`: our accuracies beside the paper's, and what else tells the networks apart;
- `models/` and `figures/`: the trained networks, and all figures.

A command that was interrupted, however, goes on where it was when it is given again: after the last
finished epoch, with the same outcome. It needs scikit-learn, matplotlib, TensorFlow for the data
pipelines, and tensorflow-datasets for all data but the digits.
"""

import argparse
from pathlib import Path

import keras

from ..experiments.command import (
    add_shared_options,
    check,
    check_seeds,
    checkpoint_of,
    execute_all,
    load_data,
    prepare_folder,
)
from ..experiments.records import read_runs
from ..experiments.training import checkpoint_config
from . import recipes, report, suspects, training, tuning


def main(arguments=None):
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        runs = plan(options)
        dataset = load_data(options)
        recipes.build(runs[0], dataset)
        folder = prepare_folder(options.out)
        if not (options.tune or options.suspects):
            check_folder(folder, runs)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        # Whatever is wrong is found out before any training.
        parser.error(str(error))
    make_deterministic()
    if options.tune:
        tuning.tune(runs, dataset, folder, options.verbose)
        return
    if options.suspects:
        suspects.try_all(runs, dataset, folder, options.verbose)
        return
    for _ in execute_all(
        runs,
        folder,
        lambda run, checkpoint: training.execute(run, dataset, folder, checkpoint, options.verbose),
    ):
        report.write_table(folder)
    report.write_table(folder)
    report.write_figures(folder, runs[0].group, dataset)
    print(f"\n{(folder / 'table.md').read_text()}\nFigures are in {folder / 'figures'}.")


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m examples.paper",
        description="Train and attack the networks of the paper.",
        epilog="Options that are left out follow the paper's recipe for the data set and model.",
    )
    add_shared_options(parser, out="paper-results")
    parser.set_defaults(verbose=1)
    add = parser.add_argument
    add("--model", help="fc, or wrn-D-W for a wide residual network of depth D and width W")
    add("--variants", nargs="+", help="fc: sgd, sgd-wd, parseval, ...; wrn: vanilla, ...")
    add("--adversarial", choices=("no", "yes", "both"), help="adversarial training")
    add("--attacked", type=int, help="try the attack in many steps on this many images only")
    add("--tune", action="store_true", help="try settings for each variant on validation images")
    add("--tuned", type=Path, help="use the best settings for each variant in this `tuning.jsonl`")
    add("--suspects", action="store_true", help="try what the results may hang on, the same way")
    add("--rate-scale", type=float, default=1.0, help="multiplies rates that --tuned has found")
    add = parser.add_argument_group("training").add_argument
    add("--epochs", type=int)
    add("--batch-size", type=int)
    add("--learning-rate", type=float)
    add("--momentum", type=float)
    add("--drops", type=int, nargs="*", help="epochs after which the learning rate drops")
    add("--drop-factor", type=float)
    add = parser.add_argument_group("network").add_argument
    add("--beta", type=float, help="how strongly kernels are drawn to a frame")
    add("--weight-decay", type=float)
    add("--dropout", type=float, help="wrn")
    add("--normalization", choices=("batch", "none"))
    add("--hidden", type=int, help="fc: number of hidden layers")
    add("--units", type=int, help="fc: units in each of them")
    return parser


def plan(options):
    """The runs that were asked for, in the order of the paper's tables."""
    model = options.model or recipes.DEFAULT_MODELS[options.dataset]
    builder, schedule = recipes.recipe(options.dataset, model)
    schedule |= given(options, schedule)
    check_numbers(schedule, options.seeds)
    builder |= network_options(options, model)
    variants = recipes.variants_of(model)
    chosen = options.variants or recipes.default_variants(model)
    for variant in chosen:
        if variant not in variants:
            raise ValueError(
                f"The variants of {model} must be among {', '.join(variants)}. "
                f"Received: {variant!r}"
            )
    # The paper trained with adversarial examples on all data sets but this one.
    adversarial = options.adversarial or ("no" if options.dataset == "svhn" else "both")
    kinds = {"no": (False,), "yes": (True,), "both": (False, True)}[adversarial]
    runs = [
        recipes.Run(
            dataset=options.dataset,
            model=model,
            variant=variant,
            adversarial=kind,
            seed=seed,
            builder={**builder, **variants[variant]},
            training=schedule,
            limit=options.limit,
            full=options.full,
            backend=keras.backend.backend(),
            attacked=options.attacked,
        )
        for seed in dict.fromkeys(options.seeds)
        for kind in kinds
        for variant in dict.fromkeys(chosen)
    ]
    if options.tuned is None:
        if options.suspects:
            raise ValueError(
                "`--suspects` changes the best setting of each variant; name the `tuning.jsonl` "
                "that has it. Received: --suspects without --tuned"
            )
        return runs
    # Wider networks diverge at smaller rates than those that were tuned.
    scale = options.rate_scale
    check("rate_scale", scale, "a positive number", scale > 0)
    tuned = [tuning.best(options.tuned, run) for run in runs]
    scaled = [{**each, "learning_rate": scale * each["learning_rate"]} for each in tuned]
    return [tuning.with_setting(run, setting) for run, setting in zip(runs, scaled)]


def given(options, names):
    """The options among `names` that the user gave."""
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def network_options(options, model):
    """The builder's arguments that the user gave, if the model has them."""
    foreign = given(options, ("dropout",) if model == "fc" else ("hidden", "units"))
    if foreign:
        raise ValueError(
            f"{model} has no {' and no '.join(foreign)}; leave the option out. Received: {foreign}"
        )
    network = given(options, ("beta", "weight_decay", "dropout", "normalization"))
    network |= given(options, ("hidden", "units"))
    if network.get("normalization") == "none":
        network["normalization"] = None
    return network


def check_numbers(schedule, seeds):
    for name in ("epochs", "batch_size"):
        check(name, schedule[name], "a positive integer", schedule[name] > 0)
    for name in ("learning_rate", "drop_factor"):
        check(name, schedule[name], "a positive number", schedule[name] > 0)
    check("momentum", schedule["momentum"], "in [0, 1)", 0 <= schedule["momentum"] < 1)
    check_seeds(seeds)


def check_folder(folder, runs):
    """Refuse to mix runs of different settings in one table."""
    finished = [record["config"] for record in read_runs(folder).values()]
    begun = [checkpoint_config(checkpoint_of(folder, run)) for run in runs]
    for run in runs:
        for other in filter(None, finished + begun):
            same_run = recipes.Run(**other).name == run.name
            if same_run or recipes.Run(**other).group == run.group:
                shared = ("training", "limit", "full", "backend", "attacked")
                refuse_difference(folder, run, other, list(other) if same_run else shared)


def refuse_difference(folder, run, other, fields):
    ours = run.to_dict()
    if run.name != recipes.Run(**other).name:
        # Variants may be trained at rates of their own.
        ours["training"]["learning_rate"] = other["training"]["learning_rate"]
    for field in fields:
        if ours[field] != other[field]:
            raise ValueError(
                "Runs that share a table must have the same settings; choose another `--out` for "
                f"{run.name}. Received: {field}={ours[field]}, where {folder} has {other[field]}"
            )


def make_deterministic():
    """Make equal commands have equal outcomes, to the bit where the backend can."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
