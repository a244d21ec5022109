"""One run: training that can be killed at any moment, and measuring."""

import dataclasses
import time

import keras
import numpy as np

import keras_parseval as kp

from ..experiments import training
from . import networks, recipes

# How many steps tell the speed of a training, and how many of them are looked at together.
TIMED_STEPS, WINDOW = 32, 4

QUANTILES = (0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1)


def execute(run, dataset, folder, checkpoint, verbose):
    """Train, or go on training from the checkpoint, and measure. The model is left in `folder`.

    Returns:
        What there is to say of the run, as plain data.
    """
    model = compile_model(run, dataset)
    progress = train(run, dataset, model, checkpoint, verbose)
    model = networks.finished(model)
    return training.finish(
        *(run, model, progress, lambda: measure(run, dataset, model, progress.history), folder)
    )


def compile_model(run, dataset):
    """The model of a run, with the initial weights of its seed."""
    return training.compile_model(
        run,
        lambda: recipes.build(run, dataset),
        recipes.optimizer(run, dataset),
        loss=kp.losses.MarginCrossentropy(run.margin, run.temperature),
        jit_compile=run.backend != "torch",
    )


def train(run, dataset, model, checkpoint, verbose):
    """Train from the last finished epoch on, and return the `Checkpoint`."""
    return training.fit(
        *(run, model, dataset, checkpoint, run.epochs, run.batch_size),
        callbacks=recipes.callbacks(run),
        verbose=verbose,
    )


def within_budget(run, dataset):
    """The run with as many epochs as its minutes have room for, at the speed of some steps.

    What else the machine does can only slow steps down, so those of the fastest window count.
    """
    model, clock = compile_model(run, dataset), Clock()
    steps = dataset.steps(run.batch_size)
    batches = dataset.train_batches(run.batch_size, run.seed, -(-TIMED_STEPS // steps))
    model.fit(
        batches.take(TIMED_STEPS),
        steps_per_epoch=TIMED_STEPS,
        shuffle=False,
        callbacks=[*recipes.callbacks(run), clock],
        verbose=0,
    )
    epochs = int(60 * run.minutes / (steps * clock.fastest()))
    return dataclasses.replace(run, epochs=max(1, epochs))


class Clock(keras.callbacks.Callback):
    """Notes when each step ends."""

    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())

    def fastest(self):
        """Seconds of a step, in the window of steps that was the fastest."""
        times = np.array(self.times)
        return float(np.min(times[WINDOW:] - times[:-WINDOW]) / WINDOW)


def measure(run, dataset, model, history):
    """Certified accuracies on validation and test images, and how tight the layers are.

    Norms are those of training's end. Then the layers are tightened, and the rest is measured.
    """
    levels = recipes.epsilons(dataset.name)
    results = tightness(model, history) if recipes.VARIANTS[run.variant].tight else {}
    parts = {"validation": dataset.validation, "test": dataset.test}
    for name, part in parts.items():
        if part is not None:
            certified = kp.certified_accuracy(
                model, *part, epsilon=levels, batch_size=500, verbose=0
            )
            results[name] = [certified.clean, *certified.accuracies]
    return results | {
        "epsilons": levels,
        "parameters": model.count_params(),
        "images": len(dataset.train[1]),
        "spectra": spectra(model),
        "bound": kp.lipschitz_bound(model).bound,
    }


def tightness(model, history):
    """How tight the layers of a model are, which are tightened after that."""
    before = kp.lipschitz_bound(model)
    tightened = True
    try:
        kp.tighten(model)
    except ValueError as error:
        # Nothing was changed. The certificate counts whatever is left.
        tightened = False
        print(error)
    return {
        "largest_on_the_way": max(history["spectrum_max"]),
        "smallest_at_the_end": history["spectrum_min"][-1],
        "largest_at_the_end": history["spectrum_max"][-1],
        "largest_norm_at_the_end": max(
            entry.local[0] for entry in before.entries if entry.kind == "Conv2D"
        ),
        "bound_at_the_end": before.bound,
        "tightened": tightened,
    }


def spectra(model):
    """Quantiles of the singular values of each layer, of convolutions as operators."""
    return {
        name: np.quantile(values, QUANTILES).tolist()
        for name, values in kp.singular_values(model, convolutions="operator").items()
    }
