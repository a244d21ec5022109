"""One run of the paper's experiments: training that can be killed at any moment, and measuring."""

import dataclasses

import keras
import numpy as np

import keras_parseval as kp

from ..experiments import training
from . import recipes

PAPER_LEVELS = (50, 45, 40, 33)
ITERATED_LEVELS = (50, 45, 40, 33, 25, 20, 15)
CERTIFIED_EPSILONS = (0.1, 0.5)


def execute(run, dataset, folder, checkpoint, verbose):
    """Train, or go on training from the checkpoint, and measure. The model is left in `folder`.

    Returns:
        What there is to say of the run, as plain data.
    """
    model = compile_model(run, dataset)
    progress = train(run, dataset, model, checkpoint, verbose)
    return training.finish(
        run, model, progress, lambda: measure(run, dataset, model, verbose), folder
    )


def compile_model(run, dataset):
    """The model of a run, with the initial weights of its seed."""
    return training.compile_model(
        run,
        lambda: recipes.build(run, dataset),
        recipes.optimizer(run),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def train(run, dataset, model, checkpoint, verbose):
    """Train from the last finished epoch on, and return the `Checkpoint`."""
    epochs, batch_size = run.training["epochs"], run.training["batch_size"]
    schedule = keras.callbacks.LearningRateScheduler(
        lambda epoch, _: recipes.learning_rate(run, epoch)
    )
    attack = kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), seed=run.seed)
    return training.fit(
        *(run, model, dataset, checkpoint, epochs, batch_size),
        callbacks=[schedule, *([attack] if run.adversarial else [])],
        validation_data=dataset.validation,
        validation_batch_size=batch_size,
        verbose=verbose,
    )


def measure(run, dataset, model, verbose):
    """Everything that the tables and figures tell of a trained model, on the test images."""
    x, y = dataset.test
    few = x[: run.attacked], y[: run.attacked]
    # In `fit`, 2 is one line for each epoch; an attack has no epochs.
    options = {"verbose": verbose % 2}
    # The paper's bound, by which the results page was made.
    bound = {"method": "paper"}
    iterated = {"snr": ITERATED_LEVELS, "attack": kp.IteratedFGSM(steps=20)}
    results = {
        "fgsm": kp.robust_accuracy(model, x, y, snr=PAPER_LEVELS, **options),
        "iterated": kp.robust_accuracy(model, *few, **iterated, **options),
        "certified": kp.certified_accuracy(
            model, x, y, epsilon=CERTIFIED_EPSILONS, **bound, **options
        ),
    }
    results = {name: as_record(result) for name, result in results.items()}
    results["singular_values"] = singular_values(model)
    results["tightness"] = kp.tightness(model, per_layer=True)
    results["lipschitz_bound"] = float(kp.lipschitz_bound(model, **bound).bound)
    results["classifier_norm"] = float(kp.singular_values(model.get_layer("logits")).max())
    # It takes minutes, and differs little from seed to seed.
    if run.model == "fc" and run.seed == 0:
        results["covariance_dimension"] = covariance_dimension(dataset, model)
    return results


def singular_values(model):
    """Of the hidden kernels, relative to their targets: their range, and how many are near."""
    spectra = hidden(kp.singular_values(model, relative=True))
    return {
        "smallest": min(float(values.min()) for values in spectra.values()),
        "largest": max(float(values.max()) for values in spectra.values()),
        "near_target": {name: share_near_target(values) for name, values in spectra.items()},
    }


def share_near_target(values):
    """The share of singular values, relative to their target, from 0.9 to 1.1."""
    return float(np.mean((values >= 0.9) & (values <= 1.1)))


def hidden(by_layer):
    """Without the classifier, which is free in every variant."""
    return {name: value for name, value in by_layer.items() if name != "logits"}


def as_record(result):
    """A result as a line of JSON has it: the figures, without what each example did."""
    record = dataclasses.asdict(result)
    return {name: value for name, value in record.items() if name not in ("warnings", "details")}


def covariance_dimension(dataset, model):
    """Of the activations of the hidden layers, on the training images as they are."""
    activations = keras.layers.ReLU, kp.MaxMin
    layers = [layer.name for layer in model.layers if isinstance(layer, activations)]
    result = kp.analysis.covariance_dimension(
        model, *dataset.train_pixels(), layers=layers, verbose=0
    )
    return dataclasses.asdict(result)
