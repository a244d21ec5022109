"""Small classifiers and data for the tests of attacks and callbacks."""

import keras
import numpy as np
from conftest import JIT_COMPILE
from keras import ops

CLASSES, FEATURES = 3, 6


def linear_model(activation=None, units=CLASSES, loss=None, **compile_options):
    """A linear classifier, the one whose gradient can be written down."""
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(units, activation)])
    default = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    compile_options = {"jit_compile": JIT_COMPILE, **compile_options}
    model.compile(keras.optimizers.SGD(0.1), loss or default, **compile_options)
    return model


def points(count=40, seed=0):
    """Three well separated clusters, with some examples of each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, size=count)
    centres = np.random.default_rng(99).normal(size=(CLASSES, FEATURES))
    return (centres[y] + 0.5 * rng.normal(size=(count, FEATURES))).astype("float32"), y


class Probe(keras.layers.Layer):
    """Remembers the last training batch that went through it, as a variable of the model."""

    def __init__(self, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size

    def build(self, input_shape):
        shape = (self.batch_size, *input_shape[1:])
        self.seen = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign(ops.cast(x, self.seen.dtype))
        return x


def probed_model(batch_size=8, normalization=False, **compile_options):
    """A network that tells what it was trained on."""
    layers = [keras.layers.Dense(8)]
    if normalization:
        layers.append(keras.layers.BatchNormalization())
    layers += [keras.layers.Activation("relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), Probe(batch_size), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"jit_compile": JIT_COMPILE, "metrics": ["accuracy"], **compile_options}
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, **options)
    return model


def copy_of(model):
    """A twin with the same weights, compiled in the same way."""
    twin = keras.models.clone_model(model)
    twin.compile_from_config(model.get_compile_config())
    twin.set_weights(model.get_weights())
    return twin
