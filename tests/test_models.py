import inspect
import json
import re

import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, to_numpy

import keras_parseval as kp
from keras_parseval import models
from keras_parseval._layer_kernels import layer_kernels

SMALL = {"depth": 10, "width": 1, "input_shape": (8, 8, 3)}


def images(count=8, shape=(8, 8, 3)):
    return np.random.default_rng(0).random((count, *shape), dtype="float32"), np.arange(count) % 10


def kernels_of(model):
    return [kernel for layer in model.layers for kernel in layer_kernels(layer)]


def tightness_error(kernel):
    """How far the singular values of a kernel are from the target, relative to it."""
    matrix = to_numpy(kernel.layout.to_matrices(kernel.variable)).astype("float64")
    values = np.linalg.svd(matrix, compute_uv=False)
    return np.abs(values / kernel.layout.target(tuple(kernel.variable.shape)) - 1).max()


def check_trains_and_is_saved(model, shape, path):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=JIT_COMPILE)
    x, y = images(shape=shape)
    before = [weights.copy() for weights in model.get_weights()]
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"]).all()
    assert any((a != b).any() for a, b in zip(before, model.get_weights()))
    model.save(path)
    loaded = keras.models.load_model(path)
    assert model.output_shape == (None, 10)
    # As text, where a tuple and the list that it was saved as are the same.
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, marks=[] if variant == "parseval" else pytest.mark.once)
        for variant in models.VARIANTS
    ],
)
def test_wide_resnet_trains_compiled_in_every_variant(variant, tmp_path):
    # Each variant differs in its sums and kernels; one of them drops out, too.
    model = models.wide_resnet(
        **SMALL, variant=variant, dropout=0.3 if variant == "parseval" else 0.0
    )
    check_trains_and_is_saved(model, (8, 8, 3), tmp_path / "model.keras")


@pytest.mark.parametrize("variant", ["vanilla", "parseval"])
def test_fully_connected_trains_compiled_in_every_variant(variant, tmp_path):
    model = models.fully_connected(
        2, 16, input_shape=(6, 6, 1), variant=variant, pad_to=8, activation="maxmin"
    )
    check_trains_and_is_saved(model, (6, 6, 1), tmp_path / "model.keras")


def test_batch_normalization_and_relu_are_a_choice():
    model = models.wide_resnet(**SMALL, normalization=None, activation="maxmin")
    assert not any(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    assert all(kernel.layer.use_bias for kernel in kernels_of(model))
    assert sum(isinstance(layer, kp.MaxMin) for layer in model.layers) == 7
    assert not any(isinstance(layer, keras.layers.ReLU) for layer in model.layers)
    assert np.isfinite(to_numpy(model(images()[0]))).all()


# JAX takes long to make weights, and the count does not depend on the backend.
PUBLISHED = [(16, 4, 2.7)] if BACKEND == "jax" else [(16, 4, 2.7), (28, 10, 36.5)]


@pytest.mark.parametrize("depth, width, millions", PUBLISHED)
def test_parameters_are_as_many_as_published(depth, width, millions):
    model = models.wide_resnet(depth, width, variant="vanilla")
    count = sum(int(np.prod(weights.shape)) for weights in model.trainable_variables)
    assert round(count / 1e6, 1) == millions
    # The depth counts all convolutions, the three on shortcuts included.
    assert sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers) == depth


@pytest.mark.parametrize("variant", ["parseval-oc", "parseval"])
def test_parseval_variants_start_tight_and_constrain_all_but_the_classifier(variant):
    model = models.wide_resnet(**SMALL, variant=variant, beta=0.2, rows=0.5, unbiased=True)
    *hidden, classifier = kernels_of(model)
    assert classifier.layer.name == "logits" and classifier.constraint is None
    for kernel in hidden:
        config = kernel.constraint.get_config()
        assert (config["beta"], config["rows"], config["unbiased"]) == (0.2, 0.5, True)
        layout = kernel.layout.get_config()
        assert {name: getattr(kernel.constraint, name) for name in layout} == layout
        assert tightness_error(kernel) < 1e-5
    strided = {k.layer.name: k.constraint.scale for k in hidden if k.layer.strides[0] == 2}
    assert strided == {
        "group2_block1_conv1": 0.5,
        "group2_block1_shortcut": "auto",
        "group3_block1_conv1": 0.5,
        "group3_block1_shortcut": "auto",
    }
    sum_class = kp.ConvexAdd if variant == "parseval" else keras.layers.Add
    assert sum(isinstance(layer, sum_class) for layer in model.layers) == 3


def test_without_batch_normalization_the_features_are_1_lipschitz():
    model = models.wide_resnet(**SMALL, normalization=None, mean=0.0, std=1.0)
    last = model.get_layer("last_relu").output
    features = keras.Model(model.input, last)
    x, _ = images()
    y = x + 1e-2 * np.random.default_rng(1).normal(size=x.shape).astype("float32")
    moved = to_numpy(features(x)) - to_numpy(features(y))
    norms = [np.linalg.norm(each.reshape(len(x), -1), axis=-1) for each in (moved, x - y)]
    assert (norms[0] <= norms[1] * (1 + 1e-4)).all()


@pytest.mark.parametrize("variant", models.VARIANTS)
def test_weight_decay_is_that_of_sgd(variant):
    model = models.wide_resnet(**SMALL, variant=variant, weight_decay=0.02)
    decayed = [kernel for kernel in kernels_of(model) if kernel.layer.kernel_regularizer]
    assert len(decayed) == (len(kernels_of(model)) if variant == "vanilla" else 1)
    # SGD subtracts `rate * decay * w`, and the gradient of a penalty `c * w**2` is `2 * c * w`.
    values = [np.sum(to_numpy(kernel.variable) ** 2) for kernel in decayed]
    penalty = sum(float(to_numpy(each)) for each in model.losses)
    assert penalty == pytest.approx(0.02 / 2 * sum(values), rel=1e-4)
    assert models.wide_resnet(**SMALL, variant=variant, weight_decay=0.0).losses == []


def test_pixels_are_normalised_first_with_given_statistics():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    model = models.wide_resnet(**SMALL, mean=mean, std=std)
    x, _ = images()
    first = keras.Model(model.input, model.layers[1].output)
    np.testing.assert_allclose(to_numpy(first(x)), (x - mean) / std, atol=1e-5)
    assert model.layers[1].trainable_variables == []


def test_small_images_are_padded_with_zeros_before_they_are_normalised():
    model = models.fully_connected(1, 4, input_shape=(28, 28, 1), pad_to=32, mean=0.5, std=0.5)
    flat = keras.Model(model.input, model.get_layer("flatten").output)
    x, _ = images(2, (28, 28, 1))
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    np.testing.assert_allclose(to_numpy(flat(x)), padded.reshape(2, 1024) * 2 - 1, atol=1e-6)


def test_fully_connected_takes_vectors():
    model = models.fully_connected(3, 8, input_shape=(12,), classes=4, normalization="batch")
    assert model.output_shape == (None, 4)
    assert [kernel.constraint is None for kernel in kernels_of(model)] == [False] * 3 + [True]


def test_dropout_is_between_the_convolutions():
    def rates(**options):
        layers = models.wide_resnet(**SMALL, **options).layers
        return [layer.rate for layer in layers if isinstance(layer, keras.layers.Dropout)]

    assert rates(dropout=0.4) == [0.4] * 3
    assert rates(dropout=0.0) == []


@pytest.mark.parametrize("builder", [models.wide_resnet, models.fully_connected])
def test_the_examples_in_the_documentation_run(builder):
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(builder), flags=re.DOTALL)
    exec(example, {"keras": keras, "kp": kp})


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"depth": 17}, ValueError, "6 n \\+ 4.*16 is the nearest. Received: depth=17"),
        ({"depth": 4}, ValueError, "10 is the nearest. Received: depth=4"),
        ({"depth": 10.0}, TypeError, "`depth`.*Received: depth=10.0"),
        ({"width": 0}, ValueError, "`width`.*Received: width=0"),
        ({"input_shape": (8, 8)}, ValueError, "`input_shape`.*Received"),
        ({"classes": 0}, ValueError, "`classes`.*Received: classes=0"),
        ({"variant": "robust"}, ValueError, "'vanilla', 'parseval-oc', 'parseval'.*'robust'"),
        ({"beta": 1.0}, ValueError, "`beta`.*Received: beta=1.0"),
        ({"rows": 20}, ValueError, "`rows`.*Received: rows=20.*'conv' with 16 units"),
        ({"dropout": 1.0}, ValueError, "`dropout`.*Received: dropout=1.0"),
        ({"weight_decay": -1.0}, ValueError, "`weight_decay`.*Received"),
        ({"normalization": "layer"}, ValueError, "`normalization`.*Received"),
        ({"activation": "tanh"}, ValueError, "`activation`.*Received"),
        ({"mean": (0.1, 0.2)}, ValueError, "`mean`.*3 channels.*Received"),
        ({"std": 0.0}, ValueError, "`std` must be positive. Received: std=0.0"),
    ],
)
def test_wide_resnet_refuses(options, error, message):
    with pytest.raises(error, match=message):
        models.wide_resnet(**{**SMALL, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hidden": 0}, "`hidden`.*Received: hidden=0"),
        ({"units": 0}, "`units`.*Received: units=0"),
        ({"variant": "parseval-oc"}, "'vanilla', 'parseval'. Received: variant='parseval-oc'"),
        ({"input_shape": (None, 8, 1)}, "`input_shape`.*Received"),
        ({"pad_to": 4}, "`pad_to`.*Received: pad_to=4"),
        ({"pad_to": 9, "input_shape": (8,)}, "`pad_to`.*Received: pad_to=9"),
    ],
)
def test_fully_connected_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        models.fully_connected(**{"units": 4, "input_shape": (8, 8, 1), **options})
