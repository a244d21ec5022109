"""On PyTorch, max-pooling in a form that is fast on processors: with the same values as its own."""

import keras
import numpy as np
import pytest
from conftest import BACKEND
from keras import ops

import keras_parseval as kp

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="it is of PyTorch")
# Size of the window, strides and padding.
WINDOWS = [(2, 2, "valid"), (3, 2, "same"), (3, 1, "same"), (1, 2, "valid")]


def images(channels, data_format="channels_last"):
    """Whole numbers, so that many are equal."""
    shape = (2, 11, 10, channels) if data_format == "channels_last" else (2, channels, 11, 10)
    return np.random.default_rng(0).integers(-2, 3, shape).astype("float32")


def value_and_gradient(function, x):
    x = ops.convert_to_tensor(x).requires_grad_(True)
    outputs = function(x)
    # Every number counts, each by a whole factor.
    factors = np.arange(np.prod(outputs.shape)).reshape(outputs.shape) % 7
    ops.sum(outputs * ops.convert_to_tensor(factors)).backward()
    return outputs.detach().numpy(), x.grad.numpy()


def fast(function):
    from keras_parseval._backend import fast_pooling

    def within(*arguments):
        with fast_pooling():
            return function(*arguments)

    return within


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("channels", [3, 16])
def test_values_and_gradients_are_those_of_pytorch(channels, data_format):
    x = images(channels, data_format)
    for options in WINDOWS:

        def pool(x, options=options):
            return ops.max_pool(ops.relu(x), *options, data_format)

        for found, wanted in zip(value_and_gradient(fast(pool), x), value_and_gradient(pool, x)):
            np.testing.assert_array_equal(found, wanted)


def test_other_calls_are_left_as_they_are():
    import torch
    from torch.nn import functional

    x = torch.tensor(images(16, "channels_first"))
    calls = [
        lambda: functional.max_pool2d(x[0], 2),
        lambda: functional.max_pool2d(input=x, kernel_size=2),
        lambda: functional.max_pool2d(x, 2, return_indices=True)[1],
        lambda: functional.max_pool1d(x[0], 2),
    ]
    for call in calls:
        np.testing.assert_array_equal(fast(call)(), call())


def test_attacks_pool_images_with_their_channels_last():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            if "max_pool2d_with_indices" in str(function):
                seen.append(arguments[0 if "backward" not in str(function) else 1].stride()[1])
            return function(*arguments, **(options or {}))

    inner = keras.Sequential([keras.layers.MaxPooling2D(2), keras.layers.Flatten()])
    model = keras.Sequential([keras.Input((11, 10, 16)), inner, keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with Watch():
        kp.FGSM()(model, images(16), np.zeros(2, "int32"), epsilon=0.1)
    # Of a gradient too, and the distance from channel to channel is 1.
    assert len(seen) >= 2 and set(seen) == {1}
