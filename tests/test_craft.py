"""Attacks inside functions that users compile themselves."""

import keras
import numpy as np
import pytest
from classifiers import linear_model, points
from conftest import BACKEND, compiled, to_numpy
from keras import ops

import keras_parseval as kp

ATTACKS = [
    kp.FGSM(bounds=(-1, 1)),
    kp.FGSM(norm=2, mask=np.array([1, 1, 0, 1, 1, 1])),
    kp.IteratedFGSM(steps=3, norm=2),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
@pytest.mark.parametrize("labelled", [True, False])
def test_compiled_code_crafts_what_a_call_does(attack, labelled):
    model, (x, y) = linear_model(), points(16)
    x, y = ops.convert_to_tensor(np.clip(x, -1, 1)), ops.convert_to_tensor(y) if labelled else None

    def craft(x, epsilon):
        return attack.craft(model, x, y, epsilon=epsilon)

    crafted = to_numpy(compiled(craft)(x, ops.convert_to_tensor(0.3)))
    np.testing.assert_allclose(crafted, to_numpy(attack(model, x, y, epsilon=0.3)), atol=1e-5)
    np.testing.assert_allclose(to_numpy(craft(x, 0.3)), crafted, atol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch runs these eagerly: all data has values")
def test_a_call_inside_compiled_code_says_what_to_call():
    model, (x, y) = linear_model(), points()
    crafting = compiled(lambda x: kp.FGSM()(model, x, y, epsilon=0.1))
    with pytest.raises(TypeError, match=r"must be called on data.*attack\.craft"):
        crafting(ops.convert_to_tensor(x))


def test_seeds_of_random_starts():
    model, (x, y) = linear_model(), points()
    attack = kp.attacks.PGD(steps=1, step_size=0.01)
    first, again, other = (
        to_numpy(attack.craft(model, ops.convert_to_tensor(x), y, epsilon=0.1, seed=seed))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_function_of_the_variables():
    model, (x, y) = linear_model(), points()
    other = [2.0 * ops.convert_to_tensor(each) for each in model.trainable_variables]

    def craft(values, x):
        with keras.StatelessScope(state_mapping=zip(model.trainable_variables, values)):
            return kp.FGSM(norm=2).craft(model, x, y, epsilon=0.1)

    crafted = to_numpy(compiled(craft)(other, ops.convert_to_tensor(x)))
    model.set_weights([to_numpy(each) for each in other])
    expected = kp.FGSM(norm=2)(model, x, y, epsilon=0.1)
    np.testing.assert_allclose(crafted, to_numpy(expected), atol=1e-5)


def test_missing_labels_and_raw_images_are_refused():
    model, (x, _) = linear_model(), points()
    with pytest.raises(ValueError, match="must be given the labels"):
        kp.FGSM(labels="true").craft(model, ops.convert_to_tensor(x), epsilon=0.1)
    with pytest.raises(TypeError, match="floating-point"):
        kp.FGSM().craft(model, ops.convert_to_tensor((x * 0).astype("uint8")), epsilon=0.1)
