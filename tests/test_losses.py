import json

import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, points
from conftest import BACKEND, JIT_COMPILE, to_numpy
from keras import ops

import keras_parseval as kp
from keras_parseval._backend import input_gradient

L = keras.layers
MarginCrossentropy = kp.losses.MarginCrossentropy


def losses_by_hand(labels, logits, margin, temperature):
    """The loss of each decision: one label, and one logit, after the other."""
    losses = []
    for label, row in zip(labels.ravel(), logits.reshape(-1, logits.shape[-1])):
        adjusted = row.astype("float64")
        adjusted[label] -= margin
        adjusted /= temperature
        losses.append(temperature * (np.log(np.exp(adjusted).sum()) - adjusted[label]))
    return np.reshape(losses, labels.shape)


def examples(rng, shape=(7,)):
    return rng.integers(0, 4, size=shape), rng.normal(size=(*shape, 4)).astype("float32")


@pytest.mark.parametrize("margin, temperature", [(0.0, 1.0), (0.7, 0.25), (2.0, 0.5)])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_it_is_its_definition_for_either_kind_of_labels(margin, temperature, shape, rng):
    labels, logits = examples(rng, shape)
    expected = losses_by_hand(labels, logits, margin, temperature)
    for encoded in (labels, labels[..., None], labels.astype("float32"), np.eye(4)[labels]):
        loss = MarginCrossentropy(margin, temperature, reduction=None)
        np.testing.assert_allclose(to_numpy(loss(encoded, logits)), expected, rtol=1e-4, atol=1e-6)
        loss = MarginCrossentropy(margin, temperature)
        assert float(loss(encoded, logits)) == pytest.approx(expected.mean(), rel=1e-4)


def test_without_a_margin_it_is_kerass_own(rng):
    labels, logits = examples(rng)
    own = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ours = MarginCrossentropy(0.0, temperature=1.0)
    weights = rng.uniform(size=7)
    for options in ({}, {"sample_weight": weights}):
        assert float(ours(labels, logits, **options)) == pytest.approx(
            float(own(labels, logits, **options)), rel=1e-5
        )
    soft = rng.dirichlet(np.ones(4), size=7)
    own = keras.losses.CategoricalCrossentropy(from_logits=True)
    assert float(ours(soft, logits)) == pytest.approx(float(own(soft, logits)), rel=1e-5)


def test_large_logits_are_no_problem(rng):
    labels, logits = examples(rng)
    losses = to_numpy(MarginCrossentropy(1.0, reduction="none")(labels, 1e6 * logits))
    rows = np.arange(7)
    expected = 1e6 * (logits.max(axis=-1) - logits[rows, labels])
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1.0)


def test_a_label_of_no_class_is_noticed(rng):
    _, logits = examples(rng)
    labels = np.array([0, 1, 4, -1, 2.5, 3, 2])
    losses = to_numpy(MarginCrossentropy(0.4, reduction=None)(labels, logits))
    np.testing.assert_array_equal(np.isnan(losses), [0, 0, 1, 1, 1, 0, 0])


def classifier(loss, activation=None, end=()):
    layers = [L.Dense(16, **kp.tight_frame()), kp.MaxMin(), L.Dense(CLASSES, activation), *end]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    options = {"metrics": ["accuracy"], "jit_compile": JIT_COMPILE}
    model.compile(keras.optimizers.Adam(0.02), loss, **options)
    return model


def test_a_model_is_trained_attacked_and_certified(tmp_path):
    model, (x, y) = classifier(MarginCrossentropy(0.5)), points(200)
    training = kp.AdversarialTraining(kp.FGSM(norm=2), epsilon=0.05)
    history = model.fit(x, y, epochs=6, verbose=0, callbacks=[training]).history
    assert history["accuracy"][-1] > 0.8 and history["loss"][-1] < 0.5 * history["loss"][0]
    clean = (to_numpy(model(x)).argmax(axis=-1) == y).mean()
    for labels in (y, np.eye(CLASSES, dtype="float32")[y]):
        attack = kp.IteratedFGSM(steps=10, norm=2)
        attacked = kp.robust_accuracy(model, x, labels, epsilon=(0.1, 0.5), attack=attack)
        certified = kp.certified_accuracy(model, x, labels, epsilon=(0.1, 0.5))
        assert attacked.clean == certified.clean == pytest.approx(clean)
        assert certified.rule == "pairs"
        assert all(a <= b for a, b in zip(certified.accuracies, attacked.accuracies))
        assert attacked.accuracies[1] < clean
    # The certificate does not depend on the loss.
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = kp.certified_radius(model, x, y, loss=plain)
    np.testing.assert_allclose(kp.certified_radius(model, x, y), expected, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config()
    evaluated = [each.evaluate(x, y, verbose=0) for each in (model, loaded)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)


@pytest.mark.parametrize("one_hot", [False, True])
def test_an_attack_ascends_the_loss_itself(one_hot):
    loss, (x, y) = MarginCrossentropy(0.5, temperature=0.1), points(20)
    model = classifier(loss)
    labels = np.eye(CLASSES, dtype="float32")[y] if one_hot else y

    def objective(x):
        value = loss(ops.convert_to_tensor(labels), model(x, training=False))
        return value, value

    gradient = to_numpy(input_gradient(objective, ops.convert_to_tensor(x))[0])
    direction = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
    moved = to_numpy(kp.FGSM(norm=2)(model, x, labels, epsilon=0.1)) - x
    np.testing.assert_allclose(moved, 0.1 * direction, atol=1e-4)
    plain = kp.FGSM(norm=2, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert abs(to_numpy(plain(model, x, y, epsilon=0.1)) - x - moved).max() > 1e-3


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(CLASSES)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize("one_hot", [False, True])
def test_a_subclassed_model_is_attacked(one_hot):
    model, (x, y) = Subclassed(), points(20)
    model.compile("sgd", MarginCrossentropy(0.5))
    labels = np.eye(CLASSES)[y] if one_hot else y
    result = kp.robust_accuracy(model, x, labels, epsilon=0.1)
    assert result.clean == pytest.approx((to_numpy(model(x)).argmax(axis=-1) == y).mean())


ENDS = {"softmax": ("softmax", ()), "sigmoid": ("sigmoid", ()), "layer": (None, (L.Softmax,))}


@pytest.mark.parametrize("end", ENDS)
def test_probabilities_are_refused(end):
    activation, layers = ENDS[end]
    model, (x, y) = (
        classifier(MarginCrossentropy(0.5), activation, [each() for each in layers]),
        points(),
    )
    for function in (kp.robust_accuracy, kp.certified_accuracy):
        with pytest.raises(
            ValueError, match="must return logits; leave out the softmax or sigmoid"
        ):
            function(model, x, y, epsilon=0.1)
    if BACKEND == "jax":
        return  # Its compiled tensors cannot be told what they come from.
    with pytest.raises(ValueError, match="must be given logits; leave out the softmax or sigmoid"):
        model.fit(x, y, verbose=0)


@pytest.mark.parametrize("dtype, classes", [("float16", 2049), ("bfloat16", 257)])
def test_integer_labels_are_exact_or_refused(dtype, classes):
    loss = MarginCrossentropy(0.5, dtype=dtype)
    labels = np.array([classes - 1, classes - 2])
    logits = np.eye(classes, dtype="float32")[labels]
    with pytest.raises(ValueError, match="Integer labels must be exact"):
        loss(labels, logits)
    assert np.isfinite(float(loss(np.eye(classes)[labels], logits)))
    assert np.isfinite(float(loss(labels - 1, logits[:, 1:])))


@pytest.mark.parametrize(
    "labels, logits",
    [((7, 3), (7, 4)), ((7, 4, 1), (7, 4)), ((7,), (7, 1)), ((7, 1), (7, 1)), ((7,), (7, 2, 4))],
)
def test_labels_that_do_not_fit_are_refused(labels, logits):
    with pytest.raises(ValueError, match=r"Labels must be integers|two or more"):
        MarginCrossentropy(0.5)(np.zeros(labels), np.zeros(logits, "float32"))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"margin": -0.1}, ValueError, "`margin` must be a number, 0 or more"),
        ({"margin": "large"}, TypeError, "`margin` must be"),
        ({"margin": np.nan}, ValueError, "`margin` must be"),
        ({"margin": 1, "temperature": 0}, ValueError, "`temperature` must be a positive number"),
        ({"margin": 1, "reduction": "max"}, ValueError, "reduction"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        MarginCrossentropy(**arguments)


def test_it_is_serialized():
    loss = MarginCrossentropy(0.7, 0.5, reduction="sum", name="mine", dtype="float64")
    serialized = json.loads(json.dumps(keras.losses.serialize(loss)))
    twin = keras.losses.deserialize(serialized)
    assert type(twin) is MarginCrossentropy and twin.get_config() == loss.get_config()
    assert (twin.margin, twin.temperature, twin.reduction) == (0.7, 0.5, "sum")
    assert (twin.name, twin.dtype) == ("mine", "float64")
    assert MarginCrossentropy(0.7).name == "margin_crossentropy"
