"""Settings for each variant of the paper's experiments, chosen on the validation images.

Every variant of a model may try as many settings as any other. Each is trained once and measured on
images that are neither trained on nor tested on. Its score is the mean of two accuracies: on clean
images, and under the attack in many steps at the first of the levels; a training that diverges
scores 0.
"""

import dataclasses

import numpy as np

import keras_parseval as kp

from ..experiments.records import append, read
from . import training
from .recipes import Run

LEVELS = (33, 25, 20, 15)
STEPS = 20

# The paper's beta and stronger ones. Weight decay acts on the classifier alone here.
_BIASED = ((3e-4, 5e-4), (1e-2, 5e-4), (1e-2, 1e-2), (0.1, 3e-2))
_UNBIASED = ((1e-3, 5e-4), (0.1, 5e-4), (0.1, 1e-2), (0.1, 3e-2))


def _grid(rates, *others):
    """Every learning rate with each of the other choices."""
    return [{"learning_rate": rate, **other} for rate in rates for other in others or [{}]]


def _fully_connected(rates, decays, sgd_rates, maxmin_rates):
    """The settings of each variant of a fully connected network."""

    def frames(rates, pairs):
        return _grid(rates, *({"beta": beta, "weight_decay": decay} for beta, decay in pairs))

    return {
        "sgd": _grid(sgd_rates),
        "sgd-wd": _grid(rates, *({"weight_decay": decay} for decay in decays)),
        **{variant: frames(rates, _BIASED) for variant in ("parseval", "parseval-100%")},
        **{f"parseval-unbiased-{rows}": frames(rates, _UNBIASED) for rows in ("30%", "10%")},
        "parseval-unbiased-10%-maxmin": frames(maxmin_rates, _UNBIASED),
    }


# The larger what reaches the classifier, the smaller the rate at which training diverges. Images
# with more pixels are larger, and MaxMin, unlike ReLU, does not shrink them on the way.
_SMALL_IMAGES = _fully_connected(
    rates=(0.05, 0.2),
    decays=(5e-4, 2e-3, 5e-3, 1e-2),
    sgd_rates=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
    maxmin_rates=(0.02, 0.05),
)
_LARGE_IMAGES = _fully_connected(
    rates=(0.05, 0.1),
    decays=(2e-3, 5e-3, 1e-2, 2e-2),
    sgd_rates=(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2),
    maxmin_rates=(0.005, 0.015),
)


def _residual(**fixed):
    """The settings of a variant of a residual network.

    The paper has dropout in its vanilla networks, and does not tell whether the others have it.
    """
    return _grid((0.05, 0.1, 0.2), *({**fixed, "dropout": rate} for rate in (0.0, 0.3)))


# The paper's beta of 3e-4 does not hold a frame over a schedule that is shorter than its own.
_WIDE_RESNET = {
    "vanilla": _residual(),
    "parseval-oc": _residual(beta=0.1),
    "parseval": _residual(beta=0.1),
}


def settings_of(run):
    """What the variant of a run may try: as many settings as any other variant of the model."""
    if run.model != "fc":
        return _WIDE_RESNET[run.variant]
    return (_SMALL_IMAGES if run.dataset in ("digits", "mnist") else _LARGE_IMAGES)[run.variant]


def tuned_for(run):
    """The run whose trials choose the setting of a run: itself, or the same one without attack.

    Residual networks take too long to be tried with adversarial examples as well.
    """
    return run if run.model == "fc" else dataclasses.replace(run, adversarial=False)


def with_setting(run, setting):
    """The run with other values for its learning rate and its network."""
    rate = {"learning_rate": setting["learning_rate"]}
    network = {key: value for key, value in setting.items() if key not in rate}
    return dataclasses.replace(run, builder=run.builder | network, training=run.training | rate)


def tune(runs, dataset, folder, verbose):
    """Try every setting of every run, and add a line to `tuning.jsonl` for each."""
    path = folder / "tuning.jsonl"
    for run in {run.name: run for run in map(tuned_for, runs)}.values():
        for setting in settings_of(run):
            varied = with_setting(run, setting)
            if varied.to_dict() in [record["config"] for record in read(path)]:
                continue
            record, _ = try_out(varied, dataset, folder, verbose)
            append(path, {"setting": setting, **record})
            print(f"{run.name} {setting}: {record['score']:.4f}")


def try_out(
    run,
    dataset,
    folder,
    verbose,
    change=lambda model: None,
    finish=lambda model, dataset: None,
):
    """Train once, and measure on the validation images.

    Args:
        run: The run.
        dataset: Its data.
        folder: Where to keep what is not finished.
        verbose: As in `fit`.
        change: Called on the compiled model, before training.
        finish: Called on the trained model and its data, before measuring.

    Returns:
        What there is to say of the trial, as plain data, and the trained model.
    """
    checkpoint = folder / "checkpoints" / f"trial-{run.name}.npz"
    checkpoint.unlink(missing_ok=True)
    model = training.compile_model(run, dataset)
    change(model)
    progress = training.train(run, dataset, model, checkpoint, verbose)
    checkpoint.unlink()
    record = {"name": run.name, "config": run.to_dict(), "seconds": sum(progress.seconds)}
    if not np.isfinite(progress.history["loss"][-1]):
        return {**record, "score": 0.0, "validation": None}, model
    finish(model, dataset)
    x, y = (array[: run.attacked] for array in dataset.validation)
    attack = kp.IteratedFGSM(steps=STEPS)
    result = kp.robust_accuracy(model, x, y, snr=LEVELS, attack=attack, verbose=0)
    score = (result.clean + result.accuracies[0]) / 2
    return {**record, "score": score, "validation": training.as_record(result)}, model


def best(path, run):
    """The setting with the highest score among those tried for the variant of a run."""
    records, run = read(path), tuned_for(run)
    tried = [each for each in records if Run(**each["config"]).label == run.label]
    tried = [each for each in tried if Run(**each["config"]).group == run.group]
    if len(tried) < len(settings_of(run)):
        raise ValueError(
            f"All {len(settings_of(run))} settings of {run.label} on {run.group} must have been "
            "tried; give the command with `--tune` first, and to the end. "
            f"Received: {len(tried)} in {path}"
        )
    return max(tried, key=lambda each: each["score"])["setting"]
