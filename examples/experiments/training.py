"""One run: training that can be killed at any moment, and what is kept of it."""

import json
import time

import keras
import numpy as np

from .records import machine, versions, write_atomically


def compile_model(run, build, optimizer, **options):
    """A compiled model with the initial weights of the run's seed, and a complete optimizer.

    Args:
        run: The run.
        build: Called for the model, after the seed has been set.
        optimizer: The optimizer.
        **options: Further arguments of `compile`.
    """
    keras.utils.set_random_seed(run.seed)
    model = build()
    model.compile(optimizer, metrics=["accuracy"], **options)
    model.optimizer.build(model.trainable_variables)
    return model


def fit(run, model, dataset, checkpoint, epochs, batch_size, callbacks=(), **options):
    """Train from the last finished epoch on.

    Args:
        run: The run.
        model: Its compiled model.
        dataset: Its data, a `data.Dataset`.
        checkpoint: Where to keep what is not finished.
        epochs: Number of epochs.
        batch_size: Number of images in a step.
        callbacks: What else takes part. What they write into the logs is recorded.
        **options: Further arguments of `fit`.

    Returns:
        The `Checkpoint`, which has the history of all epochs, and the time that each took.
    """
    progress = Checkpoint(checkpoint, run)
    first_epoch = progress.restore(model)
    if first_epoch < epochs:
        model.fit(
            dataset.train_batches(batch_size, run.seed, epochs, first_epoch),
            steps_per_epoch=dataset.steps(batch_size),
            shuffle=False,  # The batches are shuffled already, in a way that can be repeated.
            initial_epoch=first_epoch,
            epochs=epochs,
            # Last, so that it sees what the others have written into the logs.
            callbacks=[*callbacks, progress],
            **options,
        )
    return progress


def finish(run, model, progress, measure, folder):
    """Measure a trained model, and leave it in `folder`.

    Args:
        run: The run.
        model: Its trained model.
        progress: What `fit` returned.
        measure: Called for the results, as plain data.
        folder: Where the model is saved, in `models`.

    Returns:
        What there is to say of the run, as plain data.
    """
    started = time.perf_counter()
    results = measure()
    write_atomically(folder / "models" / f"{run.name}.keras", model.save)
    return {
        "name": run.name,
        "config": run.to_dict(),
        "results": results,
        "history": progress.history,
        "seconds": {"training": sum(progress.seconds), "measuring": time.perf_counter() - started},
        # Those of the processor count all cores, with whatever time their threads wait in.
        "epochs": {"seconds": progress.seconds, "processor_seconds": progress.processor_seconds},
        "versions": versions(),
        "machine": machine(),
    }


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
        self.history, self.seconds, self.processor_seconds = {}, [], []

    def restore(self, model):
        """Put the model where it was, and return the epoch to go on with."""
        if not self.path.exists():
            return 0
        with np.load(self.path) as saved:
            notes = json.loads(str(saved["notes"]))
            for index, variable in enumerate(_state(model)):
                variable.assign(saved[f"variable{index}"])
        self.history = notes["history"]
        self.seconds, self.processor_seconds = notes["seconds"], notes["processor_seconds"]
        return notes["epoch"]

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._started, self._processor_started = time.perf_counter(), time.process_time()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            # On PyTorch, dropout draws from a generator that is not part of the model, and so does
            # each fit, once, before its first batch.
            (seed,) = np.random.SeedSequence((self.run.seed, self._epoch)).generate_state(1)
            keras.utils.set_random_seed(int(seed))

    def on_epoch_end(self, epoch, logs=None):
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(float(value))
        self.seconds.append(time.perf_counter() - self._started)
        self.processor_seconds.append(time.process_time() - self._processor_started)
        notes = {"config": self.run.to_dict(), "epoch": epoch + 1, "history": self.history}
        notes |= {"seconds": self.seconds, "processor_seconds": self.processor_seconds}
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
