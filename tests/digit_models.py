"""Small classifiers of digits, for measuring how strong attacks are."""

import functools

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

L = keras.layers


@functools.cache
def digits():
    """Images of 8 x 8 x 1 from 0 to 1, and classes: for training 1,198 and for attacks 599."""
    data = load_digits()
    images = data.images[..., None].astype("float32") / 16
    return train_test_split(images, data.target.astype("int32"), test_size=1 / 3, random_state=0)


def convnet(*first, **options):
    """A small network, compiled, after whatever comes first.

    Args:
        *first: Layers.
        **options: Further arguments of its convolutions.
    """
    options = {"padding": "same", "activation": "relu", **options}
    hidden = [L.Conv2D(16, 3, strides=2, **options), L.Conv2D(32, 3, strides=2, **options)]
    layers = [*first, *hidden, L.Flatten(), L.Dense(10)]
    return compiled(keras.Sequential([keras.Input((8, 8, 1)), *layers]))


def compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    return model


def train(model, epochs=15, callbacks=()):
    """The model, trained from the same seed on all digits that are not attacked."""
    keras.utils.set_random_seed(0)
    x, _, y, _ = digits()
    model.fit(x, y, epochs=epochs, batch_size=64, callbacks=list(callbacks), verbose=0)
    return model


def attacked(count):
    """So many of the images that no model is trained on, and their classes."""
    _, x, _, y = digits()
    return x[:count], y[:count]


@keras.saving.register_keras_serializable()
class Misleading(L.Layer):
    """Rounds its input, with a slope between the steps that leads the wrong way."""

    def call(self, x):
        return keras.ops.round(8 * x) / 8 - 0.01 * x
