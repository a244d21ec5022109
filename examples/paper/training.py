"""One run of the paper's experiments: training that can be killed at any moment, and measuring."""

import dataclasses
import json
import os
import platform
import time

import keras
import numpy as np

import keras_parseval as kp

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
    history, seconds = train(run, dataset, model, checkpoint, verbose)
    started = time.perf_counter()
    results = measure(run, dataset, model, verbose)
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
        recipes.optimizer(run),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
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
    epochs, batch_size = run.training["epochs"], run.training["batch_size"]
    if first_epoch < epochs:
        schedule = keras.callbacks.LearningRateScheduler(
            lambda epoch, _: recipes.learning_rate(run, epoch)
        )
        attack = kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), seed=run.seed)
        model.fit(
            dataset.train_batches(batch_size, run.seed, epochs, first_epoch),
            steps_per_epoch=dataset.steps(batch_size),
            shuffle=False,  # The batches are shuffled already, in a way that can be repeated.
            validation_data=dataset.validation,
            validation_batch_size=batch_size,
            initial_epoch=first_epoch,
            epochs=epochs,
            # Last, so that it sees what the others have written into the logs.
            callbacks=[schedule, *([attack] if run.adversarial else []), progress],
            verbose=verbose,
        )
    return progress.history, progress.seconds


class Checkpoint(keras.callbacks.Callback):
    """Keeps all that the rest of a training depends on, after each epoch.

    Weights, batch statistics, the states of dropout, and the optimizer's; the history for the
    record. Data, adversarial magnitudes and the backend's own random numbers follow from seed,
    epoch and step, and need no state.

    Args:
        path: Where to keep it.
        run: The run, to tell its checkpoint from others.
    """

    def __init__(self, path, run):
        super().__init__()
        self.path, self.run = path, run
        self.history, self.seconds = {}, 0.0

    def restore(self, model):
        """Put the model where it was, and return the epoch to go on with."""
        if not self.path.exists():
            return 0
        with np.load(self.path) as saved:
            notes = json.loads(str(saved["notes"]))
            for index, variable in enumerate(_state(model)):
                variable.assign(saved[f"variable{index}"])
        self.history, self.seconds = notes["history"], notes["seconds"]
        return notes["epoch"]

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._started = epoch, time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            # On PyTorch, dropout draws from a generator that is not part of the model, and so does
            # each fit, once, before its first batch.
            (seed,) = np.random.SeedSequence((self.run.seed, self._epoch)).generate_state(1)
            keras.utils.set_random_seed(int(seed))

    def on_epoch_end(self, epoch, logs=None):
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(float(value))
        self.seconds += time.perf_counter() - self._started
        notes = {"config": self.run.to_dict(), "epoch": epoch + 1}
        notes |= {"history": self.history, "seconds": self.seconds}
        state = {
            f"variable{index}": keras.ops.convert_to_numpy(variable)
            for index, variable in enumerate(_state(self.model))
        }
        write_atomically(self.path, lambda path: np.savez(path, notes=json.dumps(notes), **state))


def checkpoint_config(path):
    """The configuration of the run that left a checkpoint, or `None` if there is none."""
    if not path.exists():
        return None
    with np.load(path) as saved:
        return json.loads(str(saved["notes"]))["config"]


def _state(model):
    return [*model.variables, *model.optimizer.variables]


def write_atomically(path, write):
    """Let `write` make a file, which appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The ending stays, because Keras and NumPy go by it.
    unfinished = path.with_name(f"unfinished-{path.name}")
    write(unfinished)
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


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


def versions():
    backend = keras.backend.backend()
    return {
        "python": platform.python_version(),
        "keras_parseval": kp.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        backend: __import__(backend).__version__,
    }
