"""A small network, its data and its training, for one device and for many."""

import keras
import numpy as np

import keras_parseval as kp

FEATURES, BATCH, STEPS = 6, 8, 20
# Rounding depends on the number of replicas, and sampled rows follow from the last bits of the
# kernel: the same rows are drawn only where differences are too small for float32.
SCENARIOS = {
    "plain, full": {"attacked": False, "rows": 1.0, "dtype": "float32"},
    "plain, sampled": {"attacked": False, "rows": 0.5, "dtype": "float64"},
    "adversarial, full": {"attacked": True, "rows": 1.0, "dtype": "float32"},
    "adversarial, sampled": {"attacked": True, "rows": 0.5, "dtype": "float64"},
}


def network(rows=1.0, dtype="float32", learning_rate=0.1, kind=keras.Model, classes=3):
    """A residual network with constraints of both kinds, always from the same weights."""
    frame = {
        "activation": "relu",
        "kernel_constraint": kp.ParsevalTightFrame(0.1, rows=rows),
        "kernel_initializer": kp.TightFrame(seed=1),
        "dtype": dtype,
    }
    inputs = keras.Input((FEATURES,), dtype=dtype)
    x = keras.layers.Dense(8, **frame)(inputs)
    x = kp.ConvexAdd(dtype=dtype)([keras.layers.Dense(8, **frame)(x), x])
    outputs = keras.layers.Dense(classes, kernel_initializer=kp.TightFrame(seed=2), dtype=dtype)(x)
    model = kind(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=dtype)
    model.compile(keras.optimizers.SGD(learning_rate, 0.9), loss, metrics=["accuracy"])
    return model


def examples(count, dtype="float32"):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=count)
    return (rng.normal(size=(count, FEATURES)) + y[:, None]).astype(dtype), y


def train(model, data, attacked):
    """Twenty steps, plain or adversarial."""
    callbacks = [kp.AdversarialTraining(stddev=0.3)] if attacked else []
    model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    assert model.optimizer.iterations.numpy() == STEPS
