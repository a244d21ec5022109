"""Tight convolutions on PyTorch: the layers of each library, beside its own plain network.

All networks have one shape, that of `kp.models.lipschitz_convnet` without centring. Ours is a Keras
model on the PyTorch backend, the others are modules of PyTorch with a loop by hand. Times are those
on images of 32 x 32; accuracy and singular values those of a training on the digits.
"""

import dataclasses
import sys

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks, peers
from benchmarks.convolution import constrained
from benchmarks.timing import interleave, ratios
from benchmarks.trained import digits

WIDTHS, DEPTH, UNITS = (32, 64, 128), 2, 256
SMALL, SMALL_UNITS = (16, 32), 64
BATCH, STEPS, EPOCHS, RATE = 64, 2, 20, 0.1


@dataclasses.dataclass
class TorchLayers:
    """The benchmark."""

    rounds: int
    title = f"Tight convolutions on PyTorch (batch {BATCH})"

    def run(self):
        if keras.backend.backend() != "torch":
            print("torch_layers is left out: it needs KERAS_BACKEND=torch", file=sys.stderr)
            return []
        makers = {name: make for name, make in MAKERS.items() if _runs(name, make)}
        trainings, inferences = ours_timed()
        for name, make in makers.items():
            trainings[name], inferences[name] = theirs_timed(make)
        trained, applied = (interleave(each, self.rounds) for each in (trainings, inferences))
        rows = []
        for plain, names in (("Keras, plain", [OURS]), ("PyTorch, plain", list(makers)[1:])):
            steps, calls = ({row["contestant"]: row for row in ratios(times, plain)}
                            for times in (trained, applied))  # fmt: skip
            rows += [
                {
                    "contestant": name,
                    "training step": steps[name]["ratio"],
                    "quartiles": steps[name]["quartiles"],
                    "inference": calls[name]["ratio"],
                    **(on_digits_by_keras() if name == OURS else on_digits(makers[name])),
                }
                for name in names
            ]
        return rows


OURS = "ParsevalConvolution(), at last kp.tighten"


def ours_timed():
    """`{name: a training}` and `{name: an inference}` of the Keras networks."""
    base = kp.models.lipschitz_convnet(WIDTHS, depth=DEPTH, units=UNITS, centering=False)
    names = {"Keras, plain": "plain", OURS: "ParsevalConvolution"}
    models = {name: networks.compiled(constrained(base, each)) for name, each in names.items()}
    x, y = networks.examples(base, BATCH * STEPS)
    trainings, inferences = {}, {}
    for name, model in models.items():
        trainings[name] = lambda model=model: model.fit(
            x, y, batch_size=BATCH, shuffle=False, verbose=0
        )
        inferences[name] = lambda model=model: model.predict(x, batch_size=BATCH, verbose=0)
    return trainings, inferences


def theirs_timed(make):
    """A training and an inference of a network of PyTorch's layers."""
    import torch

    network = module(make, WIDTHS, DEPTH, UNITS, (32, 32, 3))
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.uniform(size=(BATCH * STEPS, 3, 32, 32)).astype("float32"))
    y = torch.tensor(rng.integers(0, 10, size=BATCH * STEPS))
    train = trainer(network, 0.01)

    def inference():
        network.eval()
        with torch.no_grad():
            return [network(part) for part in x.split(BATCH)]

    return lambda: [train(*each) for each in zip(x.split(BATCH), y.split(BATCH))], inference


def trainer(network, rate):
    """A training step by hand."""
    import torch

    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=0.9)

    def step(x, y):
        network.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    step.optimizer = optimizer
    return step


def module(make, widths, depth, units, shape):
    """The network, its kernels made by `make(inputs, outputs, size)`; size 0 for Dense layers."""
    from torch import nn

    layers, channels, side = [], shape[-1], shape[0]
    for stage, width in enumerate(widths):
        for _ in range(depth):
            layers += [make(channels, width, 3), MaxMin()]
            channels = width
        following = [*widths, width][stage + 1]
        layers += [make(channels, following, 2), MaxMin()]
        channels, side = following, side // 2
    dense = [make(channels * side**2, units, 0), MaxMin(), make(units, 10, 0)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def MaxMin():
    """`kp.MaxMin`, channels first."""
    import torch

    class Pairs(torch.nn.Module):
        def forward(self, x):
            first, second = x[:, ::2], x[:, 1::2]
            return torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)

    return Pairs()


def _plain(inputs, outputs, size):
    from torch import nn

    if not size:
        return nn.Linear(inputs, outputs)
    return nn.Conv2d(inputs, outputs, size, 2 if size == 2 else 1, padding=size // 3)


def _orthogonal(inputs, outputs, size):
    from torch.nn.utils.parametrizations import orthogonal

    return orthogonal(_plain(inputs, outputs, size))


def _orthogonium(inputs, outputs, size):
    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
    from orthogonium.layers.linear import OrthoLinear

    if not size:
        return OrthoLinear(inputs, outputs)
    stride = 2 if size == 2 else 1
    return AdaptiveOrthoConv2d(inputs, outputs, size, stride, padding=size // 3)


def _torchlip(inputs, outputs, size):
    from deel.torchlip import SpectralConv2d, SpectralLinear

    if not size:
        return SpectralLinear(inputs, outputs)
    stride = 2 if size == 2 else 1
    return SpectralConv2d(inputs, outputs, size, stride, padding=size // 3)


MAKERS = {
    "PyTorch, plain": _plain,
    "torch.nn.utils.parametrizations.orthogonal": _orthogonal,
    "orthogonium AdaptiveOrthoConv2d": _orthogonium,
    "deel-torchlip SpectralConv2d": _torchlip,
}
_PACKAGES = {_orthogonium: "orthogonium", _torchlip: "deel.torchlip"}


def _runs(name, make):
    import torch

    network = module(make, SMALL, 1, SMALL_UNITS, (8, 8, 1))
    return peers.runs(_PACKAGES.get(make, "torch"), lambda: network(torch.zeros(2, 1, 8, 8)))


def on_digits_by_keras():
    """Accuracy and singular values of our network, trained and tightened."""
    (x, y), (x_test, y_test) = images_of_digits()
    keras.utils.set_random_seed(0)
    model = kp.models.lipschitz_convnet(
        SMALL, depth=1, units=SMALL_UNITS, input_shape=(8, 8, 1), centering=False
    )
    steps = EPOCHS * -(-len(y) // BATCH)
    networks.compiled(model, keras.optimizers.schedules.CosineDecay(RATE, steps))
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    kp.tighten(model, tolerance=1e-4)
    correct = model.predict(x_test, verbose=0).argmax(axis=-1) == y_test
    kernels = [each.kernel for each in model.layers if isinstance(each, keras.layers.Conv2D)]
    return _measures(correct, [keras.ops.convert_to_numpy(each) for each in kernels])


def on_digits(make):
    """The same of a network of PyTorch's layers."""
    import torch

    (x, y), (x_test, y_test) = images_of_digits()
    torch.manual_seed(0)
    network = module(make, SMALL, 1, SMALL_UNITS, (8, 8, 1))
    x, x_test = (torch.tensor(each).permute(0, 3, 1, 2).contiguous() for each in (x, x_test))
    y = torch.tensor(y).long()
    step = trainer(network, RATE)
    count = -(-len(y) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(step.optimizer, EPOCHS * count)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(y)).split(BATCH):
            step(x[some], y[some])
            schedule.step()
    network.eval()
    with torch.no_grad():
        correct = network(x_test).argmax(dim=1).numpy() == y_test
        weights = [each.weight for each in network if getattr(each, "kernel_size", None)]
    return _measures(correct, [each.detach().permute(2, 3, 1, 0).numpy() for each in weights])


def _measures(correct, kernels):
    """Of convolutions in the layout of Keras, the singular values as operators."""
    values = []
    for kernel in kernels:
        size, stride = kernel.shape[0], 2 if kernel.shape[0] == 2 else 1
        layer = keras.layers.Conv2D(kernel.shape[-1], size, stride, use_bias=False)
        layer.build((None, 8, 8, kernel.shape[-2]))
        layer.kernel.assign(kernel)
        values.append(kp.singular_values(layer, convolutions="operator"))
    values = np.concatenate(values)
    return {
        "accuracy": f"{100 * correct.mean():.1f}%",
        "smallest": round(float(values.min()), 3),
        "largest": round(float(values.max()), 3),
    }


def images_of_digits():
    """The digits as images."""
    return [(x.reshape(-1, 8, 8, 1), y) for x, y in digits()]


BENCHMARKS = {"torch_layers": TorchLayers(rounds=5)}
