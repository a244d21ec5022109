import contextlib

import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, linear_model, points
from conftest import BACKEND, JIT_COMPILE, to_numpy

import keras_parseval as kp


def image_model(traces=None):
    class Counter(keras.layers.Layer):
        """Notes the batch size of each forward pass that is traced or run."""

        def call(self, x):
            if traces is not None:
                traces.append(x.shape[0])
            return x

    layers = [Counter(), keras.layers.Flatten(), keras.layers.Dense(16, "relu")]
    model = keras.Sequential([keras.Input((5, 5, 2)), *layers, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    return model


def images(count=50):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 1, size=(count, 5, 5, 2)).astype("float32")
    return x, rng.integers(0, CLASSES, size=count)


@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize("level", [50, 33.3, 10])
def test_attacks_have_the_snr_that_was_asked_for(norm, level):
    model, (x, _) = image_model(), images()
    epsilon = kp.attacks.epsilon_for_snr(x, level, norm)
    assert epsilon.shape == (len(x),)
    attack = kp.FGSM(norm=norm)
    for amount in ({"epsilon": epsilon}, {"snr": level}):
        crafted = attack(model, x, **amount)
        np.testing.assert_allclose(kp.attacks.snr(x, crafted), level, atol=0.01)


def test_snr_is_its_definition():
    x, noise = np.full((2, 4), 3.0), np.zeros((2, 4))
    noise[0] = 0.3
    np.testing.assert_allclose(kp.attacks.snr(x, x + noise), [20, np.inf])
    with pytest.raises(ValueError, match="the same shape"):
        kp.attacks.snr(x, x[:1])
    with pytest.raises(ValueError, match='`norm` must be "inf" or 2'):
        kp.attacks.epsilon_for_snr(x, 40, norm=1)
    with pytest.raises(ValueError, match="`snr` must be finite"):
        kp.attacks.epsilon_for_snr(x, np.nan)
    with pytest.raises(ValueError, match="at least one example"):
        kp.attacks.epsilon_for_snr(x[:0], 40)
    assert kp.attacks.snr(np.zeros((1, 4)), np.zeros((1, 4))) == np.inf


def by_hand(model, x, y, attack, **amount):
    """Accuracy on examples that the attack itself crafts, all at once."""
    crafted = to_numpy(attack(model, x, y, **amount))
    return (model.predict(crafted, verbose=0).argmax(-1) == y).mean()


@pytest.mark.parametrize("batch_size", [7, 50, 64])
@pytest.mark.parametrize("norm", ["inf", 2])
def test_robust_accuracy_is_the_accuracy_of_the_attack(batch_size, norm):
    model, (x, y) = image_model(), images()
    model.fit(x, y, epochs=30, verbose=0)
    one_step = kp.FGSM(norm=norm)
    result = kp.robust_accuracy(
        model, x, y, snr=(30, 20, 15), attack=one_step, batch_size=batch_size
    )
    assert result.clean == pytest.approx((model.predict(x, verbose=0).argmax(-1) == y).mean())
    for level, accuracy in zip(result.levels, result.accuracies):
        assert accuracy == pytest.approx(by_hand(model, x, y, one_step, snr=level))
    iterated = kp.IteratedFGSM(steps=5, norm=norm)
    result = kp.robust_accuracy(model, x, y, epsilon=[0.02, 0.1], attack=iterated)
    for level, accuracy in zip(result.levels, result.accuracies):
        assert accuracy == pytest.approx(by_hand(model, x, y, iterated, epsilon=level))
    assert result.clean > result.accuracies[-1]


@pytest.mark.parametrize("loss", ["binary_crossentropy", "categorical_crossentropy"])
def test_a_softmax_of_two_units_is_judged_by_its_own_loss(loss):
    """A binary loss on a softmax has no logits to offer: the probabilities decide."""
    model, (x, y) = linear_model("softmax", 2, loss), points()
    labels = np.eye(2)[(y > 0).astype(int)]
    right = ((model.predict(x, verbose=0) > 0.5) == (labels > 0.5)).all(axis=-1)
    warning = pytest.warns(UserWarning, match="cannot be reached")
    with warning if loss == "binary_crossentropy" else contextlib.nullcontext():
        assert kp.robust_accuracy(model, x, labels).clean == pytest.approx(right.mean())


def test_a_model_that_has_changed_is_compiled_anew():
    model, (x, y) = linear_model(), points()
    kp.robust_accuracy(model, x, y)
    model.pop()
    model.add(keras.layers.Dense(CLASSES))
    model.compile(loss=model.loss, jit_compile=JIT_COMPILE)
    decided = model.predict(x, verbose=0).argmax(-1)
    assert kp.robust_accuracy(model, x, y).clean == pytest.approx((decided == y).mean())


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_inputs_of_other_precision(dtype):
    model, (x, y) = linear_model(), points()
    result = kp.robust_accuracy(model, x.astype(dtype), y, epsilon=[0.5])
    assert result.accuracies[0] == pytest.approx(
        kp.robust_accuracy(model, x, y, epsilon=[0.5]).accuracies[0], abs=0.05
    )


def test_one_unit_needs_a_binary_loss():
    model, (x, y) = linear_model("sigmoid", 1, "mse"), points()
    with pytest.raises(ValueError, match="must have a binary cross-entropy"):
        kp.robust_accuracy(model, x, y > 0, attack=kp.FGSM(loss="mse"))


def test_one_gradient_serves_all_levels():
    traces = []
    model, (x, y) = image_model(traces), images(32)
    kp.robust_accuracy(model, x, y, snr=range(10, 42, 2), batch_size=32)
    if BACKEND == "torch":
        # One batch with a gradient, and one for each of the 16 levels.
        assert traces[-17:] == [32] * 17
    else:
        # They are side by side in one batch.
        assert sum(traces[-2:]) == 32 + 16 * 32
        assert traces.count(32 * 16) == 1
        # Compiled once for any number of batches, the last one padded.
        before = len(traces)
        kp.robust_accuracy(model, *images(90), snr=range(10, 42, 2), batch_size=32)
        assert len(traces) == before


def test_masked_features_carry_no_noise():
    model, (x, y) = image_model(), images()
    mask = np.zeros((5, 5, 2))
    mask[1:4, 1:4] = 1
    attack = kp.FGSM(mask=mask)
    result = kp.robust_accuracy(model, x, y, snr=20, attack=attack)
    norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
    epsilon = norms / 10 / np.sqrt(mask.sum())
    crafted = attack(model, x, y, epsilon=epsilon)
    np.testing.assert_allclose(to_numpy(attack(model, x, y, snr=20)), to_numpy(crafted), atol=1e-6)
    np.testing.assert_allclose(kp.attacks.snr(x, crafted), 20, atol=0.01)
    assert result.accuracies[0] == pytest.approx(
        (model.predict(to_numpy(crafted), verbose=0).argmax(-1) == y).mean()
    )


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 3

    def __getitem__(self, index):
        part = slice(20 * index, 20 * (index + 1))
        return self.x[part], self.y[part]


def datasets(x, y):
    yield "PyDataset", Batches(x, y)
    yield "generator", (Batches(x, y)[index] for index in range(3))
    yield "weighted", [(*Batches(x, y)[index], np.ones(20)) for index in range(3)]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        yield "tf.data", tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    if BACKEND == "torch":
        import torch

        pairs = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
        yield "DataLoader", torch.utils.data.DataLoader(pairs, batch_size=20)


def test_data_sets_of_any_kind():
    model, (x, y) = image_model(), images()
    expected = kp.robust_accuracy(model, x, y)
    for name, dataset in datasets(x, y):
        assert kp.robust_accuracy(model, dataset) == expected, name


@pytest.mark.parametrize("encoding", ["one-hot", "binary", "column"])
def test_labels_of_any_kind(encoding):
    x, y = points()
    if encoding == "binary":
        y = y > 0
        model = linear_model("sigmoid", 1, "binary_crossentropy")
        decided = model.predict(x, verbose=0)[:, 0] > 0.5
    elif encoding == "one-hot":
        model = linear_model("softmax", loss="categorical_crossentropy")
        decided = model.predict(x, verbose=0).argmax(-1)
    else:
        model = linear_model()
        decided = model.predict(x, verbose=0).argmax(-1)
    given = np.eye(CLASSES)[y] if encoding == "one-hot" else y[:, None]
    given = y if encoding == "binary" else given
    result = kp.robust_accuracy(model, x, given, epsilon=[0.0, 3.0])
    assert result.clean == pytest.approx((decided == y).mean())
    assert result.accuracies[0] == pytest.approx(result.clean)
    assert result.accuracies[1] == 0.0


def test_sequences_count_by_the_step():
    layers = [keras.Input((4, FEATURES)), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    x, y = points(40)
    x, y = x.reshape(10, 4, FEATURES), y.reshape(10, 4)
    result = kp.robust_accuracy(model, x, y, epsilon=[5.0])
    assert result.clean == pytest.approx((model.predict(x, verbose=0).argmax(-1) == y).mean())
    assert result.accuracies[0] < result.clean


def test_the_result_is_plain_data(capsys):
    result = kp.analysis.RobustAccuracy(0.9, "epsilon", (0.1, 0.25), (0.8, 0.5), "FGSM", 10)
    assert result.to_dict() == {"clean": 0.9, "eps0.1": 0.8, "eps0.25": 0.5}
    # Wilson's interval by scipy 1.17: binomtest(9, 10).proportion_ci(method="wilson").
    low, high = 0.5958499, 0.9821238
    assert result.to_rows()[0] == {
        "attack": "FGSM",
        "examples": 10,
        "measure": "epsilon",
        "level": None,
        "accuracy": 0.9,
        "low": pytest.approx(low, abs=1e-6),
        "high": pytest.approx(high, abs=1e-6),
    }
    assert [row["level"] for row in result.to_rows()] == [None, 0.1, 0.25]
    assert str(result).splitlines()[1:] == [
        "   epsilon   accuracy        95% interval",
        "     clean     0.9000    0.5958 to 0.9821",
        "       0.1     0.8000    0.4902 to 0.9433",
        "      0.25     0.5000    0.2366 to 0.7634",
    ]
    model, (x, y) = linear_model(), points()
    kp.robust_accuracy(model, x, y, verbose=1)
    assert "1/1" in capsys.readouterr().out
    kp.robust_accuracy(model, x, y)
    assert capsys.readouterr().out == ""


def test_a_progress_bar_appears_on_long_runs(capsys, monkeypatch):
    model, (x, y) = linear_model(), points()
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    kp.robust_accuracy(model, x, y, batch_size=10)
    assert "4/4" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"snr": 40, "epsilon": 0.1}, ValueError, "not as both"),
        ({"snr": []}, ValueError, "at least one level"),
        ({"snr": [40, np.inf]}, ValueError, "`snr` must be finite"),
        ({"epsilon": [0.1, -1]}, ValueError, "`epsilon` must be finite and not negative"),
        ({"attack": "FGSM"}, TypeError, "`attack` must be"),
        ({"attack": kp.FGSM}, TypeError, "`attack` must be None or an attack"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be a positive integer"),
        ({"verbose": 3}, ValueError, "`verbose` must be"),
        ({"y": None}, ValueError, "Labels are needed"),
        ({"y": np.zeros(3)}, ValueError, "same number of examples"),
        ({"x": [], "y": None}, ValueError, "an empty data set"),
        ({"x": np.zeros((0, FEATURES)), "y": []}, ValueError, "an empty data set"),
        ({"x": [(np.zeros((2, FEATURES)),)], "y": None}, ValueError, "without labels"),
        ({"x": np.zeros((40, FEATURES), "uint8")}, TypeError, "floating-point"),
    ],
    ids=str,
)
def test_bad_input_is_refused(arguments, error, message):
    x, y = points()
    with pytest.raises(error, match=message):
        kp.robust_accuracy(**{"model": linear_model(), "x": x, "y": y, **arguments})


@pytest.mark.parametrize("kind", [kp.FGSM, kp.IteratedFGSM, kp.attacks.PGD])
def test_evaluation_attacks_the_true_labels_unless_told_otherwise(kind):
    model, (x, y) = image_model(), images()
    model.fit(x, y, epochs=10, verbose=0)
    options = {"epsilon": (0.02, 0.1, 0.3)}
    default = kp.robust_accuracy(model, x, y, attack=kind(bounds=(0, 1)), **options)
    true = kp.robust_accuracy(model, x, y, attack=kind(bounds=(0, 1), labels="true"), **options)
    predicted = kp.robust_accuracy(model, x, y, attack=kind(labels="predicted"), **options)
    assert default == true
    # Against its own predictions, an attack puts mistakes right.
    assert predicted.clean == default.clean and predicted.accuracies > default.accuracies


def test_lists_are_taken_for_arrays():
    model, (x, y) = linear_model(), points()
    expected = kp.robust_accuracy(model, x, y, snr=20)
    assert kp.robust_accuracy(model, x.tolist(), y.tolist(), snr=20) == expected
    assert kp.robust_accuracy(model, x, y.tolist(), snr=20) == expected
    assert kp.robust_accuracy(model, (x, y), snr=20) == expected


class Noise(kp.attacks.Attack):
    """The smallest attack there can be."""

    def perturbation(self, problem):
        return problem.random(problem.seed)


def test_an_attack_of_ones_own_needs_one_method():
    model, (x, y) = image_model(), images()
    noise = Noise(norm=2, bounds=(0, 1))
    result = kp.robust_accuracy(model, x, y, epsilon=(0.5, 3), attack=noise)
    assert result.attack == "Noise (norm 2, true labels)"
    crafted = to_numpy(noise(model, x, y, epsilon=0.5))
    lengths = np.linalg.norm((crafted - x).reshape(len(x), -1), axis=1)
    assert lengths.max() <= 0.5 + 1e-5 and lengths.min() > 0.2
    with pytest.raises(NotImplementedError, match="must implement `perturbation`"):
        kp.attacks.Attack()(model, x, y, epsilon=0.5)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "binary_crossentropy"])
def test_logits_that_are_said_to_be_probabilities_are_refused(loss):
    units = 1 if loss == "binary_crossentropy" else CLASSES
    model, (x, y) = linear_model(None, units, loss), points()
    y = y > 0 if units == 1 else y
    for function in (
        lambda: kp.robust_accuracy(model, x, y),
        lambda: kp.FGSM()(model, x, y, epsilon=0.1),
        # It sees no data before it is too late, and tries the model on random inputs.
        lambda: model.fit(x, y, verbose=0, callbacks=[kp.AdversarialTraining()]),
    ):
        with (
            pytest.warns(UserWarning, match="cannot be reached"),
            pytest.raises(ValueError, match=r"must return probabilities.*compile it with"),
        ):
            function()


@pytest.mark.parametrize(
    "data, message",
    [
        ([(x, y) for x, y in zip(*points(4))], "batch its examples"),
        ([(x, np.eye(CLASSES)[y]) for x, y in zip(*points(4))], "as `dataset.batch"),
        ([(points(4)[0], points(4)[1] + 0.5)], "the targets of a regression have none"),
    ],
    ids=["unbatched", "unbatched, one-hot", "regression"],
)
def test_data_sets_that_are_something_else(data, message):
    with pytest.raises(ValueError, match=message):
        kp.robust_accuracy(linear_model(), data)
