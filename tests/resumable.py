"""A run with everything in use, that can be killed after any step or epoch, and resumed.

    python resumable.py '[[FOLDER, "backup" or "checkpoint", EVENT or null], ...]'

Each run is a process, killed at its EVENT: the end of a step, or of an epoch once all callbacks
before have written what they write. A run with the FOLDER of another goes on from where that was.
Prints how each ended. They are forked, because to import Keras takes longer than to train.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import keras
import numpy as np

import keras_parseval as kp

EPOCHS, STEPS, BATCH, FEATURES = 4, 3, 8, 6
EVENTS = EPOCHS * (STEPS + 1)


def examples():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=STEPS * BATCH)
    return rng.normal(size=(len(y), FEATURES)).astype("float32") + y[:, None], y


class EpochOrder(keras.utils.PyDataset):
    """Shuffles in an order that follows from the number of the epoch alone."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.epoch = x, y, 0

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        order = np.random.default_rng(self.epoch).permutation(len(self.y))
        part = order[index * BATCH : (index + 1) * BATCH]
        return self.x[part], self.y[part]


class FollowEpoch(keras.callbacks.Callback):
    """Lets data and dropout follow from the number of the epoch: Keras saves neither's state."""

    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def on_epoch_begin(self, epoch, logs=None):
        self.dataset.epoch = epoch
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                variable.assign([epoch, 0])


class Kill(keras.callbacks.Callback):
    """Ends the process, without any chance to clean up, at one event."""

    def __init__(self, event):
        super().__init__()
        self.event, self.epoch = event, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self._at(self.epoch * (STEPS + 1) + batch)

    def on_epoch_end(self, epoch, logs=None):
        self._at(epoch * (STEPS + 1) + STEPS)

    def _at(self, event):
        if event == self.event:
            os.kill(os.getpid(), signal.SIGKILL)


def network():
    """Sampled rows, a convex sum, dropout, batch statistics and momentum."""
    frame = {
        "kernel_constraint": kp.ParsevalTightFrame(0.1, rows=0.5),
        "kernel_initializer": kp.TightFrame(seed=1),
    }
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(16, "relu", **frame)(inputs)
    branch = keras.layers.Dropout(0.2, seed=2)(keras.layers.Dense(16, "relu", **frame)(x))
    x = keras.layers.BatchNormalization()(kp.ConvexAdd()([branch, x]))
    model = keras.Model(inputs, keras.layers.Dense(3, kernel_initializer=kp.TightFrame(seed=3))(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=True)
    return model


def resume(folder, how):
    """The model, the epoch to begin with, and the callback that keeps the state."""
    if how == "backup":
        return network(), 0, keras.callbacks.BackupAndRestore(folder / "backup")
    keep = keras.callbacks.ModelCheckpoint(folder / "{epoch:02d}.keras")
    *_, last = [None, *sorted(folder.glob("*.keras"))]
    if last is None:
        return network(), 0, keep
    return keras.models.load_model(last), int(last.stem), keep


def run(folder, how, kill):
    """Train, or go on with what is in the folder, and write the last weights there."""
    folder = Path(folder)
    x, y = examples()
    model, epoch, keep = resume(folder, how)
    data = EpochOrder(x, y)
    attack = kp.attacks.PGD(steps=2)
    callbacks = [
        FollowEpoch(data),
        kp.AdversarialTraining(stddev=0.3, seed=7, start_from_epoch=1),
        kp.AdversarialEvaluation((x, y), epsilon=0.1, attack=attack, every=2),
        keep,
        Kill(kill),
    ]
    # Without `shuffle=False`, Keras shuffles the batches of a PyDataset by random state of its own.
    options = {"initial_epoch": epoch, "shuffle": False, "verbose": 0}
    model.fit(data, epochs=EPOCHS, callbacks=callbacks, **options)
    np.savez(folder / "weights.npz", *model.get_weights())


def ends_with(*arguments):
    """How a run ended that was a process of its own."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        run(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps([ends_with(*arguments) for arguments in json.loads(sys.argv[1])]))
