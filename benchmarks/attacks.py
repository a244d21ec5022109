"""The suite of attacks, against that of torchattacks: same network, images, levels and steps.

Both attack the same Keras model. On the other backends, torchattacks does so in a process of its
own, where Keras has the PyTorch backend; and here it is given a copy in PyTorch's own layers.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os
import time

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks, peers
from benchmarks.robust_accuracy import trained_convnet
from benchmarks.timing import Seconds, interleave, ratios

PEER = "torchattacks"
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
        network = network_for_peers(model)
        if peers.runs("torchattacks", lambda: self.theirs(network, x[:2], y[:2])):
            theirs = {PEER: lambda: self.theirs(network, x, y)}
            if keras.backend.backend() != "torch":
                call = functools.partial(in_worker, worker(), self, model.get_weights(), x, y)
                theirs = {PEER: call, f"{PEER}, PyTorch's layers": theirs[PEER]}
            contestants = {**theirs, **contestants}
        first, accuracies = {}, {}

        def remembered(name, run):
            def call():
                start = time.perf_counter()
                found = run()
                first.setdefault(name, time.perf_counter() - start)
                accuracies[name], seconds = found if isinstance(found, tuple) else (found, None)
                return seconds

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
        return list(result.accuracies)

    def theirs(self, network, x, y):
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


def worker():
    """A process in which Keras has the PyTorch backend."""
    here, os.environ["KERAS_BACKEND"] = os.environ["KERAS_BACKEND"], "torch"
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(1, context)
    pool.submit(int).result()
    os.environ["KERAS_BACKEND"] = here
    return pool


def in_worker(pool, benchmark, weights, x, y):
    """What torchattacks finds there, and how long it takes."""
    return pool.submit(attack_same_model, benchmark, weights, x, y).result()


def attack_same_model(benchmark, weights, x, y):
    model = networks.compiled(networks.small_convnet())
    model.set_weights(weights)
    network = network_for_peers(model)
    start = time.process_time(), time.perf_counter()
    accuracies = benchmark.theirs(network, x, y)
    end = time.process_time(), time.perf_counter()
    return accuracies, Seconds(end[0] - start[0], end[1] - start[1])


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
    "attacks_queries": Attacks("suite", images=16, steps=20, queries=2000, rounds=2),
}
