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


def convnet(*first, units=16):
    """A network of one convolution, after whatever comes first; compiled."""
    hidden = [L.Conv2D(units, 3, padding="same", activation="relu"), L.MaxPooling2D(2)]
    return compiled(keras.Sequential([keras.Input((8, 8, 1)), *first, *hidden, *head()]))


def head():
    return [L.Flatten(), L.Dense(10)]


def compiled(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    return model


def train(model, epochs=8, callbacks=()):
    """The model, trained from the same seed on all digits that are not attacked."""
    keras.utils.set_random_seed(0)
    x, _, y, _ = digits()
    model.fit(x, y, epochs=epochs, batch_size=64, callbacks=list(callbacks), verbose=0)
    return model
