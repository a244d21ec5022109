"""The default constraint holds its frames, whatever the optimizer."""

import keras
import pytest
from default_strength import NETWORKS, OPTIMIZERS, digits, measure, train

import keras_parseval as kp

# `python tests/default_strength.py` trains for longer, and compares accuracies.
pytestmark = pytest.mark.once


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_singular_values_and_coefficients_stay_where_they_belong(network, optimizer):
    features = NETWORKS[network](kp.tight_frame())
    train(features, OPTIMIZERS[optimizer](), digits()[0], epochs=1)
    smallest, largest, coefficient = measure(features)
    assert 0.95 <= smallest <= largest <= 1.05
    assert coefficient >= 1 - 1e-5


def test_a_gentle_step_does_not_hold_them():
    features = NETWORKS["dense"](kp.tight_frame(beta=0.1))
    train(features, keras.optimizers.SGD(0.1, momentum=0.9), digits()[0], epochs=1)
    assert measure(features)[1] > 1.05
