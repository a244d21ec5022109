"""The small convolutional network that benchmarks of attacks share."""

import keras
import numpy as np


def small_convnet():
    """The network of Keras's first example, on images of 32 x 32 x 3; XLA where Keras has it."""
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((32, 32, 3)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    jit_compile = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, jit_compile=jit_compile)
    return model


def images(count):
    """Random images and labels: what they show makes no difference to the time."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(count, 32, 32, 3)).astype("float32")
    return x, rng.integers(0, 10, size=count)
