import importlib
import math
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, copy_of, linear_model, points
from conftest import BACKEND, JIT_COMPILE, to_numpy
from sklearn.datasets import load_digits

import keras_parseval as kp

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the data of the examples
L = keras.layers


def parseval_classifier(activation=None, units=CLASSES, loss=None):
    hidden = {
        "activation": "relu",
        "kernel_constraint": kp.ParsevalTightFrame(0.1),
        "kernel_initializer": kp.TightFrame(seed=1),
    }
    layers = [L.Dense(16, **hidden), L.Dense(16, **hidden), L.Dense(units, activation)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    default = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    rate = keras.optimizers.schedules.CosineDecay(0.1, 100)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, loss or default, jit_compile=JIT_COMPILE)
    return model


def decisions(model, x):
    outputs = model.predict(x, verbose=0, batch_size=512)
    return outputs[:, 0] > 0 if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)


@pytest.mark.parametrize("norm", [2, "inf"])
def test_no_attack_within_the_radius_changes_a_decision(norm):
    """2,400 certified examples, each attacked at its own radius, from two random starts."""
    model, (x, y) = parseval_classifier(), points(2400)
    model.fit(x, y, batch_size=64, epochs=3, verbose=0)
    radius = kp.certified_radius(model, x, norm=norm)
    assert (radius > 0).sum() >= 2000
    clean = decisions(model, x)
    for seed in range(2):
        attack = kp.attacks.PGD(steps=100, norm=norm, seed=seed)
        x_adv = to_numpy(attack(model, x, epsilon=radius * (1 - 1e-5)))
        np.testing.assert_array_equal(decisions(model, x_adv), clean)
    # The attack is one that works: far enough away, it changes some.
    attack, distance = kp.IteratedFGSM(steps=20, norm=norm), 10 if norm == 2 else 100
    far = to_numpy(attack(model, x, epsilon=distance * radius))
    assert (decisions(model, far) != clean).mean() > 0.05


def digits(count):
    images, labels = load_digits(return_X_y=True)
    return (images[:count] / 16).astype("float32"), labels[:count]


def real_data(name, count):
    """Images of a test set as vectors of pixels in [0, 1], and those to train on."""
    if name == "digits":
        return digits(1797), digits(count)
    data = importlib.import_module("examples.data").load(name, os.environ[DATA_DIR])
    train, test = data.train_pixels(), data.test
    return [
        (images.reshape(len(images), -1)[:most], labels[:most])
        for (images, labels), most in ((train, 10_000), (test, count))
    ]


SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


def image_classifier(kind, name, epochs, train):
    """Hidden layers that are tight frames, and a classifier that is one, or is free."""
    shape = SHAPES[name]
    if kind == "convolutional":
        convnet = kp.models.lipschitz_convnet((8, 16), depth=1, units=32, input_shape=shape)
        layers = [L.Reshape(shape), convnet]
    else:
        layers = [L.Dense(64, **kp.tight_frame()), kp.MaxMin(), L.Dense(64, **kp.tight_frame())]
        layers += [kp.MaxMin(), L.Dense(10, **(kp.tight_frame() if kind == "bounded" else {}))]
    model = keras.Sequential([keras.Input((math.prod(shape),)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, jit_compile=JIT_COMPILE)
    model.fit(*train, batch_size=64, epochs=epochs, verbose=0)
    return model


# How many images of each data set are attacked in the long form of the next test.
DATA_DIR, LONG = "KERAS_PARSEVAL_DATA_DIR", int(os.environ.get("KERAS_PARSEVAL_CERTIFIED", 0))
needs_real_data = pytest.mark.skipif(
    not LONG or DATA_DIR not in os.environ,
    reason=f"KERAS_PARSEVAL_CERTIFIED, or {DATA_DIR} with prepared data, is not set",
)


@pytest.mark.parametrize(
    "kind",
    [
        *("free", "bounded"),
        pytest.param(
            "convolutional",
            marks=pytest.mark.skipif(BACKEND != "torch" and not LONG, reason="much to compile"),
        ),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["digits", *(pytest.param(each, marks=needs_real_data) for each in ("mnist", "cifar10"))],
)
def test_no_attack_within_the_radius_by_pairs_changes_a_decision(name, kind):
    train, (x, _) = real_data(name, LONG or 100)
    model = image_classifier(kind, name, 4 if LONG else 2, train)
    clean, steps = decisions(model, x), 100 if LONG else 20
    for norm in (2, "inf"):
        radius = kp.certified_radius(model, x, norm=norm)
        old = margin_rule(model, x, norm)
        assert (radius >= old * (1 - 1e-5)).all()
        attack = kp.attacks.PGD(steps=steps, norm=norm)
        x_adv = to_numpy(attack(model, x, epsilon=radius * (1 - 1e-5)))
        flipped = (decisions(model, x_adv) != clean).sum()
        far = to_numpy(attack(model, x, epsilon=4 * radius))
        beyond = (decisions(model, far) != clean).mean()
        print(
            f"{name}, {kind}, norm {norm}: {(radius > 0).sum()} "
            f"certified, median radius {np.median(radius):.4f} (by the margin "
            f"{np.median(old):.4f}), {flipped} flipped, {beyond:.0%} at four times the radius"
        )
        assert flipped == 0 and (radius > 0).mean() > 0.99 and beyond > 0


def two_layers(units=CLASSES, seed=0):
    """A network whose features are `relu(W x)`, compiled, with its kernels of random sizes."""
    layers = [L.Dense(5, "relu"), L.Dense(units)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    several = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = binary if units == 1 else several
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=each.shape) for each in model.get_weights()])
    return model


def slopes_by_hand(model, direction, norm):
    """The bound of how fast `direction . features` of `two_layers` changes with its input."""
    kernel = model.get_weights()[0].astype("float64")
    euclidean = np.linalg.norm(kernel, 2) * np.linalg.norm(direction, 2)
    if norm == 2:
        return euclidean
    largest = np.abs(kernel).sum(axis=0).max() * np.abs(direction).sum()
    return min(largest, FEATURES**0.5 * euclidean)


def radii_by_hand(model, x, norm):
    logits = to_numpy(model(x)).astype("float64")
    kernel = model.get_weights()[2].astype("float64")
    radii = []
    for row in logits:
        best = row.argmax()
        radii.append(
            min(
                (row[best] - row[other])
                / slopes_by_hand(model, kernel[:, best] - kernel[:, other], norm)
                for other in range(len(row))
                if other != best
            )
        )
    return np.array(radii)


def margin_rule(model, x, norm, method="operator"):
    """What is certain of any network, for logits `model(x)`."""
    logits = np.sort(to_numpy(model(x)).astype("float64"), axis=-1)
    bound = kp.lipschitz_bound(model, norm=norm, method=method).bound
    margins = (logits[..., -1] - logits[..., -2]).reshape(len(x), -1).min(axis=-1)
    return margins / ((2**0.5 if norm == 2 else 2) * bound)


@pytest.mark.parametrize("norm", [2, "inf"])
@pytest.mark.parametrize("seed", range(3))
def test_the_radius_is_its_definition(norm, seed):
    model, (x, y) = two_layers(seed=seed), points()
    expected = radii_by_hand(model, x, norm)
    np.testing.assert_allclose(kp.certified_radius(model, x, norm=norm), expected, rtol=1e-4)
    right = to_numpy(model(x)).argmax(axis=-1) == y
    np.testing.assert_allclose(
        kp.certified_radius(model, x, y, norm=norm), np.where(right, expected, 0), rtol=1e-4
    )


@pytest.mark.parametrize("norm, dual", [(2, 2), ("inf", 1)])
def test_the_radius_of_a_linear_classifier_is_the_distance_to_the_next_class(norm, dual):
    model, (x, _) = linear_model(), points()
    kernel, bias = model.get_weights()
    logits = x @ kernel + bias
    distances = np.full((len(x), CLASSES), np.inf)
    for row, best in enumerate(logits.argmax(axis=-1)):
        for other in {*range(CLASSES)} - {best}:
            normal = np.linalg.norm(kernel[:, best] - kernel[:, other], dual)
            distances[row, other] = (logits[row, best] - logits[row, other]) / normal
    radii = kp.certified_radius(model, x, norm=norm)
    np.testing.assert_allclose(radii, distances.min(axis=-1), rtol=1e-4)


def wrapped(*layers, shape=(FEATURES,)):
    return keras.Sequential([keras.Input(shape), *layers])


def shared_classifier():
    inputs, dense = keras.Input((CLASSES,)), L.Dense(CLASSES)
    return keras.Model(inputs, dense(L.ReLU()(dense(inputs))))


def nested_twice():
    inputs = keras.Input((CLASSES,))
    inner = wrapped(L.Dense(CLASSES), shape=(CLASSES,))
    return keras.Model(inputs, inner(L.ReLU()(inner(inputs))))


ENDS = {
    "Dense": ("pairs", lambda: wrapped(L.Dense(8, "relu"), L.Dense(CLASSES))),
    "linear": (
        "pairs",
        lambda: wrapped(L.Dense(CLASSES), L.Activation("linear", dtype="float32"), L.Identity()),
    ),
    "nested": ("pairs", lambda: wrapped(L.Dense(4), wrapped(L.ReLU(), L.Dense(3), shape=(4,)))),
    "body": ("pairs", lambda: wrapped(wrapped(L.Dense(4, "tanh")), L.Dense(CLASSES))),
    "each step": ("pairs", lambda: wrapped(L.Conv1D(4, 2), L.Dense(CLASSES), shape=(5, 2))),
    "pooled": (
        "margin",
        lambda: wrapped(L.Dense(CLASSES), L.GlobalAveragePooling1D(), shape=(5, 2)),
    ),
    "scaled": ("margin", lambda: wrapped(L.Dense(CLASSES), L.Rescaling(2.0))),
    "activated": ("margin", lambda: wrapped(L.Dense(CLASSES, "tanh"))),
    "convolution": (
        "margin",
        lambda: wrapped(L.Conv1D(CLASSES, 2), L.GlobalMaxPooling1D(), shape=(5, 2)),
    ),
    "used twice": ("margin", shared_classifier),
    "in a model used twice": ("margin", nested_twice),
}


@pytest.mark.parametrize("end", ENDS)
def test_no_radius_is_below_that_of_the_margin(end):
    rule, build = ENDS[end]
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=each.shape) for each in model.get_weights()])
    x = (0.5 * rng.normal(size=(64, *model.input_shape[1:]))).astype("float32")
    y = to_numpy(model(x)).argmax(axis=-1)
    for norm in (2, "inf"):
        assert kp.certified_accuracy(model, x, y, epsilon=0.1, norm=norm).rule == rule
        radii, old = kp.certified_radius(model, x, y, norm=norm), margin_rule(model, x, norm)
        assert (radii >= old * (1 - 1e-5)).all()
        if rule == "margin":
            np.testing.assert_allclose(radii, old, rtol=1e-3)
        else:
            assert (radii > 1.02 * old).mean() > 0.5


@pytest.mark.parametrize("norm", [2, "inf"])
def test_each_of_several_sigmoid_units_has_a_slope_of_its_own(norm):
    model, (x, _) = two_layers(4), points()
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=JIT_COMPILE)
    kernel = model.get_weights()[2]
    slopes = [slopes_by_hand(model, column, norm) for column in kernel.T]
    expected = (abs(to_numpy(model(x))) / slopes).min(axis=-1)
    np.testing.assert_allclose(kp.certified_radius(model, x, norm=norm), expected, rtol=1e-4)


@pytest.mark.parametrize("norm", [2, "inf"])
def test_the_loss_bound_is_its_definition(norm):
    model, (x, y) = two_layers(seed=1), points()
    logits, kernel = to_numpy(model(x)).astype("float64"), model.get_weights()[2]
    losses = []
    for row, label in zip(logits, y):
        slopes = [slopes_by_hand(model, kernel[:, label] - each, norm) for each in kernel.T]
        losses.append(np.log(np.exp(row - row[label] + 0.2 * np.array(slopes)).sum()))
    bound = kp.analysis.adversarial_loss_bound(model, x, y, epsilon=0.2, norm=norm)
    assert bound == pytest.approx(np.mean(losses), rel=1e-5)
    clean = kp.analysis.adversarial_loss_bound(model, x, y, epsilon=0.0, norm=norm)
    steepness = (2**0.5 if norm == 2 else 2) * kp.lipschitz_bound(model, norm=norm).bound
    assert clean < bound < clean + 0.2 * steepness


def test_models_in_half_precision_are_certified_in_single():
    def model(policy):
        inner = keras.Sequential([L.Dense(16, "relu", dtype=policy)])
        layers = [inner, L.Dense(CLASSES, "softmax", dtype=policy)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers])
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
        rng = np.random.default_rng(2)
        model.set_weights([rng.normal(size=each.shape) for each in model.get_weights()])
        return model

    (x, _), half = points(), model("mixed_bfloat16")
    expected = kp.certified_radius(model("float32"), x)
    np.testing.assert_allclose(kp.certified_radius(half, x), expected, rtol=1e-4)
    assert {layer.compute_dtype for layer in (half.layers[-1], half.layers[0].layers[0])} == {
        "bfloat16"
    }


def test_images_of_unknown_size_are_certified_by_the_bound_in_the_inf_norm():
    layers = [L.Conv2D(4, 3, activation="relu"), L.GlobalMaxPooling2D(), L.Dense(CLASSES)]
    radii = []
    for size in (None, 6):
        keras.utils.set_random_seed(0)
        model = keras.models.clone_model(wrapped(*layers, shape=(size, size, 1)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=JIT_COMPILE)
        x = np.random.default_rng(0).uniform(size=(20, 6, 6, 1))
        radii.append(kp.certified_radius(model, x, norm="inf"))
    assert (0 < radii[0]).all() and (radii[0] <= radii[1] * (1 + 1e-6)).all()


class InOneNorm(L.Layer):
    """A layer that is known in the inf-norm alone."""

    def call(self, x):
        return 1.0 * x


@kp.analysis.lipschitz_rule(InOneNorm)
def in_one_norm(layer, call):
    if call.norm == 2:
        raise ValueError("This layer has a bound in the inf-norm alone")
    return 1.0


def test_a_bound_in_the_2_norm_is_not_needed():
    model, (x, _) = wrapped(InOneNorm(), L.Dense(CLASSES)), points()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    assert (kp.certified_radius(model, x, norm="inf") > 0).all()
    with pytest.raises(ValueError, match="in the inf-norm alone"):
        kp.certified_radius(model, x)


@pytest.mark.parametrize("end", ["softmax", "layer", "activation"])
def test_a_softmax_at_the_end_changes_nothing(end):
    logits, (x, y) = linear_model(), points()
    ends = {"layer": [L.Softmax()], "activation": [L.Activation("softmax")], "softmax": []}[end]
    dense = L.Dense(CLASSES, "softmax" if end == "softmax" else None)
    model = keras.Sequential([keras.Input((FEATURES,)), dense, *ends])
    model.compile(loss="sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
    model.set_weights(logits.get_weights())
    for function in (
        lambda model: kp.certified_radius(model, x, y),
        lambda model: kp.analysis.adversarial_loss_bound(model, x, y, epsilon=0.1),
    ):
        np.testing.assert_allclose(function(model), function(logits), rtol=1e-4)
    # and the model still ends with its softmax
    np.testing.assert_allclose(to_numpy(model(x)).sum(axis=-1), 1, rtol=1e-5)
    assert kp.lipschitz_bound(model).bound == pytest.approx(kp.lipschitz_bound(logits).bound / 2)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_binary_classifiers(activation):
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    model, (x, y) = linear_model(activation, 1, loss), points()
    y = y > 0
    kernel, bias = model.get_weights()
    logits = (x @ kernel + bias)[:, 0]
    distance = abs(logits) / np.linalg.norm(kernel)  # to the plane where the decision changes
    np.testing.assert_allclose(kp.certified_radius(model, x), distance, rtol=1e-4)
    right = (logits > 0) == y
    np.testing.assert_allclose(
        kp.certified_radius(model, x, y), np.where(right, distance, 0), rtol=1e-4
    )


def test_certified_accuracy_counts_radii():
    model, (x, y) = parseval_classifier(), points(300)
    model.fit(x, y, epochs=5, verbose=0)
    radius = kp.certified_radius(model, x, y)
    levels = (0.01, 0.1, 0.5)
    result = kp.certified_accuracy(model, x, y, epsilon=levels)
    assert result.clean == pytest.approx((decisions(model, x) == y).mean())
    assert result.levels == levels and result.examples == 300
    np.testing.assert_allclose(result.accuracies, [(radius > level).mean() for level in levels])
    batches = [(x[start : start + 70], y[start : start + 70]) for start in range(0, 300, 70)]

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    assert kp.certified_accuracy(model, Batches(), epsilon=levels) == result
    attacked = kp.robust_accuracy(
        model, x, y, epsilon=levels, attack=kp.IteratedFGSM(steps=20, norm=2)
    )
    assert all(a <= b for a, b in zip(result.accuracies, attacked.accuracies))


@pytest.mark.parametrize("norm", [2, "inf"])
@pytest.mark.parametrize("kind", ["classes", "binary"])
def test_the_loss_under_attack_stays_below_its_bound(norm, kind):
    x, y = points(300)
    if kind == "binary":
        y = (y > 0).astype("int32")
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model = parseval_classifier(units=1, loss=loss)
    else:
        model = parseval_classifier()
    model.fit(x, y, epochs=2, verbose=0)
    clean = float(model.evaluate(x, y, verbose=0))

    def bound(epsilon):
        return kp.analysis.adversarial_loss_bound(model, x, y, epsilon=epsilon, norm=norm)

    assert bound(0.0) == pytest.approx(clean, rel=1e-4)
    for epsilon in (0.01, 0.1):
        x_adv = kp.IteratedFGSM(norm=norm)(model, x, y, epsilon=epsilon)
        attacked = float(model.evaluate(to_numpy(x_adv), y, verbose=0))
        assert clean < attacked <= bound(epsilon) + 1e-6


def test_convolutions_certify_more_by_their_own_norm():
    layers = [L.Conv2D(4, 3, padding="same", activation="relu"), L.Flatten(), L.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    x = np.random.default_rng(0).uniform(size=(20, 6, 6, 1))
    paper = kp.certified_radius(model, x, method="paper")
    assert (kp.certified_radius(model, x, method="operator") > 1.05 * paper).all()


def test_a_constant_network_is_certain_everywhere():
    model, (x, _) = linear_model(), points()
    kernel, _ = model.get_weights()
    model.set_weights([0 * kernel, np.arange(CLASSES, dtype="float32")])
    assert (kp.certified_radius(model, x) == np.inf).all()


def test_nothing_is_touched():
    model, (x, y) = parseval_classifier("softmax"), points()
    twin = copy_of(model)
    kp.certified_accuracy(model, x, y, epsilon=0.1)
    np.testing.assert_array_equal(to_numpy(model(x)), to_numpy(twin(x)))
    assert model.layers[-1].activation is keras.activations.softmax


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(CLASSES)

    def call(self, x):
        return keras.ops.softmax(self.dense(x))


def test_bad_input_is_refused():
    model, (x, y) = linear_model(), points()
    with pytest.raises(ValueError, match="`epsilon` must be finite and not negative"):
        kp.certified_accuracy(model, x, y, epsilon=-0.1)
    with pytest.raises(TypeError, match="Data must be arrays"):
        kp.certified_accuracy(model, None, epsilon=0.1)
    for function in (kp.certified_accuracy, kp.analysis.adversarial_loss_bound):
        with pytest.raises(ValueError, match="an empty data set"):
            function(model, (x[:0], y[:0]), epsilon=0.1)
    with pytest.raises(ValueError, match="an empty data set"):
        kp.certified_radius(model, x[:0])
    with pytest.raises(ValueError, match="Labels are needed"):
        kp.certified_accuracy(model, x, epsilon=0.1)
    with pytest.raises(ValueError, match='`norm` must be "inf" or 2'):
        kp.certified_radius(model, x, norm=1)
    bare = keras.Sequential([keras.Input((FEATURES,)), L.Dense(CLASSES)])
    with pytest.raises(ValueError, match="must be compiled with a loss"):
        kp.certified_radius(bare, x)
    subclassed = Subclassed()
    subclassed.compile(loss="sparse_categorical_crossentropy")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="Certificates need logits"):
        kp.certified_radius(subclassed, x)
    own = lambda y_true, y_pred: -y_pred[:, 0]  # noqa: E731
    with pytest.raises(ValueError, match="one of the log-loss"):
        kp.analysis.adversarial_loss_bound(model, x, y, epsilon=0.1, loss=own)


def test_the_result_is_a_certificate():
    result = kp.analysis.CertifiedAccuracy(0.9, (0.1, 0.25), (0.8, 0.5), 2, "paper", 10, "pairs")
    assert not isinstance(result, kp.analysis.RobustAccuracy)
    assert result.to_dict() == {"clean": 0.9, "eps0.1": 0.8, "eps0.25": 0.5}
    row = {"norm": 2, "method": "paper", "examples": 10, "rule": "pairs"}
    # Wilson's interval by scipy 1.17: binomtest(5, 10).proportion_ci(method="wilson").
    interval = {"low": pytest.approx(0.236593, abs=1e-6), "high": pytest.approx(0.763407, abs=1e-6)}
    assert result.to_rows()[-1] == {**row, "level": 0.25, "accuracy": 0.5, **interval}
    first = "Certified (norm 2, method 'paper', rule 'pairs'), 10 examples"
    assert str(result).splitlines()[0] == first


def test_radii_of_data_sets_and_pairs():
    model, (x, y) = linear_model(), points()
    expected = kp.certified_radius(model, x, y)
    batches = [(x[start : start + 16], y[start : start + 16]) for start in range(0, 40, 16)]
    for data in ((x, y), batches):
        np.testing.assert_allclose(kp.certified_radius(model, data), expected, rtol=1e-6)
    unlabelled = [x[:16], x[16:]]
    np.testing.assert_allclose(
        kp.certified_radius(model, iter(unlabelled)), kp.certified_radius(model, x), rtol=1e-6
    )
