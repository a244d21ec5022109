"""The attacks of the suite are as strong as those of other libraries, on the same network.

For the long run, with a table, on the PyTorch backend:

    KERAS_PARSEVAL_ATTACKED=599 python -m pytest -n 0 -s tests/test_attack_peers.py
"""

import os
import time

import keras
import numpy as np
import pytest
from conftest import BACKEND
from digit_models import convnet, digits, train

import keras_parseval as kp

pytestmark = pytest.mark.skipif(BACKEND != "torch", reason="the peers have PyTorch alone")
EXAMPLES = int(os.environ.get("KERAS_PARSEVAL_ATTACKED", 60))
LONG = EXAMPLES > 500
STEPS, QUERIES, SUITE_QUERIES = (100, 1000, 5000) if LONG else (10, 100, 100)
SEEDS = range(3) if LONG else range(1)
# In points: for a few examples, two of them, and three for random search.
ALLOWED, ALLOWED_AT_RANDOM = (0.6, 2.0) if LONG else (200 / EXAMPLES, 300 / EXAMPLES)
LEVELS = {"inf": (0.04, 0.08, 0.12), 2: (0.3, 0.6, 0.9)}
NAMES = {"inf": "Linf", 2: "L2"}


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(0)
    _, x, _, y = digits()
    return train(convnet()), x[:EXAMPLES], y[:EXAMPLES]


class Peer:
    """The network and the data as PyTorch's libraries want them, with the channels first."""

    def __init__(self, model, x, y):
        import torch

        class ChannelsFirst(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, images):
                return self.model(torch.permute(images, (0, 2, 3, 1)), training=False)

        self.network = ChannelsFirst().eval()
        self.x = torch.permute(torch.tensor(x), (0, 3, 1, 2)).contiguous()
        self.y = torch.tensor(y).long()

    def accuracy(self, attack):
        """In percent, after an attack on all images at once."""
        import torch

        with torch.no_grad():
            crafted = attack(self.x, self.y)
            right = self.network(torch.as_tensor(crafted)).argmax(dim=1) == self.y
        return 100 * right.float().mean().item()


def torchattacks_apgd(peer, **options):
    torchattacks = pytest.importorskip("torchattacks")
    return torchattacks.APGD(peer.network, steps=STEPS, loss="ce", **options)


def torchattacks_targeted(peer, **options):
    torchattacks = pytest.importorskip("torchattacks")
    return torchattacks.APGDT(peer.network, steps=STEPS, n_classes=10, **options)


def torchattacks_square(peer, **options):
    torchattacks = pytest.importorskip("torchattacks")
    return torchattacks.Square(peer.network, n_queries=QUERIES, **options)


def torchattacks_suite(peer, **options):
    torchattacks = pytest.importorskip("torchattacks")
    return torchattacks.AutoAttack(peer.network, n_classes=10, **options)


def torchattacks_long_suite(peer, **options):
    """Its AutoAttack has only 10 steps: the same parts, with as many as in the paper."""
    torchattacks = pytest.importorskip("torchattacks")
    common = {"n_classes": 10, **options}
    parts = [
        torchattacks.APGD(peer.network, steps=STEPS, **options),
        torchattacks.APGDT(peer.network, steps=STEPS, **common),
        torchattacks.FAB(peer.network, steps=STEPS, multi_targeted=True, **common),
        torchattacks.Square(peer.network, n_queries=SUITE_QUERIES, **options),
    ]
    return torchattacks.MultiAttack(parts)


def art_apgd(peer, *, norm, eps, seed):
    pytest.importorskip("art")
    import torch
    from art.attacks.evasion import AutoProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    loss, shape = torch.nn.CrossEntropyLoss(), tuple(peer.x.shape[1:])
    classifier = PyTorchClassifier(peer.network, loss, shape, 10, clip_values=(0, 1))
    attack = AutoProjectedGradientDescent(
        classifier,
        norm=2 if norm == "L2" else np.inf,
        **{"eps": eps, "eps_step": 2 * eps, "max_iter": STEPS, "nb_random_init": 1},
        **{"batch_size": EXAMPLES, "loss_type": "cross_entropy", "verbose": False},
    )

    def generate(x, y):
        np.random.seed(seed)  # noqa: NPY002 (what ART draws from)
        with torch.enable_grad():
            return attack.generate(x.numpy(), y.numpy())

    return generate


def apgd(**options):
    return kp.attacks.APGD(steps=STEPS, **options)


def targeted(**options):
    return kp.attacks.APGD(steps=STEPS, loss="dlr", targets=9, **options)


def square(**options):
    return kp.attacks.Square(queries=QUERIES, **options)


def suite(norm, **options):
    return kp.attacks.standard(norm, steps=STEPS, queries=SUITE_QUERIES, **options)


# Ours, theirs, the points allowed, and over which seeds to take the mean.
CONTESTS = {
    "APGD-CE, torchattacks": (apgd, torchattacks_apgd, ALLOWED, SEEDS),
    "APGD-CE, ART": (apgd, art_apgd, ALLOWED, SEEDS),
    "APGD-T, torchattacks": (targeted, torchattacks_targeted, ALLOWED, range(1)),
    # One seed of a random search says little: theirs alone differ by 15 points with few queries.
    "Square, torchattacks": (square, torchattacks_square, ALLOWED_AT_RANDOM, range(3)),
}
SUITES = {
    "suite, torchattacks": (suite, torchattacks_suite, ALLOWED, range(1)),
    "suite, torchattacks, as many steps": (suite, torchattacks_long_suite, ALLOWED, range(1)),
}
# Their suite has thousands of queries, whatever is asked of it.
if LONG:
    CONTESTS |= SUITES


@pytest.mark.parametrize("norm", LEVELS)
@pytest.mark.parametrize("contest", CONTESTS)
def test_no_weaker_than_a_peer(trained, contest, norm):
    (model, x, y), levels = trained, LEVELS[norm]
    make_ours, make_theirs, allowed, seeds = CONTESTS[contest]
    peer = Peer(*trained)
    ours, theirs = [], []
    start = time.perf_counter()
    for seed in seeds:
        attack = make_ours(norm=norm, bounds=(0, 1), seed=seed)
        result = kp.robust_accuracy(
            model, x, y, epsilon=levels, attack=attack, batch_size=len(x), verbose=0
        )
        ours.append([100 * accuracy for accuracy in result.accuracies])
    middle = time.perf_counter()
    for seed in seeds:
        options = {"norm": NAMES[norm], "seed": seed}
        attacks = [make_theirs(peer, eps=level, **options) for level in levels]
        theirs.append([peer.accuracy(attack) for attack in attacks])
    end = time.perf_counter()
    ours, theirs = np.mean(ours, axis=0), np.mean(theirs, axis=0)
    cells = [f"{mine:.2f} ({other:.2f})" for mine, other in zip(ours, theirs)]
    seconds = [f"{middle - start:.1f} ({end - middle:.1f})"]
    print("|", " | ".join([contest, str(norm), *cells, *seconds]), "|", flush=True)
    assert (ours <= theirs + allowed + 1e-6).all()
    # The levels are such that there is something to find, and something left.
    assert result.clean * 100 > ours[0] > ours[-1] > 0
