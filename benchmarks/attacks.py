"""The suite of attacks, against that of torchattacks: same network, images, levels and steps.

On the PyTorch backend both attack the same Keras model. On the others, torchattacks is given a copy
of it in PyTorch.
"""

import dataclasses
import time

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import peers
from benchmarks.robust_accuracy import trained_convnet
from benchmarks.timing import interleave, ratios

EPSILONS = (0.005, 0.01)


@dataclasses.dataclass
class Attacks:
    """The benchmark of one attack.

    Args:
        name: `"APGD-CE"`, or `"suite"`: the same, nine targets and random search.
        images: How many are attacked, all at once.
        steps: Of each gradient attack.
        queries: Of random search.
        rounds: How often all are timed.
    """

    name: str
    images: int
    steps: int
    rounds: int
    queries: int = 0

    @property
    def title(self):
        queries = f", {self.queries} queries" if self.queries else ""
        return (
            f"{self.name}, {self.steps} steps{queries}, at {len(EPSILONS)} levels on "
            f"{self.images} images, of a small convnet"
        )

    def run(self):
        model, x, y = trained_convnet()
        x, y = x[: self.images], y[: self.images]
        contestants = {"keras_parseval": lambda: self._ours(model, x, y)}
        if peers.runs("torchattacks", lambda: self._theirs(network_for_peers(model), x[:2], y[:2])):
            network = network_for_peers(model)
            theirs = {"torchattacks": lambda: self._theirs(network, x, y)}
            contestants = {**theirs, **contestants}
        first, accuracies = {}, {}

        def remembered(name, run):
            def call():
                start = time.perf_counter()
                accuracies[name] = run()
                first.setdefault(name, time.perf_counter() - start)

            return call

        timed = {name: remembered(name, run) for name, run in contestants.items()}
        rows = ratios(interleave(timed, self.rounds), next(iter(timed)))
        for row in rows:
            name = row["contestant"]
            row["first call, ms"] = round(1000 * first[name], 2)
            row["accuracies"] = " ".join(f"{100 * each:.1f}" for each in accuracies[name])
        return rows

    def _ours(self, model, x, y):
        attack = kp.attacks.APGD(steps=self.steps, bounds=(0, 1))
        if self.queries:
            attack = kp.attacks.standard(steps=self.steps, queries=self.queries)
        result = kp.robust_accuracy(
            model, x, y, epsilon=EPSILONS, attack=attack, batch_size=len(x), verbose=0
        )
        return result.accuracies

    def _theirs(self, network, x, y):
        import torch
        import torchattacks

        # As a user would: it has no levels, so each is attacked anew.
        images = torch.tensor(x).permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor(y).long()
        accuracies = []
        for epsilon in EPSILONS:
            options = {"eps": epsilon, "norm": "Linf", "seed": 0}
            attack = torchattacks.APGD(network, steps=self.steps, **options)
            if self.queries:
                targeted = torchattacks.APGDT(network, steps=self.steps, **options)
                search = torchattacks.Square(network, n_queries=self.queries, **options)
                attack = torchattacks.MultiAttack([attack, targeted, search])
            with torch.no_grad():
                decided = network(attack(images, labels)).argmax(dim=1)
            accuracies.append((decided == labels).float().mean().item())
        return accuracies


def network_for_peers(model):
    """The Keras model as a module of PyTorch that takes images with the channels first."""
    import torch

    if keras.backend.backend() != "torch":
        return copy_in_torch(model)

    class ChannelsFirst(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(images.permute(0, 2, 3, 1), training=False)

    return ChannelsFirst().eval()


def copy_in_torch(model):
    """The small convnet with the same weights, in layers of PyTorch."""
    from torch import nn, tensor

    class ChannelsLast(nn.Module):
        """Flattening takes the features in Keras's order."""

        def forward(self, images):
            return images.permute(0, 2, 3, 1)

    weights = [np.array(each) for each in model.get_weights()]
    network = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(ChannelsLast(), nn.Flatten(), nn.Linear(6 * 6 * 64, 10)),
    )
    for parameter, value in zip(network.parameters(), weights):
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
        parameter.data = tensor(value.transpose(axes).copy())
    return network.eval()


BENCHMARKS = {
    "attacks_apgd": Attacks("APGD-CE", images=64, steps=100, rounds=3),
    "attacks_suite": Attacks("suite", images=32, steps=20, queries=250, rounds=3),
}
