"""On JAX, gradients with respect to the input: the same as JAX's own, in another form."""

import re

import keras
import numpy as np
import pytest
from classifiers import linear_model, points
from conftest import BACKEND
from keras import ops

import keras_parseval as kp

pytestmark = pytest.mark.skipif(BACKEND != "jax", reason="the others have fast gradients")
KINDS = [(1, "channels_last"), (2, "channels_last"), (2, "channels_first"), (3, "channels_last")]
# Strides, dilation, padding, and size of the window.
WINDOWS = [
    *((1, 1, "same", 3), (2, 1, "valid", 2), (2, 1, "same", 3)),
    *((3, 1, "same", 2), (2, 1, "valid", 1), (1, 2, "valid", 3)),
]
SLOW = ("select_and_scatter", "reduce_window_max")


def images(rank, data_format, seed=0):
    """Whole numbers, so that many are equal."""
    places = (11, 10, 9)[:rank]
    shape = (2, *places, 3) if data_format == "channels_last" else (2, 3, *places)
    return np.random.default_rng(seed).integers(-2, 3, shape).astype("float32")


def weighted(outputs):
    """A sum in which every number counts, each by another factor."""
    factors = np.cos(np.arange(np.prod(outputs.shape))).reshape(outputs.shape)
    return ops.sum(ops.sin(outputs) * factors.astype("float32"))


def fast(function):
    from keras_parseval._backend_jax import with_fast_gradient

    return with_fast_gradient(function)


def operations(function, x):
    """The names of all operations of the gradient, also of functions inside it."""
    import jax

    return str(jax.make_jaxpr(jax.grad(function))(x))


def assert_the_same(function, x):
    import jax

    wanted = jax.jit(jax.value_and_grad(function))(x)
    found = jax.jit(jax.value_and_grad(fast(function)))(x)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank, data_format", KINDS)
def test_max_pooling(rank, data_format):
    x = images(rank, data_format)
    for strides, dilation, padding, size in WINDOWS:
        if dilation > 1:
            continue

        def pool(x, options=(size, strides, padding, data_format)):
            return weighted(ops.max_pool(ops.relu(x), *options))

        assert_the_same(pool, x)
        assert not any(name in operations(fast(pool), x) for name in SLOW)


@pytest.mark.parametrize("rank, data_format", KINDS)
@pytest.mark.parametrize("channels", [64, 2])
def test_convolutions_of_few_channels_and_others(rank, data_format, channels):
    x, rng = images(rank, data_format), np.random.default_rng(1)
    for strides, dilation, padding, size in WINDOWS:
        kernel = rng.normal(size=(*[size] * rank, 3, channels)).astype("float32")

        def convolve(x, kernel=kernel, options=(strides, padding, data_format, dilation)):
            return weighted(ops.conv(x, kernel, *options))

        assert_the_same(convolve, x)
        if channels == 64:
            # JAX's own form turns the kernel round.
            assert "rev[" in operations(convolve, x)
            assert "rev[" not in operations(fast(convolve), x)


def test_the_gradient_of_a_kernel_that_depends_on_the_input():
    x = images(2, "channels_last")

    def convolve(x):
        kernel = ops.reshape(x[0, :3, :9, :1], (3, 3, 3, 1)) * np.ones((1, 1, 1, 32), "float32")
        return weighted(ops.conv(x, kernel))

    assert_the_same(convolve, x)


def test_what_has_no_other_form_stays_as_it_is():
    x = images(2, "channels_last")
    kernel = np.ones((3, 3, 3, 2), "float32")
    functions = [
        lambda x: weighted(ops.max_pool(x, 6, 1)),
        lambda x: weighted(ops.conv(x, kernel)),
        lambda x: weighted(ops.depthwise_conv(x, np.ones((3, 3, 3, 64), "float32"))),
        lambda x: ops.sum(ops.fori_loop(0, 3, lambda _, x: ops.max_pool(x, 3, 1, "same"), x)),
        lambda x: weighted(ops.average_pool(x, 2, 2)),
    ]
    import jax

    for function in functions[:3] + functions[4:]:
        assert_the_same(function, x)
    np.testing.assert_allclose(fast(functions[3])(x), functions[3](x))
    assert "reduce_window_max" in str(jax.make_jaxpr(fast(functions[0]))(x))


def test_convolutions_inside_a_loop_have_the_order_of_axes_that_is_fast():
    import jax

    x, kernel = images(2, "channels_last"), np.ones((3, 3, 3, 3), "float32")
    gradient = jax.grad(fast(lambda x: ops.sum(ops.sin(ops.conv(x, kernel, padding="same")))))

    def climb(x):
        return ops.fori_loop(0, 3, lambda _, x: x + gradient(x), x)

    compiled = jax.jit(climb).lower(x).compile().as_text()
    orders = re.findall(r"dim_labels=([\w>-]+)", compiled)
    assert len(orders) == 2 and set(orders) == {"b01f_01io->b01f"}


def test_what_is_not_a_number_stays_so():
    x = images(1, "channels_last")
    for place in ((0, 0, 0), (1, 1, 1), (1, 9, 2)):
        broken = x.copy()
        broken[place] = np.nan

        def pool(x):
            return ops.max_pool(x, 2, 2, "same", "channels_last")

        np.testing.assert_array_equal(np.isnan(fast(pool)(broken)), np.isnan(pool(broken)))


def test_attacks_take_the_fast_form():
    import jax

    layers = [keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D()]
    head = [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((4, 8, 8, 1), "float32"), np.zeros(4, "int32")
    attack = kp.attacks.APGD(steps=2)
    text = str(jax.make_jaxpr(lambda x: attack.craft(model, x, y, epsilon=0.1))(x))
    assert not any(name in text for name in SLOW[:1])


def test_models_without_images():
    model, (x, y) = linear_model(), points()
    assert kp.robust_accuracy(model, x, y, epsilon=0.1).examples == len(y)
