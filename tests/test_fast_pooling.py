"""On PyTorch, max-pooling under attack: the same as PyTorch's own, in another form."""

import contextlib

import keras
import numpy as np
import pytest
from conftest import BACKEND
from keras import ops

import keras_parseval as kp

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="the others pool fast")
# Size of the window, strides, padding.
WINDOWS = [(2, 2, "valid"), (3, 2, "same"), (3, 1, "valid"), (2, 3, "same")]


def images(channels, data_format):
    """Whole numbers, so that many are equal, and one that is not a number."""
    shape = (3, 9, 8, channels) if data_format == "channels_last" else (3, channels, 9, 8)
    x = np.random.default_rng(0).integers(-2, 3, shape).astype("float32")
    x[0, :, 1] = np.nan
    return ops.convert_to_tensor(x)


def outputs_and_gradient(pool, x, context):
    from keras_parseval._backend import input_gradient

    def objective(x):
        with context:
            outputs = pool(x)
        factors = np.cos(np.arange(outputs.numel())).reshape(outputs.shape)
        return ops.sum(outputs * ops.convert_to_tensor(factors, "float32")), outputs

    return input_gradient(objective, x)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("channels", [1, 3, 4, 17])
def test_values_and_gradients_are_the_same(channels, data_format):
    from keras_parseval._backend import fast_max_pooling

    x = images(channels, data_format)
    for window in WINDOWS:

        def pool(x, window=window):
            return ops.max_pool(x, *window, data_format=data_format)

        found = outputs_and_gradient(pool, x, fast_max_pooling())
        wanted = outputs_and_gradient(pool, x, contextlib.nullcontext())
        for each, other in zip(found, wanted):
            np.testing.assert_array_equal(each, other)


class Watched(keras.layers.MaxPooling2D):
    """Tells how its outputs lie in memory."""

    def call(self, inputs):
        outputs = super().call(inputs)
        self.together = outputs.is_contiguous()
        return outputs


def test_attacks_pool_with_channels_together_and_the_model_does_not():
    pool = Watched(2)
    model = keras.Sequential(
        [keras.Input((6, 6, 8)), keras.Sequential([pool]), keras.layers.Flatten()]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.random.default_rng(0).uniform(size=(4, 6, 6, 8)).astype("float32"), np.zeros(4, int)
    kp.FGSM()(model, x, y, epsilon=0.1)
    assert pool.together
    model.predict(x, verbose=0)
    assert not pool.together
