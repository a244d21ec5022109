import keras
import numpy as np
import pytest
from conftest import JIT_COMPILE, to_numpy
from keras import ops

import keras_parseval as kp
from keras_parseval._backend import input_gradient


def arrays(rng, count, shape=(4, 6)):
    return [rng.normal(size=shape).astype("float32") for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_convex_add_starts_as_the_average(count, rng):
    inputs = arrays(rng, count)
    layer = kp.ConvexAdd()
    np.testing.assert_allclose(to_numpy(layer(inputs)), np.mean(inputs, axis=0), atol=1e-6)
    np.testing.assert_allclose(to_numpy(layer.coefficients), 1 / count, rtol=1e-6)


def test_convex_add_uses_its_coefficients(rng):
    first, second = arrays(rng, 2)
    layer = kp.ConvexAdd(coefficients_initializer=keras.initializers.Constant([0.75, 0.25]))
    expected = 0.75 * first + 0.25 * second
    np.testing.assert_allclose(to_numpy(layer((first, second))), expected, atol=1e-6)


@pytest.mark.parametrize("initializer", ["zeros", "random_normal", "lecun_uniform"])
def test_convex_add_starts_on_the_simplex_whatever_the_initializer(initializer, rng):
    layer = kp.ConvexAdd(coefficients_initializer=initializer)
    layer(arrays(rng, 4))
    coefficients = to_numpy(layer.coefficients)
    assert (coefficients >= 0).all()
    assert coefficients.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("floor", [0.0, 0.15])
def test_convex_add_learns_and_stays_on_the_simplex(optimizer, floor, rng):
    inputs = arrays(rng, 3, (64, 5))
    target = 0.9 * inputs[0] + 0.1 * inputs[2]
    symbols = [keras.Input((5,)) for _ in inputs]
    layer = kp.ConvexAdd(floor=floor)
    model = keras.Model(symbols, layer(symbols))
    optimizer = keras.optimizers.get(optimizer)
    optimizer.learning_rate = 0.1
    model.compile(optimizer, "mse", jit_compile=JIT_COMPILE)
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(to_numpy(layer.coefficients).copy())
    )
    model.fit(inputs, target, epochs=60, batch_size=32, verbose=0, callbacks=[record])
    seen = np.array(seen)
    assert (seen >= floor / 3 - 1e-7).all()
    np.testing.assert_allclose(seen.sum(axis=1), 1, rtol=1e-6)
    # The nearest coefficients that are allowed.
    expected = [0.9, 0.0, 0.1] if floor == 0 else [0.875, 0.05, 0.075]
    np.testing.assert_allclose(seen[-1], expected, atol=0.02)


def test_convex_add_never_exceeds_the_largest_input(rng):
    inputs = arrays(rng, 3)
    layer = kp.ConvexAdd(coefficients_initializer="random_uniform")
    norm = np.linalg.norm(to_numpy(layer(inputs)), axis=-1)
    assert (norm <= np.max([np.linalg.norm(x, axis=-1) for x in inputs], axis=0) + 1e-6).all()


def test_convex_add_in_a_functional_model_with_unknown_sizes(rng):
    first, second = keras.Input((None, 6)), keras.Input((9, 6))
    output = kp.layers.convex_add([first, second], name="merge")
    assert output.shape == (None, 9, 6)
    model = keras.Model([first, second], output)
    assert model.get_layer("merge").compute_output_shape([(2, None, 6), (None, 9, 6)]) == (2, 9, 6)
    inputs = arrays(rng, 2, (3, 9, 6))
    np.testing.assert_allclose(to_numpy(model(inputs)), np.mean(inputs, axis=0), atol=1e-6)


def test_convex_add_merges_masks_as_keras_does():
    tokens = [np.array([[1, 2, 0, 0]]), np.array([[3, 0, 0, 4]])]

    def mask_after(layer):
        embed = [keras.layers.Embedding(5, 3, mask_zero=True) for _ in tokens]
        symbols = [keras.Input((4,), dtype="int32") for _ in tokens]
        merged = layer([each(symbol) for each, symbol in zip(embed, symbols)])
        pooled = keras.layers.GlobalAveragePooling1D()(merged)
        model = keras.Model(symbols, pooled)
        mask = layer.compute_mask(tokens, [ops.convert_to_tensor(each != 0) for each in tokens])
        return to_numpy(mask), model.predict(tokens, verbose=0).shape

    ours, theirs = mask_after(kp.ConvexAdd()), mask_after(keras.layers.Add())
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[0], [[True, True, False, True]])
    assert ours[1] == theirs[1]
    some = [ops.convert_to_tensor(tokens[0] != 0), None]
    assert kp.ConvexAdd().compute_mask(tokens, some) is None
    assert kp.ConvexAdd().compute_mask(tokens) is None


@pytest.mark.parametrize(
    "inputs, message",
    [
        ([np.ones((2, 3), "float32")], "at least two inputs"),
        (np.ones((2, 3), "float32"), "a list of inputs"),
        ({"a": np.ones((2, 3), "float32")}, "a list of inputs"),
        ([np.ones((2, 3), "float32"), np.ones((2, 4), "float32")], "same shape"),
        ([np.ones((2, 3), "float32"), np.ones((2, 1), "float32")], "does not broadcast"),
        ([np.ones((2, 3), "float32"), np.ones((2, 3, 1), "float32")], "same shape"),
        ([np.ones((2, 3), "float32"), np.ones((4, 3), "float32")], "same shape"),
    ],
)
def test_convex_add_refuses_what_it_cannot_merge(inputs, message):
    with pytest.raises(ValueError, match=message):
        kp.ConvexAdd()(inputs)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ([np.ones((2, 3), "float32")] * 3, "as many inputs as it was built for, here 2"),
        (np.ones((2, 3), "float32"), "a list of inputs"),
        ([np.ones((2, 3), "float32"), np.ones((1, 3), "float32")], "does not broadcast"),
    ],
)
def test_convex_add_refuses_after_it_is_built_too(inputs, message):
    layer = kp.ConvexAdd()
    layer([np.ones((2, 3), "float32")] * 2)
    with pytest.raises(ValueError, match=message):
        layer(inputs)


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
def test_maxmin_sorts_pairs_along_its_axis(axis, rng):
    inputs = rng.normal(size=(3, 4, 6)).astype("float32")
    outputs = to_numpy(kp.MaxMin(axis)(inputs))
    pairs, sorted_pairs = (np.moveaxis(x, axis, -1).reshape(-1, 2) for x in (inputs, outputs))
    np.testing.assert_array_equal(sorted_pairs, np.sort(pairs, axis=-1)[:, ::-1])


def test_maxmin_keeps_norms_and_distances_do_not_grow(rng):
    first, second = arrays(rng, 2, (200, 8))
    images = [to_numpy(kp.MaxMin()(x)) for x in (first, second)]
    np.testing.assert_allclose(*(np.linalg.norm(x, axis=-1) for x in (images[0], first)), rtol=1e-6)
    before, after = (np.linalg.norm(x - y, axis=-1) for x, y in ((first, second), images))
    assert (after <= before + 1e-5).all()


def test_maxmin_sends_gradients_back_to_where_its_outputs_came_from(rng):
    inputs, directions = arrays(rng, 2, (50, 8))
    gradient, _ = input_gradient(
        lambda x: (ops.sum(ops.multiply(kp.MaxMin()(x), directions)), ()),
        ops.convert_to_tensor(inputs),
    )
    order = np.argsort(inputs.reshape(50, 4, 2), axis=-1)[..., ::-1]
    expected = np.take_along_axis(directions.reshape(50, 4, 2), np.argsort(order, axis=-1), axis=-1)
    np.testing.assert_array_equal(to_numpy(gradient), expected.reshape(50, 8))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_maxmin_sorts_numbers_of_every_size_and_kind(dtype, rng):
    numbers = [0.0, -0.0, 1.0, -1.0, 1.5, -1.5, 6e-5, -6e-5, 6e4, -6e4, np.inf, -np.inf]
    pairs = np.stack(np.meshgrid(numbers, numbers), axis=-1).astype("float64")
    # Of no layout that is simple: every second number of what is transposed.
    inputs = ops.cast(np.repeat(pairs, 2, axis=0).transpose(1, 0, 2), dtype)[:, ::2]
    outputs = kp.MaxMin(dtype=dtype)(inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    inputs, outputs = (to_numpy(ops.cast(x, "float64")) for x in (inputs, outputs))
    np.testing.assert_array_equal(outputs, np.sort(inputs, axis=-1)[..., ::-1])


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="has a gradient of its own there")
def test_maxmin_has_second_derivatives_on_torch(rng):
    import torch

    x = torch.tensor(rng.normal(size=(5, 8)).astype("float32"), requires_grad=True)
    (gradient,) = torch.autograd.grad((kp.MaxMin()(x) ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_maxmin_with_unknown_sizes():
    model = keras.Sequential([keras.Input((None, None, 4)), kp.MaxMin()])
    assert model.output_shape == (None, None, None, 4)
    assert model.predict(np.ones((2, 3, 5, 4)), verbose=0).shape == (2, 3, 5, 4)


@pytest.mark.parametrize(
    "axis, shape, message",
    [
        (-1, (2, 5), "even number of channels.*Received: 5 channels"),
        (1, (2, 3, 4), "even number of channels"),
        (3, (2, 4), "`axis` must be an axis of the inputs"),
    ],
)
def test_maxmin_refuses_what_it_cannot_pair(axis, shape, message):
    with pytest.raises(ValueError, match=message):
        kp.MaxMin(axis)(np.ones(shape, "float32"))


def test_maxmin_refuses_an_unknown_number_of_channels():
    with pytest.raises(ValueError, match="known, even number"):
        kp.MaxMin()(keras.Input((3, None)))
    with pytest.raises(TypeError, match="`axis` must be an integer"):
        kp.MaxMin(axis="channels")
