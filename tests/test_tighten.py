"""Weights that something else than the optimizer has moved come back to their sets."""

import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, points
from conftest import JIT_COMPILE, singular_values, to_numpy

import keras_parseval as kp


def residual_network(optimizer="sgd"):
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(8, "relu", name="first", **kp.tight_frame(seed=1))(inputs)
    branch = keras.layers.Dense(8, "relu", name="second", **kp.tight_frame(seed=2))(x)
    x = kp.ConvexAdd(name="sum")([branch, x])
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="classifier")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=JIT_COMPILE)
    return model


def assert_on_their_sets(model):
    for name in ("first", "second"):
        kernel = to_numpy(model.get_layer(name).kernel)
        np.testing.assert_allclose(singular_values(kernel), 1, atol=1e-5)
    coefficients = to_numpy(model.get_layer("sum").coefficients)
    assert coefficients.min() >= 0.05 - 1e-6 and coefficients.sum() == pytest.approx(1, abs=1e-6)


def averaged(model):
    """Weights that a moving average has put in the place of those the constraint acted on."""
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, model.loss, jit_compile=JIT_COMPILE)
    model.fit(*points(64), epochs=4, verbose=0)
    optimizer.finalize_variable_values(model.trainable_variables)


def noisy(model):
    rng = np.random.default_rng(0)
    model.set_weights([w + 0.2 * rng.normal(size=w.shape) for w in model.get_weights()])


@pytest.mark.parametrize("change", [averaged, noisy])
def test_all_constrained_weights_come_back(change):
    model = residual_network()
    change(model)
    free = [w for w in model.get_layer("classifier").get_weights()]
    moved = kp.tighten(model)
    assert {path.split("/")[-2] for path in moved} == {"first", "second", "sum"}
    assert all(distance > 1e-3 for distance in moved.values())
    assert_on_their_sets(model)
    for before, after in zip(free, model.get_layer("classifier").get_weights()):
        np.testing.assert_array_equal(before, after)
    assert kp.tighten(model) == {}


def test_what_is_near_enough_stays_to_the_bit():
    model = residual_network()
    kernel = model.get_layer("first").kernel
    kernel.assign(1.0005 * kernel)
    before = [w.copy() for w in model.get_weights()]
    assert kp.tighten(model) == {}
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))
    (path,) = kp.tighten(model, tolerance=1e-4)
    assert path == kernel.path


@pytest.mark.parametrize(
    "layer, scale",
    [
        (keras.layers.Conv2D(8, 3, **kp.tight_frame()), 1 / 3),
        (keras.layers.Conv2D(8, 3, groups=2, **kp.tight_frame(groups=2, scale=0.5)), 0.5),
    ],
    ids=["convolution", "grouped"],
)
def test_kernels_are_read_as_their_constraint_reads_them(layer, scale):
    layer.build((None, 8, 8, 4))
    rng = np.random.default_rng(0)
    layer.kernel.assign(rng.normal(size=layer.kernel.shape))
    kp.tighten(layer)
    np.testing.assert_allclose(kp.singular_values(layer), scale, rtol=1e-5)


@pytest.mark.once
def test_convolutions_come_as_near_as_is_asked():
    layer = keras.layers.Conv2D(16, 3, **kp.tight_convolution(seed=0))
    layer.build((None, 8, 8, 16))
    rng = np.random.default_rng(0)
    layer.kernel.assign(layer.kernel + 0.01 * rng.normal(size=layer.kernel.shape))
    for tolerance in (1e-3, 1e-4):
        assert list(kp.tighten(layer, tolerance=tolerance)) == [layer.kernel.path]
        values = kp.singular_values(layer, convolutions="operator")
        assert 0.1 * tolerance < abs(values - 1).max() <= tolerance


def test_broken_weights_are_refused_and_nothing_is_moved():
    model = residual_network()
    noisy(model)
    weights = model.get_weights()
    weights[2][0, 0] = np.nan
    model.set_weights(weights)
    with pytest.raises(ValueError, match=r"must be finite.*second/kernel"):
        kp.tighten(model)
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)
    with pytest.raises(TypeError, match="must be a Keras model or layer"):
        kp.tighten(weights)
    with pytest.raises(ValueError, match="`tolerance` must be"):
        kp.tighten(model, tolerance=0)
