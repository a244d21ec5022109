import importlib
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, to_numpy
from keras import ops

import keras_parseval as kp
from keras_parseval._backend import input_gradient

L = keras.layers
BatchCentering = kp.layers.BatchCentering


def means_by_hand(x, axis, mask=None):
    """The mean of each channel, number by number."""
    channels = np.moveaxis(x, axis, 0)
    kept = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask[..., None], x.shape)
    kept = np.moveaxis(kept, axis, 0)
    return np.array(
        [
            sum(float(value) for value in channel[keep]) / max(1, keep.sum())
            for channel, keep in zip(channels, kept)
        ]
    )


def along(values, axis, rank):
    shape = [1] * rank
    shape[axis] = -1
    return np.reshape(values, shape)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(
    "shape, axis", [((5, 4), -1), ((3, 4, 2), 1), ((2, 3, 4, 5), -1), ((2, 3, 2, 2, 2), -4)]
)
def test_it_subtracts_the_mean_of_each_channel(shape, axis, center, rng):
    layer = BatchCentering(axis, momentum=0.9, center=center, beta_initializer="random_normal")
    expected = np.zeros(shape[axis])
    for _ in range(3):
        x = rng.normal(2.0, size=shape).astype("float32")
        outputs, means = to_numpy(layer(x, training=True)), means_by_hand(x, axis)
        offset = to_numpy(layer.beta) if center else np.zeros(shape[axis])
        moved = x - along(means - offset, axis, len(shape))
        np.testing.assert_allclose(outputs, moved, atol=1e-5)
        expected = 0.9 * expected + 0.1 * means
        np.testing.assert_allclose(to_numpy(layer.moving_mean), expected, atol=1e-5)
    assert len(layer.trainable_weights) == center and len(layer.non_trainable_weights) == 1
    shifted = x - along(expected - offset, axis, len(shape))
    np.testing.assert_allclose(to_numpy(layer(x)), shifted, atol=1e-5)


def test_at_inference_it_is_batch_normalization_of_unit_variance(rng):
    options = {"axis": 1, "beta_initializer": "random_normal"}
    options["moving_mean_initializer"] = keras.initializers.RandomNormal(stddev=2.0, seed=0)
    ours, theirs = BatchCentering(**options), L.BatchNormalization(epsilon=0.25, **options)
    x = rng.normal(size=(3, 4, 5)).astype("float32")
    ours(x), theirs(x)
    theirs.beta.assign(ours.beta)
    theirs.moving_mean.assign(ours.moving_mean)
    theirs.moving_variance.assign(np.full(4, 0.75))
    np.testing.assert_allclose(to_numpy(ours(x)), to_numpy(theirs(x)), atol=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_masked_steps_do_not_count(axis, rng):
    x = rng.normal(size=(4, 3, 2)).astype("float32")
    mask = rng.uniform(size=(4, 3)) < 0.6
    mask[:, 1] &= axis == -1  # a channel of which nothing is left
    layer = BatchCentering(axis, momentum=0.0)
    x[~mask] = np.nan
    outputs = to_numpy(layer(x, training=True, mask=ops.convert_to_tensor(mask)))
    means = means_by_hand(x, axis, mask)
    np.testing.assert_allclose(to_numpy(layer.moving_mean), means, atol=1e-6)
    kept = (x - along(means, axis, 3))[mask]
    np.testing.assert_allclose(outputs[mask], kept, atol=1e-6)
    with pytest.raises(ValueError, match="The mask must have one dimension less"):
        layer(x, mask=ops.convert_to_tensor(mask[:, 0]))


def test_masks_of_a_model_arrive_and_pass(rng):
    x = rng.normal(size=(4, 3, 2)).astype("float32")
    x[:2, 1:] = 0.0
    layer = BatchCentering(momentum=0.0)
    model = keras.Sequential([keras.Input((3, 2)), L.Masking(), layer, L.GlobalAveragePooling1D()])
    pooled = to_numpy(model(x, training=True))
    mask = (x != 0).any(axis=-1)
    means = means_by_hand(x, -1, mask)
    np.testing.assert_allclose(to_numpy(layer.moving_mean), means, atol=1e-6)
    np.testing.assert_allclose(pooled[:2], x[:2, 0] - means, atol=1e-5)


def test_a_frozen_layer_is_in_inference_mode(rng):
    layer = BatchCentering(moving_mean_initializer="ones")
    x = rng.normal(size=(8, 3)).astype("float32")
    layer.trainable = False
    np.testing.assert_allclose(to_numpy(layer(x, training=True)), x - 1, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(layer.moving_mean), 1)


def test_the_gradient_passes_through_the_mean(rng):
    layer, x = BatchCentering(), rng.normal(size=(6, 3)).astype("float32")
    weights = rng.normal(size=(6, 3)).astype("float32")
    layer.build(x.shape)

    def objective(x):
        with keras.StatelessScope():  # The moving average is not to be kept.
            outputs = layer(x, training=True)
        return ops.sum(outputs * ops.convert_to_tensor(weights)), outputs

    gradient, _ = input_gradient(objective, ops.convert_to_tensor(x))
    np.testing.assert_allclose(to_numpy(gradient), weights - weights.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_means_are_taken_in_single_precision(policy):
    # The sum is beyond the largest number of float16, and the mean between two of its numbers.
    steps = np.full((32, 1), 249.0, "float32")
    steps[0] += 1.0
    x = np.tile(steps, (300, 1, 1))
    layer = BatchCentering(momentum=0.0, dtype=policy)
    outputs = layer(ops.cast(x, "float16"), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    mean = 249.0 + 1 / 32
    kept, half = to_numpy(ops.cast(layer.moving_mean, "float32")), policy == "float16"
    np.testing.assert_allclose(kept, mean, atol=0.1 if half else 1e-4)
    np.testing.assert_allclose(to_numpy(ops.cast(outputs, "float32")), x - mean, atol=4e-3)
    stored = "float16" if half else "float32"
    assert keras.backend.standardize_dtype(layer.moving_mean.dtype) == stored


@pytest.mark.parametrize("norm", [2, "inf"])
def test_its_lipschitz_constant_is_one(norm):
    layers = [L.Dense(4), BatchCentering(beta_initializer="random_normal"), L.ReLU()]
    model = keras.Sequential([keras.Input((6,)), *layers])
    entries = kp.lipschitz_bound(model, norm=norm).entries
    assert entries[1].local == (1.0,) and entries[1].rule == "shifts by a constant"
    assert entries[1].accumulated == entries[0].accumulated


def test_it_trains_and_is_saved(rng, tmp_path):
    options = {"momentum": 0.8, "beta_regularizer": "l2", "beta_constraint": "max_norm"}
    layers = [L.Conv2D(4, 3, use_bias=False), BatchCentering(**options), kp.MaxMin(), L.Flatten()]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers, L.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=JIT_COMPILE)
    x, y = rng.normal(1.0, size=(64, 6, 6, 1)).astype("float32"), rng.integers(0, 3, size=64)
    model.fit(x, y, batch_size=16, epochs=4, verbose=0)
    centring = model.layers[1]
    assert (to_numpy(centring.beta) != 0).all()
    means = means_by_hand(to_numpy(model.layers[0](x)), -1)
    np.testing.assert_allclose(to_numpy(centring.moving_mean), means, atol=0.2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    assert loaded.layers[1].get_config() == centring.get_config()
    assert loaded.layers[1].get_config()["momentum"] == 0.8
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(clone(x)), to_numpy(model(x)))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow's strategies")
def test_replicas_agree(tmp_path):
    script, results = Path(__file__).parent / "centred_replicas.py", tmp_path / "results.npz"
    process = subprocess.run(
        [sys.executable, script, results], env=os.environ, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]
    x = importlib.import_module("centred_replicas").batch()
    results = dict(np.load(results))
    kernel, copy = results.pop("kernels")
    np.testing.assert_array_equal(kernel, copy)
    start = keras.ops.convert_to_numpy(kp.TightConvolution(seed=1)(kernel.shape))
    assert abs(kernel - start).max() > 1e-3
    matrices = kp.ParsevalConvolution().layout.relative_matrices(kernel)
    np.testing.assert_allclose(np.linalg.svd(matrices, compute_uv=False), 1, atol=2e-2)
    for name, (first, second) in results.items():
        np.testing.assert_array_equal(first, second)
        parts = [x] if name == "synchronized" else np.split(x, 2)
        means = [means_by_hand(part, -1, (part != 0).any(axis=-1)) for part in parts]
        np.testing.assert_allclose(first, np.mean(means, axis=0), atol=1e-5)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="for the others, which have no strategies")
def test_replicas_are_tensorflows():
    with pytest.raises(ValueError, match="must be used with the TensorFlow backend"):
        BatchCentering(synchronized=True)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"axis": "last"}, TypeError, "`axis` must be an integer"),
        ({"momentum": 1.1}, ValueError, "`momentum` must be a number in \\[0, 1\\]"),
        ({"momentum": None}, TypeError, "`momentum` must be"),
        ({"center": 1}, TypeError, "`center` must be True or False"),
        ({"synchronized": "no"}, TypeError, "`synchronized` must be True or False"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        BatchCentering(**arguments)


def test_bad_inputs_are_refused():
    for axis, shape in [(2, (None, 3)), (0, (None, 3)), (-2, (None, 3)), (-1, (None,))]:
        with pytest.raises(ValueError, match="`axis` must be an axis of the inputs"):
            BatchCentering(axis).build(shape)
    with pytest.raises(ValueError, match="a known number of channels"):
        BatchCentering()(keras.Input((3, None)))
    layer = BatchCentering()
    layer(np.ones((2, 3), "float32"))
    with pytest.raises(ValueError):
        layer(np.ones((2, 4), "float32"))
