"""One run: training that can be killed at any moment, and measuring."""

import os
import platform
import time

import keras

import keras_parseval as kp

from ..paper.training import Checkpoint, versions, write_atomically
from . import recipes

EPSILONS = tuple(level / 255 for level in (36, 72, 108, 255))


def execute(run, dataset, folder, checkpoint, verbose):
    """Train, or go on training from the checkpoint, and measure. The model is left in `folder`.

    Returns:
        What there is to say of the run, as plain data.
    """
    model = compile_model(run, dataset)
    history, seconds = train(run, dataset, model, checkpoint, verbose)
    started = time.perf_counter()
    results = measure(dataset, model, history)
    write_atomically(folder / "models" / f"{run.name}.keras", model.save)
    return {
        "name": run.name,
        "config": run.to_dict(),
        "results": results,
        "history": history,
        "seconds": {"training": seconds, "measuring": time.perf_counter() - started},
        "versions": versions(),
        "machine": {"platform": platform.platform(), "cores": os.cpu_count()},
    }


def compile_model(run, dataset):
    """The model of a run, with the initial weights of its seed."""
    keras.utils.set_random_seed(run.seed)
    model = recipes.build(run, dataset)
    model.compile(
        recipes.optimizer(run, dataset),
        kp.losses.MarginCrossentropy(run.margin),
        metrics=["accuracy"],
        jit_compile=run.backend != "torch",
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train(run, dataset, model, checkpoint, verbose):
    """Train from the last finished epoch on.

    Returns:
        The history of all epochs, and the seconds that they took.
    """
    progress = Checkpoint(checkpoint, run)
    first_epoch = progress.restore(model)
    if first_epoch < run.epochs:
        model.fit(
            dataset.train_batches(run.batch_size, run.seed, run.epochs, first_epoch),
            steps_per_epoch=dataset.steps(run.batch_size),
            shuffle=False,  # The batches are shuffled already, in a way that can be repeated.
            initial_epoch=first_epoch,
            epochs=run.epochs,
            # The checkpoint last, so that it sees what the logger has written into the logs.
            callbacks=[kp.SpectrumLogger(convolutions="operator"), progress],
            verbose=verbose,
        )
    return progress.history, progress.seconds


def measure(dataset, model, history):
    """Certified accuracies on validation and test images, and how tight the layers are.

    Norms are those of training's end. Then the layers are tightened, and the rest is measured.
    """
    before = kp.lipschitz_bound(model)
    tightened = True
    try:
        kp.tighten(model)
    except ValueError as error:
        # Nothing was changed. The certificate counts whatever is left.
        tightened = False
        print(error)
    parts = {"validation": dataset.validation, "test": dataset.test}
    certified = {
        name: kp.certified_accuracy(model, *part, epsilon=EPSILONS, batch_size=500, verbose=0)
        for name, part in parts.items()
        if part is not None
    }
    return {
        **{name: [each.clean, *each.accuracies] for name, each in certified.items()},
        "parameters": model.count_params(),
        "images": len(dataset.train[1]),
        "largest_on_the_way": max(history["spectrum_max"]),
        "smallest_at_the_end": history["spectrum_min"][-1],
        "largest_at_the_end": history["spectrum_max"][-1],
        "largest_norm_at_the_end": max(
            entry.local[0] for entry in before.entries if entry.kind == "Conv2D"
        ),
        "bound_at_the_end": before.bound,
        "tightened": tightened,
        "bound": kp.lipschitz_bound(model).bound,
    }
