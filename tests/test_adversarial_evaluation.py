import csv

import keras
import numpy as np
import pytest
from classifiers import linear_model, points
from conftest import BACKEND
from test_attacks import BAD_MODELS

import keras_parseval as kp

KEYS = [f"val_adv_accuracy_snr{level}" for level in (50, 45, 40, 33)]


def test_the_logs_are_what_robust_accuracy_says():
    model, data = linear_model(), points()
    evaluation = kp.AdversarialEvaluation(*data)
    history = model.fit(*data, verbose=0, epochs=2, callbacks=[evaluation]).history
    result = kp.robust_accuracy(model, *data)
    assert list(history) == ["loss", *KEYS]
    assert [history[key][-1] for key in KEYS] == list(result.accuracies)


def test_data_sets():
    (x, y), model = points(), linear_model()

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return x[20 * index :][:20], y[20 * index :][:20]

    evaluations = [
        kp.AdversarialEvaluation(Batches(), prefix="data_set_"),
        kp.AdversarialEvaluation((x, y), prefix="arrays_"),
    ]
    history = model.fit(x, y, verbose=0, epochs=2, callbacks=evaluations).history
    for level in (50, 45, 40, 33):
        values = [history[f"{kind}_accuracy_snr{level}"] for kind in ("data_set", "arrays")]
        assert values[0] == values[1]


def test_levels_attacks_and_names_of_ones_own():
    model, data = linear_model(), points()
    attack = kp.IteratedFGSM(steps=5, norm=2)
    evaluation = kp.AdversarialEvaluation(data, epsilon=(0.1, 2), attack=attack, prefix="pgd_")
    history = model.fit(*data, verbose=0, callbacks=[evaluation]).history
    assert list(history) == ["loss", "pgd_accuracy_eps0.1", "pgd_accuracy_eps2"]
    assert history["pgd_accuracy_eps2"] <= history["pgd_accuracy_eps0.1"]


def test_other_callbacks_decide_by_it(tmp_path):
    """EarlyStopping, ModelCheckpoint, CSVLogger and TensorBoard, in a real fit."""
    key, data = "val_adv_accuracy_snr20", points(60)
    model = linear_model()
    callbacks = [
        kp.AdversarialEvaluation(data, snr=20),
        keras.callbacks.EarlyStopping(key, mode="max", patience=2),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor=key, mode="max", save_best_only=True
        ),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    if BACKEND == "tensorflow":
        callbacks.append(keras.callbacks.TensorBoard(tmp_path / "board"))
    history = model.fit(*data, verbose=0, epochs=80, callbacks=callbacks).history
    values = history[key]
    assert len(values) < 80  # stopped early: two epochs that were not the best
    assert max(values) == values[-3] or max(values) > values[-1]
    best = keras.models.load_model(tmp_path / "best.keras")
    assert kp.robust_accuracy(best, *data, snr=20).accuracies[0] == max(values)
    with open(tmp_path / "log.csv") as file:
        logged = [float(row[key]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(logged, values)
    if BACKEND == "tensorflow":
        np.testing.assert_allclose(
            tensorboard_values(tmp_path / "board", "adv_accuracy_snr20"), values
        )


def tensorboard_values(folder, key):
    import tensorflow as tf

    values = []
    for path in sorted(folder.rglob("events.out.tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.endswith(key):
                    values.append(float(tf.make_ndarray(value.tensor)))
    return values


def test_skipped_epochs_break_nothing(tmp_path):
    key, data = "val_adv_accuracy_snr20", points(60)
    callbacks = [
        kp.AdversarialEvaluation(data, snr=20, every=3),
        keras.callbacks.EarlyStopping(key, mode="max", patience=3),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor=key, mode="max", save_best_only=True
        ),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    model = linear_model()
    history = model.fit(*data, verbose=0, epochs=8, callbacks=callbacks).history
    measured = [epoch % 3 == 0 for epoch in range(8)]
    np.testing.assert_array_equal(~np.isnan(history[key]), measured)
    with open(tmp_path / "log.csv") as file:
        logged = [float(row[key]) for row in csv.DictReader(file)]
    np.testing.assert_array_equal(logged, history[key])
    best = keras.models.load_model(tmp_path / "best.keras")
    assert kp.robust_accuracy(best, *data, snr=20).accuracies[0] == np.nanmax(history[key])


@pytest.mark.parametrize(
    "data, error, message",
    [
        ((points()[0].astype("uint8"), points()[1]), TypeError, "floating-point"),
        ((points()[0][:0], points()[1][:0]), ValueError, "an empty data set"),
        ((points()[0], points()[1] + 7), ValueError, "the numbers of classes"),
    ],
)
def test_bad_data_is_refused_before_the_training(data, error, message):
    evaluation = kp.AdversarialEvaluation(data)
    evaluation.set_model(linear_model())
    with pytest.raises(error, match=message):
        evaluation.on_train_begin()


@pytest.mark.parametrize(
    "data, error, message",
    [
        (None, TypeError, "x=None"),
        ((1, 2, 3), TypeError, "a tuple of 3"),
        (iter([points()]), TypeError, "more than once"),
        ((points()[0], None), ValueError, "Labels are needed"),
    ],
    ids=["none", "three", "iterator", "no labels"],
)
def test_data_that_cannot_be_used_is_refused_at_once(data, error, message):
    with pytest.raises(error, match=message):
        kp.AdversarialEvaluation(data)


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models_are_refused_before_they_are_trained(name):
    make, message = BAD_MODELS[name]
    evaluation = kp.AdversarialEvaluation(points())
    evaluation.set_model(make())
    with pytest.raises(ValueError, match=message):
        evaluation.on_train_begin()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"snr": 40, "epsilon": 1}, ValueError, "not as both"),
        ({"snr": "loud"}, TypeError, "`snr` must be"),
        ({"every": 0}, ValueError, "`every` must be"),
        ({"prefix": None}, TypeError, "`prefix` must be"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be"),
        ({"attack": kp.FGSM}, TypeError, "`attack` must be"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        kp.AdversarialEvaluation(points(), **arguments)
