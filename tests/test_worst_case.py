"""Attacks that look for the worst case: Auto-PGD, the square attack, and ensembles."""

import dataclasses
import os
import types

import keras
import numpy as np
import pytest
from classifiers import FEATURES, linear_model, points
from conftest import BACKEND, JIT_COMPILE, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_parseval as kp

A = kp.attacks
CLASSES, SIDE = 5, 6
L = keras.layers


def images(count=24, seed=0):
    x = np.random.default_rng(seed).uniform(size=(count, SIDE, SIDE, 1)).astype("float32")
    return x, np.arange(count) % CLASSES


def image_model(*layers, classes=CLASSES, encoding="sparse_categorical"):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIDE, SIDE, 1))
    x = inputs
    for layer in [*layers, L.Flatten(), L.Dense(classes, kernel_initializer="normal")]:
        x = layer(x)
    kinds = {
        "sparse_categorical": keras.losses.SparseCategoricalCrossentropy,
        "binary": keras.losses.BinaryCrossentropy,
    }
    model = keras.Model(inputs, x)
    model.compile("sgd", kinds[encoding](from_logits=True), jit_compile=JIT_COMPILE)
    return model


def decided_as(model, x):
    """Labels that the model gets right, so that there is something to break."""
    return np.argmax(model.predict(x, verbose=0), axis=-1)


def all_attacks(**options):
    return {
        "fgsm": kp.FGSM(**options),
        "pgd": A.PGD(steps=4, restarts=2, **options),
        "apgd-ce": A.APGD(steps=9, **options),
        "apgd-dlr": A.APGD(steps=9, loss="dlr", restarts=2, **options),
        "apgd-targets": A.APGD(steps=5, loss="dlr", targets=3, **options),
        "apgd-ce-targets": A.APGD(steps=5, targets=2, **options),
        "square": A.Square(queries=30, **options),
        "suite": A.quick(steps=3, targets=2, queries=10, classes=CLASSES, **options),
    }


def sizes(change, norm):
    rows = np.asarray(change, "float64").reshape(len(change), -1)
    return abs(rows).max(axis=1) if norm == "inf" else np.linalg.norm(rows, axis=1)


# Each takes a compilation, where there is one: PyTorch runs all, the others one of three.
CASES = [
    pytest.param(name, norm, bounds, id=f"{name}-{norm}-{'bounded' if bounds else 'free'}")
    for name in all_attacks()
    for norm in ("inf", 2)
    for bounds in (None, (0, 1))
][:: 1 if BACKEND == "torch" else 3]


@pytest.mark.parametrize("name, norm, bounds", CASES)
def test_ball_and_bounds_are_respected(name, norm, bounds):
    model, (x, y) = image_model(), images()
    attack = all_attacks(norm=norm, bounds=bounds)[name]
    weights = model.get_weights()
    assert np.array_equal(to_numpy(attack(model, x, y, epsilon=0.0)), x)

    @settings(max_examples=8, deadline=None, derandomize=True)
    @given(st.floats(1e-3, 4.0), st.integers(0, 10**6))
    def check(epsilon, seed):
        x, y = images(seed=seed)
        crafted = to_numpy(attack(model, x, y, epsilon=epsilon))
        assert (sizes(crafted - x, norm) <= epsilon * (1 + 1e-5) + 2e-7).all()
        assert (crafted != x).any()
        if bounds is not None:
            assert crafted.min() >= 0 and crafted.max() <= 1

    check()
    for before, after in zip(weights, model.get_weights()):
        assert np.array_equal(before, after)


def exact_radii(model, x, y, norm):
    """How much it takes to mislead a linear classifier, by a formula: no attack does with less."""
    kernel, bias = (to_numpy(each).astype("float64") for each in model.layers[-1].weights)
    logits = x.reshape(len(x), -1) @ kernel + bias
    radii = np.full(len(x), np.inf)
    for j in range(kernel.shape[1]):
        rival = kernel[:, y] - kernel[:, [j]]
        dual = abs(rival).sum(axis=0) if norm == "inf" else np.linalg.norm(rival, axis=0)
        margin = logits[np.arange(len(x)), y] - logits[:, j]
        radii = np.where(y == j, radii, np.minimum(radii, margin / np.maximum(dual, 1e-9)))
    return radii


@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize("name", ["pgd", "apgd-targets", "suite"])
def test_linear_models_are_broken_as_far_as_they_can_be(name, norm):
    model, (x, _) = image_model(), images(64)
    y = decided_as(model, x)
    radii = exact_radii(model, x, y, norm)
    epsilon = float(np.median(radii))
    targeted = A.APGD(norm=norm, steps=30, loss="dlr", targets=CLASSES - 1)
    attack = {**all_attacks(norm=norm, bounds=None), "apgd-targets": targeted}[name]
    result = kp.robust_accuracy(model, x, y, epsilon=epsilon, attack=attack)
    broken = result.details.broken_by[0] >= 0
    assert not broken[radii > 1.001 * epsilon].any()
    if name == "apgd-targets":
        assert broken[radii < 0.98 * epsilon].all()
    assert broken.sum() > 3


def test_a_rounded_image_is_broken_without_gradients():
    model, (x, _) = image_model(L.Lambda(lambda x: ops.round(4 * x) / 4)), images(48)
    y = decided_as(model, x)
    attack = A.standard(steps=10, targets=2, queries=300, classes=CLASSES)
    result = kp.robust_accuracy(model, x, y, epsilon=0.2, attack=attack)
    assert (result.details.broken_by == 2).sum() >= 3
    assert any("masks its gradients" in each for each in result.warnings)
    assert any("gradient is zero" in each or "no gradient" in each for each in result.warnings)
    assert "Note:" in str(result)


def test_each_attack_runs_on_what_others_left_and_details_agree():
    model, (x, _) = image_model(L.Conv2D(3, 3, activation="relu")), images(70)
    y = decided_as(model, x)
    y[:5] = (y[:5] + 1) % CLASSES
    weak, strong = kp.FGSM(bounds=(0, 1)), A.APGD(steps=20, bounds=(0, 1))
    options = {"epsilon": (0.2, 0.02, 0.08), "batch_size": 16}
    result = kp.robust_accuracy(
        model, x, y, attack=A.Ensemble([weak, strong]), keep_inputs=9, **options
    )
    details = result.details
    assert np.array_equal(details.decisions[0], decided_as(model, x))
    right = details.decisions == details.labels
    assert result.clean == right[0].mean() and result.accuracies == tuple(right[1:].mean(axis=1))
    assert not (details.broken_by[:, :5] >= 0).any()
    assert ((details.broken_by >= 0) == (right[0] & ~right[1:])).all()
    # What fell at a small level has fallen at the larger ones.
    assert (right[1] <= right[3]).all() and (right[3] <= right[2]).all()
    for each in (weak, strong):
        alone = kp.robust_accuracy(model, x, y, attack=each, **options)
        assert all(a <= b for a, b in zip(result.accuracies, alone.accuracies))
    assert len(details.kept) == len(details.inputs) == 9
    assert (details.broken_by[:, details.kept] >= 0).any(axis=0).all()
    worst = details.decisions[1 + details.kept_levels, details.kept]
    assert np.array_equal(decided_as(model, details.inputs), worst)
    epsilons = np.array(options["epsilon"])[details.kept_levels]
    assert (sizes(details.inputs - x[details.kept], "inf") <= epsilons * (1 + 1e-5)).all()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Timid(kp.FGSM):
    """An attack that does nothing if it may do much."""

    searches = True

    def perturbation(self, problem):
        size = ops.where(problem.epsilon < 0.05, problem.epsilon, 0.0)
        return problem.limit(size * problem.ascend())


def test_what_is_broken_at_one_level_is_broken_at_larger_ones():
    model, (x, _) = image_model(), images(40)
    y = decided_as(model, x)
    result = kp.robust_accuracy(model, x, y, epsilon=(0.2, 0.04), attack=Timid())
    assert result.accuracies[0] == result.accuracies[1] < 1


def test_data_sets_give_the_table_of_arrays(monkeypatch):
    model, (x, _) = image_model(), images(50)
    y = decided_as(model, x)
    attack = A.quick(steps=5, targets=2, queries=20, classes=CLASSES)
    batches = [(x[at : at + 10], y[at : at + 10]) for at in range(0, 50, 10)]
    options = {"epsilon": (0.02, 0.05), "attack": attack}
    whole = kp.robust_accuracy(model, x, y, batch_size=10, **options)
    assert kp.robust_accuracy(model, batches, **options).details.broken_by.tolist() == (
        whole.details.broken_by.tolist()
    )
    # In parts that are joined in the end.
    monkeypatch.setattr("keras_parseval.analysis._evaluation._BATCHES", 2)
    parted = kp.robust_accuracy(model, x, y, batch_size=10, keep_inputs=4, **options)
    assert parted.details.labels.tolist() == y.tolist()
    assert abs(np.subtract(parted.accuracies, whole.accuracies)).max() <= 0.06
    worst = parted.details.decisions[1 + parted.details.kept_levels, parted.details.kept]
    assert np.array_equal(decided_as(model, parted.details.inputs), worst)


@pytest.mark.skipif(BACKEND == "torch", reason="nothing is compiled there")
def test_nothing_is_compiled_anew_from_batch_to_batch():
    traced = []

    def count(x):
        traced.append(x.shape)
        return x

    model, (x, _) = image_model(L.Lambda(count)), images(60)
    y = decided_as(model, x)
    attack = A.quick(steps=3, targets=2, queries=260, classes=CLASSES)
    options = {"attack": attack, "batch_size": 16, "verbose": 0}
    kp.robust_accuracy(model, x[:16], y[:16], epsilon=0.01, **options)
    first = len(traced)
    kp.robust_accuracy(model, x, y, epsilon=(0.001, 0.02, 0.04), **options)
    assert len(traced) == first


@pytest.mark.skipif(BACKEND == "torch", reason="nothing is filled up there")
def test_an_attack_of_few_examples_has_a_small_pack():
    traced = []

    def count(x):
        traced.append(x.shape[0])
        return x

    model, (x, _) = image_model(L.Lambda(count)), images(64)
    y = decided_as(model, x)
    options = {"batch_size": 64, "verbose": 0}
    epsilons = np.linspace(0.001, 0.1, 100)
    accuracies = kp.robust_accuracy(model, x, y, epsilon=epsilons, **options).accuracies
    epsilon = epsilons[np.searchsorted(-np.array(accuracies), -8 / 64)]
    traced.clear()
    attack = A.Ensemble([A.APGD(steps=5), A.Square(queries=20)])
    result = kp.robust_accuracy(model, x, y, epsilon=epsilon, attack=attack, **options)
    assert 0 < (result.details.broken_by != 0).sum() <= 8
    assert set(traced) == {64, 8}


def test_a_pack_grows_where_a_later_part_has_more_left():
    from keras_parseval.attacks._search import Search

    search = Search(None, A.APGD(), 128, "epsilon", [0.1])
    found = types.SimpleNamespace(pack_sizes=np.zeros(1, "int32"))
    sizes = [search._fit_packs(found, 0, count) for count in (3, 16, 17, 40, 200, 500)]
    wanted = [8, 8, 24, 24, 104, 104] if BACKEND != "torch" else [8, 16, 24, 40, 104, 128]
    assert sizes == wanted


class Killed(BaseException):
    """What ends a run from outside."""


def evaluate_in_parts(model, x, y, backup, **options):
    attack = A.quick(steps=3, targets=2, queries=25, classes=CLASSES)
    options = {"epsilon": (0.01, 0.04), "batch_size": 8, "keep_inputs": 5, **options}
    return kp.robust_accuracy(model, x, y, attack=attack, backup=backup, verbose=0, **options)


@pytest.mark.parametrize("kill_after", [1, 20])
def test_an_evaluation_that_was_killed_goes_on(kill_after, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_parseval.analysis._evaluation._BATCHES", 2)
    monkeypatch.setattr(A.Square, "queries_at_a_time", 10)
    model, (x, _) = image_model(), images(40)
    y = decided_as(model, x)
    whole, path = evaluate_in_parts(model, x, y, None), tmp_path / "backup.npz"
    replace, saves = os.replace, []

    def replace_or_die(*arguments):
        replace(*arguments)
        saves.append(arguments)
        if len(saves) == kill_after:
            raise Killed

    monkeypatch.setattr("os.replace", replace_or_die)
    with pytest.raises(Killed):
        evaluate_in_parts(model, x, y, path)
    assert path.exists()
    with pytest.raises(ValueError, match="another evaluation"):
        evaluate_in_parts(model, x, y, path, epsilon=0.02)
    with pytest.raises(ValueError, match="other data"):
        evaluate_in_parts(model, x / 2, y, path)
    resumed = evaluate_in_parts(model, x, y, path)
    assert not path.exists()
    assert str(resumed) == str(whole)
    for name in ("decisions", "broken_by", "kept", "kept_levels", "inputs"):
        one, other = getattr(resumed.details, name), getattr(whole.details, name)
        assert np.array_equal(one, other), name
    passes = 2 * (1 + 2 + 3)
    # Each of three parts is saved after each pass, and when it is done.
    assert len(saves) <= 3 * (passes + 1) + 1


def test_a_backup_must_be_one(tmp_path):
    model, (x, y) = image_model(), images()
    path = tmp_path / "notes.txt"
    path.write_text("not ours")
    with pytest.raises(ValueError, match="cannot be read"):
        evaluate_in_parts(model, x, y, path)
    assert path.read_text() == "not ours"


def test_certificates_are_compared_with_attacks():
    model, (x, _) = image_model(), images(32)
    y = decided_as(model, x)
    radii = kp.certified_radius(model, x, y, norm=2)
    attack = A.APGD(norm=2, steps=20)
    options = {"epsilon": np.quantile(radii, (0.2, 0.5, 0.9)).tolist(), "attack": attack}
    assert kp.robust_accuracy(model, x, y, radii=radii, **options).accuracies[-1] < 0.5
    with pytest.raises(RuntimeError, match=r"certified radius.*the first with number \d+"):
        kp.robust_accuracy(model, x, y, radii=2 * radii, **options)
    with pytest.raises(ValueError, match="one number for each of the 32"):
        kp.robust_accuracy(model, x, y, radii=radii[:3], **options)


def test_examples_without_a_gradient_are_told():
    # Half of the images are so dark that nothing is seen of them.
    model, (x, y) = image_model(L.Lambda(lambda x: ops.relu(x - 0.5))), images(20)
    x[:8] *= 0.1
    result = kp.robust_accuracy(model, x, y, epsilon=(0.01, 0.02))
    assert any("zero on 8 of 20 examples" in each for each in result.warnings)
    result = kp.robust_accuracy(model, x, y, epsilon=0.01, attack=A.APGD(steps=3))
    assert any("zero on 8 of 20 examples" in each for each in result.warnings)


def test_an_epsilon_as_large_as_the_bounds_is_told():
    model, (x, y) = image_model(), images()
    for norm, small, large in (("inf", 0.9, 1.0), (2, 5.9, 6.0)):
        attack = kp.FGSM(norm=norm, bounds=(0, 1))
        assert kp.robust_accuracy(model, x, y, epsilon=small, attack=attack).warnings == ()
        (warning,) = kp.robust_accuracy(model, x, y, epsilon=large, attack=attack).warnings
        assert "any input within the bounds" in warning


def test_one_step_beside_many_is_told():
    keras.utils.set_random_seed(0)
    # Steep ridges: one step crosses many of them.
    ridges = L.Lambda(lambda x: ops.sin(100.0 * x))
    model, (x, _) = image_model(ridges, L.Conv2D(8, 3, activation="tanh")), images(48)
    y = decided_as(model, x)
    attack = A.Ensemble([kp.FGSM(), A.APGD(steps=30)])
    result = kp.robust_accuracy(model, x, y, epsilon=0.05, attack=attack)
    assert (result.details.broken_by == 1).sum() > 3
    assert any("its figure alone would mislead" in each for each in result.warnings)


def test_a_warning_counts_what_falls_at_one_level():
    from keras_parseval.analysis._attack_warnings import attack_warnings
    from keras_parseval.attacks._findings import Findings

    # At each of ten levels one more of 100 examples falls, to the second attack.
    levels, count = 10, 100
    broken = np.where(np.arange(count) <= np.arange(levels)[:, None], 1, -1)
    right = np.ones((levels + 1, count))
    options = {"labels": right[0], "decisions": right, "right": right, "broken_in": broken}
    epsilons = np.arange(1, levels + 1)[:, None] * np.full(count, 0.1)
    flat, none = np.zeros(count, bool), np.zeros(0, "int64")
    found = {"flat": flat, "kept": none, "inputs": none, "epsilons": epsilons, **options}
    attack = A.Ensemble([kp.FGSM(), A.APGD(restarts=2)])
    assert attack_warnings(attack, Findings(broken_by=broken, **found), 64) == ()
    # All of them at the largest level.
    at_once = np.where(np.arange(levels)[:, None] < levels - 1, -1, broken[-1])
    warnings = attack_warnings(attack, Findings(broken_by=at_once, **found), 64)
    assert len(warnings) == 2 and all("10 of 100" in each for each in warnings)


def test_models_with_other_outputs():
    x, y = images(20)
    binary = image_model(classes=3, encoding="binary")
    several = (binary.predict(x, verbose=0) > 0).astype("int32")
    suite = A.standard(steps=5, queries=20, classes=2)
    assert len(suite.members()) == 2
    result = kp.robust_accuracy(binary, x, several, epsilon=(0.01, 0.5), attack=suite)
    assert result.clean == 1 and result.accuracies[0] > result.accuracies[1]
    three = image_model(classes=3)
    suite = A.standard(steps=5, queries=20, classes=3)
    result = kp.robust_accuracy(three, x, y % 3, epsilon=0.5, attack=suite)
    assert result.accuracies[0] < result.clean
    # A decision for each step of a sequence: the accuracy is that of all decisions.
    steps = keras.Sequential([keras.Input((4, FEATURES)), L.Dense(3)])
    steps.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = points(40)
    x, y = x.reshape(10, 4, FEATURES), y.reshape(10, 4)
    suite = A.standard(bounds=None, steps=5, targets=2, queries=0, classes=3)
    result = kp.robust_accuracy(steps, x, y, epsilon=5.0, attack=suite)
    assert result.details.decisions.shape == (2, 10, 4)
    assert result.accuracies[0] < result.clean


def test_masks_and_several_inputs():
    inputs = {"a": keras.Input((SIDE, SIDE, 1), name="a"), "b": keras.Input((3,), name="b")}
    joined = L.Concatenate()([L.Flatten()(inputs["a"]), inputs["b"]])
    model = keras.Model(inputs, L.Dense(CLASSES)(joined))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = images()
    x = {"a": x, "b": np.ones((len(y), 3), "float32")}
    mask = np.zeros((SIDE, SIDE, 1), "float32")
    mask[:2] = 1
    options = {"mask": mask, "perturb": "a", "bounds": (0, 1)}
    attack = A.quick(steps=4, targets=2, queries=20, classes=CLASSES, **options)
    crafted = {name: to_numpy(each) for name, each in attack(model, x, y, epsilon=0.3).items()}
    assert np.array_equal(crafted["b"], x["b"])
    change = abs(crafted["a"] - x["a"]).max(axis=(0, 3))
    assert (change[:2] > 0.2).any() and (change[2:] == 0).all()
    result = kp.robust_accuracy(model, x, y, epsilon=0.3, attack=attack, keep_inputs=2)
    assert result.details.inputs.shape[1:] == (SIDE, SIDE, 1)
    several = A.APGD(mask=np.ones((len(y), SIDE, SIDE, 1)), perturb="a")
    with pytest.raises(ValueError, match="must be the same for all examples"):
        kp.robust_accuracy(model, x, y, epsilon=0.3, attack=several)


def test_inside_training():
    model, (x, y) = image_model(), images(32)
    callbacks = [
        kp.AdversarialTraining(A.PGD(steps=3, labels="true"), epsilon=0.1, ratio=1.0),
        kp.AdversarialEvaluation(x, y, epsilon=0.1, attack=A.quick(steps=3, queries=10)),
    ]
    history = model.fit(x, y, batch_size=16, epochs=2, callbacks=callbacks, verbose=0).history
    assert len(history["val_adv_accuracy_eps0.1"]) == 2


def test_the_windows_of_auto_pgd_are_those_of_the_paper():
    from keras_parseval.attacks._apgd import _windows

    # 0.22 N first, then each 0.03 N shorter, down to 0.06 N.
    assert _windows(100).tolist() == [22, 19, 16, 13, 10, 7, 6, 6, 1]
    assert _windows(1).tolist() == [1]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: A.APGD(loss="mse"), r"`loss` must be .*Received: loss='mse'"),
        (lambda: A.APGD(labels="least_likely"), "`labels` must be"),
        (lambda: A.APGD(targets=0), "`targets` must be None or a positive integer"),
        (lambda: A.APGD(steps=0), "`steps` must be"),
        (lambda: A.APGD(restarts=0), "`restarts` must be"),
        (lambda: A.Square(queries=0), "`queries` must be"),
        (lambda: A.Square(share=1.5), "`share` must be"),
        (lambda: A.Ensemble([]), "must be given a list of attacks"),
        (lambda: A.Ensemble(kp.FGSM()), "must be given a list of attacks"),
        (lambda: A.Ensemble(["fgsm"]), "must consist of attacks"),
        (lambda: A.Ensemble([kp.FGSM(), kp.FGSM(norm=2)]), "must agree in `norm`"),
        (lambda: A.Ensemble([kp.FGSM(bounds=(0, 1)), kp.FGSM()]), "must agree in `bounds`"),
        (lambda: A.Ensemble([kp.FGSM(labels="least_likely")]), "the worst case is one for"),
        (lambda: A.Ensemble([kp.FGSM()], epsilon=0.1), "only when it is called"),
        (lambda: A.standard(classes=1), "`classes` must be"),
        (lambda: A.standard(queries=-1), "`queries` must be"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=f"(?i){message}"):
        make()


def test_what_is_not_defined_is_refused_with_the_remedy():
    model, (x, y) = linear_model(), points()
    with pytest.raises(ValueError, match=r"for images.*standard\(queries=0\)"):
        A.Square()(model, x, y, epsilon=0.1)
    with pytest.raises(ValueError, match=r"for images.*standard\(queries=0\)"):
        kp.robust_accuracy(model, x, y, epsilon=0.1, attack=A.standard())
    with pytest.raises(ValueError, match='4 classes or more; use `loss="ce"`'):
        kp.robust_accuracy(model, x, y, epsilon=0.1, attack=A.APGD(loss="dlr", targets=2))
    binary = linear_model(units=1, loss=keras.losses.BinaryCrossentropy(from_logits=True))
    for attack in (A.APGD(loss="dlr"), A.APGD(targets=3)):
        with pytest.raises(ValueError, match="no third class"):
            attack(binary, x, y % 2, epsilon=0.1)
    with pytest.raises(ValueError, match="keep_inputs"):
        kp.robust_accuracy(model, x, y, epsilon=0.1, keep_inputs=-1)

    def mean_loss(labels, outputs):
        return ops.mean(ops.square(outputs))

    with pytest.raises(ValueError, match="a loss for each example"):
        A.APGD(loss=mean_loss)(model, x, y, epsilon=0.1)
