"""Trains centred and tight networks on two replicas, and writes what each of them has then.

    python centred_replicas.py RESULTS

The replicas are logical devices of one CPU, which TensorFlow must be told of before it starts.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import keras_parseval as kp

BATCH = 8


def batch():
    """Sequences whose first half is shorter, and has another mean."""
    x = np.random.default_rng(0).normal(size=(BATCH, 5, 3)).astype("float32")
    x[BATCH // 2 :] += 3.0
    x[: BATCH // 2, 1:] = 0.0
    return x


def averages(strategy, synchronized):
    """The moving averages after one step, on each replica."""
    with strategy.scope():
        centering = kp.layers.BatchCentering(momentum=0.0, synchronized=synchronized)
        model = keras.Sequential([keras.Input((5, 3)), keras.layers.Masking(), centering])
        model.compile("sgd", "mse", jit_compile=False)
    x = batch()
    model.fit(x, x, batch_size=BATCH, shuffle=False, verbose=0)
    copies = strategy.experimental_local_results(centering.moving_mean.value)
    return np.stack([np.asarray(copy) for copy in copies])


def tight_kernels(strategy):
    """A tight kernel after four steps, on each replica."""
    with strategy.scope():
        layer = keras.layers.Conv1D(3, 3, padding="same", **kp.tight_convolution(seed=1))
        model = keras.Sequential([keras.Input((5, 3)), layer, kp.layers.BatchCentering()])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    x = batch()
    model.fit(x, x, batch_size=BATCH, epochs=4, shuffle=False, verbose=0)
    copies = strategy.experimental_local_results(layer.kernel.value)
    return np.stack([np.asarray(copy) for copy in copies])


def main(results):
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    alone, together = (averages(strategy, synchronized) for synchronized in (False, True))
    kernels = tight_kernels(strategy)
    np.savez(results, alone=alone, synchronized=together, kernels=kernels)


if __name__ == "__main__":
    main(sys.argv[1])
