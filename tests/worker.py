"""One of several workers that train a model together.

    TF_CONFIG=... python worker.py FOLDER [--kill EPOCH]

All share FOLDER, for their backups and the last weights.
"""

import argparse
import os
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from parallel import BATCH, examples, network

import keras_parseval as kp

EPOCHS = 4


class MultiWorkerModel(keras.Model):
    """Steps around two lines of Keras's `fit` that fail if there is more than one worker.

    One averages a whole batch over workers to learn its shapes, which a functional model knows;
    the other takes the mean of logs along an axis that numbers do not have.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass

    def train_step(self, data):
        return {name: value[None] for name, value in super().train_step(data).items()}


class Kill(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def backup_of(folder, index):
    """Where a worker keeps its backup, with that of the first worker in it.

    Workers may have died between two backups, but must all go on from the same one.
    """
    own = folder / f"backup{index}"
    if index:
        shutil.rmtree(own, ignore_errors=True)
        if (folder / "backup0").exists():
            shutil.copytree(folder / "backup0", own)
    return own


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int)
    arguments = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        model = network(rows=0.5, kind=MultiWorkerModel)
        # A backup is restored outside of this scope, where no variables can be made.
        model.optimizer.build(model.trainable_variables)
    x, y = examples(4 * BATCH)
    callbacks = [
        kp.AdversarialTraining(stddev=0.3),
        kp.AdversarialEvaluation((x, y), snr=20),
        keras.callbacks.BackupAndRestore(backup_of(arguments.folder, index)),
        Kill(arguments.kill),
    ]
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=EPOCHS, callbacks=callbacks, **options)
    weights = {str(number): each for number, each in enumerate(model.get_weights())}
    np.savez(arguments.folder / f"weights{index}.npz", epochs=history.epoch, **weights)


if __name__ == "__main__":
    main()
