"""The same model and epsilon give the same examples and accuracies in other libraries."""

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKEND, to_numpy

import keras_parseval as kp

sys.path.insert(0, str(Path(__file__).parent.parent))

pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="all peers have TensorFlow")
EPSILON = 0.1


@pytest.fixture(scope="module")
def trained():
    from benchmarks.robust_accuracy import trained_convnet

    model, x, y = trained_convnet()
    return model, x[:200], y[:200]


def foolbox_examples(model, x, y):
    import tensorflow as tf

    foolbox = pytest.importorskip("foolbox")
    network = foolbox.TensorFlowModel(model, bounds=(0, 1))
    attack = foolbox.attacks.LinfFastGradientAttack()
    return attack(network, tf.constant(x), tf.constant(y), epsilons=EPSILON)[1]


def cleverhans_examples(model, x, y):
    module = pytest.importorskip("cleverhans.tf2.attacks.fast_gradient_method")
    return module.fast_gradient_method(
        model, x, EPSILON, np.inf, clip_min=0, clip_max=1, y=y, sanity_checks=False
    )


def art_examples(model, x, y):
    pytest.importorskip("art")
    from art.attacks.evasion import FastGradientMethod

    from benchmarks.robust_accuracy import art_classifier

    return FastGradientMethod(art_classifier(model, x), eps=EPSILON).generate(x, y)


@pytest.mark.parametrize("peer", [foolbox_examples, cleverhans_examples, art_examples])
def test_adversarial_examples_are_the_same(peer, trained):
    model, x, y = trained
    ours = kp.FGSM(bounds=(0, 1))(model, x, y, epsilon=EPSILON)
    np.testing.assert_allclose(to_numpy(ours), np.asarray(peer(model, x, y)), atol=1e-5)


@pytest.mark.parametrize("peer", ["foolbox", "cleverhans", "art"])
def test_accuracies_are_the_same(peer, trained):
    pytest.importorskip(peer)
    from benchmarks import robust_accuracy

    model, x, y = trained
    epsilons = [0.02, 0.1, 0.2]
    attack = kp.FGSM(bounds=(0, 1))
    ours = kp.robust_accuracy(model, x, y, epsilon=epsilons, attack=attack, verbose=0)
    assert ours.clean > ours.accuracies[-1]
    theirs = getattr(robust_accuracy, peer)(model, x, y)(epsilons)
    np.testing.assert_allclose(theirs, ours.accuracies, atol=1e-7)
