import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, copy_of, linear_model, points
from conftest import JIT_COMPILE, to_numpy

import keras_parseval as kp

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


@pytest.mark.parametrize("norm, several", [(2, 2**0.5), ("inf", 2.0)])
def test_the_radius_is_its_definition(norm, several):
    model, (x, y) = linear_model(), points()
    kernel, bias = model.get_weights()
    logits = x @ kernel + bias
    constant = np.linalg.norm(kernel.T, 2 if norm == 2 else np.inf)
    best = np.sort(logits, axis=-1)
    expected = (best[:, -1] - best[:, -2]) / (several * constant)
    np.testing.assert_allclose(kp.certified_radius(model, x, norm=norm), expected, rtol=1e-4)
    right = logits.argmax(axis=-1) == y
    np.testing.assert_allclose(
        kp.certified_radius(model, x, y, norm=norm), np.where(right, expected, 0), rtol=1e-4
    )


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
    paper = kp.certified_radius(model, x)
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
    result = kp.analysis.CertifiedAccuracy(0.9, (0.1, 0.25), (0.8, 0.5), 2, "paper", 10)
    assert not isinstance(result, kp.analysis.RobustAccuracy)
    assert result.to_dict() == {"clean": 0.9, "eps0.1": 0.8, "eps0.25": 0.5}
    row = {"norm": 2, "method": "paper", "examples": 10, "level": 0.25, "accuracy": 0.5}
    assert result.to_rows()[-1] == row
    assert str(result).splitlines()[0] == "Certified (norm 2, method 'paper'), 10 examples"


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
