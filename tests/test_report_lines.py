"""What report and logger say beside the bound: slopes, weights off their sets, floors."""

import warnings

import keras
import numpy as np
import pytest
from conftest import JIT_COMPILE
from networks import random_network

import keras_parseval as kp
from keras_parseval.analysis._steepest_slope import steepest_slope

L = keras.layers


def flat(result):
    return " ".join(str(result).split())


@pytest.mark.parametrize("norm, order", [(2, 2), ("inf", np.inf)])
def test_the_slope_of_a_linear_model_is_its_norm(norm, order, rng):
    model = keras.Sequential([keras.Input((8,)), L.Dense(5)])
    kernel = rng.normal(size=(8, 5))
    model.set_weights([kernel, rng.normal(size=5)])
    exact = np.linalg.norm(kernel.T, order)
    result = kp.lipschitz_bound(model, norm=norm, slope_at=16)
    assert exact * (1 - 1e-2) <= result.slope <= result.bound
    assert f"steepest slope found, a lower bound: {result.slope:.4g}" in flat(result)


@pytest.mark.parametrize("norm", [2, "inf"])
@pytest.mark.parametrize("blocks", [["Conv2D", "MaxMin", "ConvexAdd"], ["Dense", "max pooling"]])
def test_no_slope_exceeds_the_bound(blocks, norm, rng):
    model = random_network(blocks, "Flatten", seed=2)
    x = rng.normal(size=(6, 4, 4, 2))
    bound = kp.lipschitz_bound(model, norm=norm).bound
    # As it was found, before it is cut at the bound.
    slope = steepest_slope(model, norm, x)
    assert 0.05 * bound < slope <= bound * (1 + 1e-4)


def test_slopes_of_several_inputs_and_outputs(rng):
    first, second = keras.Input((3,), name="b"), keras.Input((4, 2), name="a")
    outputs = [L.Dense(2)(first), L.Rescaling(-3.0)(L.Flatten()(second))]
    for inputs in ([first, second], {"b": first, "a": second}):
        model = keras.Model(inputs, outputs)
        assert kp.lipschitz_bound(model, slope_at=3).slope == pytest.approx(3.0, rel=1e-2)
        x = [rng.normal(size=(2, *each.shape[1:])) for each in model.inputs]
        assert steepest_slope(model, 2, x) == pytest.approx(3.0, rel=1e-2)
    with pytest.raises(ValueError, match="1 tensors for a model of 2 inputs"):
        kp.lipschitz_bound(model, slope_at=[x[0]])


def test_slopes_are_looked_for_at_inputs_alone(rng):
    model = keras.Sequential([keras.Input((None, 2)), L.Conv1D(3, 3), L.GlobalMaxPooling1D()])
    assert kp.lipschitz_bound(model).slope is None
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises((ValueError, TypeError), match="`slope_at` must be"):
            kp.lipschitz_bound(model, slope_at=wrong)
    with pytest.raises(ValueError, match="of any size"):
        kp.lipschitz_bound(model, slope_at=4)
    result = kp.lipschitz_bound(model, slope_at=rng.normal(size=(4, 9, 2)))
    assert 0 < result.slope <= result.bound


def residual_model(floor=0.1, branches=2):
    """Dense layers that start as frames, and a convex sum of them."""
    inputs = keras.Input((8,))
    parts = [L.Dense(8, name=f"part{i}", **kp.tight_frame())(inputs) for i in range(branches)]
    outputs = L.Dense(3)(kp.ConvexAdd(floor=floor, name="sum")(parts))
    return keras.Model(inputs, outputs)


def test_weights_off_their_sets_are_named(capsys):
    model = residual_model(branches=5)
    assert kp.lipschitz_bound(model).notes == ()
    for number in range(5):
        kernel = model.get_layer(f"part{number}").kernel
        kernel.assign(kernel * (1 + 0.1 * (number + 1)))
    result = kp.lipschitz_report(model)
    (note,) = result.notes
    # The furthest first.
    assert note == (
        "Off its set: 'part4/kernel' by 0.5, 'part3/kernel' by 0.4, 'part2/kernel' by 0.3 and "
        "2 more; kp.tighten(model) brings it there."
    )
    assert note in flat(result) and "Off its set" in capsys.readouterr().out
    kp.tighten(model)
    assert kp.lipschitz_bound(model).notes == ()


@pytest.mark.parametrize("floor", [0.0, 0.1, 0.9])
def test_branches_at_their_floor_are_named(floor):
    model = residual_model(floor)
    nested = keras.Sequential([keras.Input((8,)), model])
    coefficients = model.get_layer("sum").coefficients
    coefficients.assign([floor / 2 + 0.01, 1 - floor / 2 - 0.01])
    assert kp.lipschitz_bound(model).notes == ()
    coefficients.assign([1 - floor / 2, floor / 2])
    (note,) = kp.lipschitz_bound(model).notes
    assert note == "At its floor: input 1 of 'sum'."
    assert f"input 1 of '{model.name}/sum'" in kp.lipschitz_bound(nested).notes[0]


def test_the_logger_counts_branches_at_their_floor(rng):
    model = residual_model()
    model.compile("sgd", "mse", jit_compile=JIT_COMPILE)
    x, y = rng.normal(size=(16, 8)), rng.normal(size=(16, 3))
    after = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: model.get_layer("sum").coefficients.assign(
            [0.95, 0.05] if epoch else [0.5, 0.5]
        )
    )
    model.optimizer.learning_rate = 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callbacks = [after, kp.SpectrumLogger()]
        history = model.fit(x, y, epochs=3, verbose=0, callbacks=callbacks).history
    assert history["floored_branches"] == [0, 1, 1]
    told = [str(each.message) for each in caught if "floor" in str(each.message)]
    assert len(told) == 1 and "input 1 of 'sum'" in told[0]


def test_the_logger_counts_no_floors_without_convex_sums(rng):
    model = keras.Sequential([keras.Input((8,)), L.Dense(8), L.Dense(3)])
    model.compile("sgd", "mse", jit_compile=JIT_COMPILE)
    x, y = rng.normal(size=(16, 8)), rng.normal(size=(16, 3))
    history = model.fit(x, y, verbose=0, callbacks=[kp.SpectrumLogger()]).history
    assert "spectrum_max" in history and "floored_branches" not in history
