"""What is trained, and how: one place for networks, losses, rates and their schedule."""

import dataclasses
import functools
from collections.abc import Callable

import keras

import keras_parseval as kp

from . import networks
from .muon import Muon


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of network, and the way to train it that suits it.

    Args:
        builder: A builder of `kp.models`.
        arguments: Its arguments.
        change: Called on the model for the one that is trained.
        tight: Whether the kernels are constrained by this library.
        margin: That of `kp.losses.MarginCrossentropy`, unless a run says otherwise.
        temperature: The same; with 1, and no margin, it is the plain cross-entropy.
        weight_decay: That of the optimizer, the same.
        adversarial: Whether every image is replaced by an adversarial one.
    """

    builder: str = "lipschitz_convnet"
    arguments: dict = dataclasses.field(default_factory=dict)
    change: Callable = lambda model: model
    tight: bool = True
    margin: float = 0.7
    temperature: float = 0.25
    weight_decay: float = 0.0
    adversarial: bool = False


_KERNEL = {"convolutions": "kernel"}
_RESIDUAL = {"depth": 16, "width": 1, "activation": "maxmin", "normalization": None, "dropout": 0.0}
_PLAIN = {"change": networks.plain, "tight": False, "margin": 0.0, "temperature": 1.0}
VARIANTS = {
    "operator": Variant(),
    "kernel": Variant(arguments=_KERNEL),
    "paper": Variant(arguments=_KERNEL, change=networks.with_scale_of_paper),
    "plain": Variant(**_PLAIN, weight_decay=0.05),
    "adversarial": Variant(**_PLAIN, weight_decay=0.05, adversarial=True),
    "orthogonium": Variant(change=networks.with_layers_of("orthogonium"), tight=False),
    "torchlip": Variant(change=networks.with_layers_of("torchlip"), tight=False),
    "wrn-operator": Variant("wide_resnet", _RESIDUAL | {"convolutions": "operator"}),
    "wrn-kernel": Variant("wide_resnet", _RESIDUAL | _KERNEL),
}

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "muon": functools.partial(Muon, adam_weight_decay=None, adam_lr_ratio=0.1),
}

# The share of all steps in which the rate rises; in the others it falls to zero.
WARM_UP = 0.1

# Of adversarial training: the attack, in the 2-norm, and its size for pixels in [0, 1].
ATTACK, ATTACK_EPSILON = kp.attacks.PGD(steps=7, norm=2, bounds=(0, 1), labels="true"), 0.5

# Where certificates are counted: those of the field, for pixels in [0, 1].
_EPSILONS = {"mnist": (0.5, 1.0, 1.58)}


def epsilons(dataset):
    """The sizes of perturbations at which accuracies are certified, by the data set's name."""
    return _EPSILONS.get(dataset, tuple(level / 255 for level in (36, 72, 108, 255)))


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of one training.

    Args:
        dataset: The data set's name.
        variant: A key of `VARIANTS`.
        rate: The highest learning rate.
        seed: Seed of initial weights, order and augmentation.
        network: Arguments of the builder, in place of the variant's or beside them.
        epochs: Number of epochs.
        minutes: How long the epochs were to take, or `None` if their number was given.
        batch_size: Number of images in a step.
        margin: That of `kp.losses.MarginCrossentropy`.
        temperature: The same.
        weight_decay: That of the optimizer, for kernels.
        optimizer: A key of `OPTIMIZERS`.
        limit: How many training images to use, or `None` for all.
        full: Whether the validation images are trained on.
        precision: Keras's policy: `"float32"`, `"mixed_bfloat16"`, ...
        backend: Keras's backend.
    """

    dataset: str
    variant: str
    rate: float
    seed: int
    network: dict
    epochs: int
    minutes: float | None
    batch_size: int
    margin: float
    temperature: float
    weight_decay: float
    optimizer: str
    limit: int | None
    full: bool
    precision: str
    backend: str

    @property
    def name(self):
        """A name with whatever runs of one directory may differ in."""
        parts = [self.dataset, self.variant, f"rate{self.rate:g}", f"seed{self.seed}"]
        variant = VARIANTS[self.variant]
        for key, short in (("margin", "margin"), ("weight_decay", "decay")):
            if getattr(self, key) != getattr(variant, key):
                parts.append(f"{short}{getattr(self, key):g}")
        parts += [self.optimizer] * (self.optimizer != "adam")
        return "-".join(parts)

    def to_dict(self):
        """The run as plain data, as JSON would return it."""
        return dataclasses.asdict(self)


def build(run, dataset):
    """The model of a run, uncompiled, for a `data.Dataset`."""
    variant = VARIANTS[run.variant]
    told_by_data = {
        "input_shape": dataset.input_shape,
        "classes": dataset.classes,
        "mean": dataset.mean,
    }
    builder = getattr(kp.models, variant.builder)
    return variant.change(builder(**(told_by_data | variant.arguments | run.network)))


def optimizer(run, dataset):
    """The optimizer with one cycle: the rate rises in a line, and falls to zero as a cosine."""
    steps = run.epochs * dataset.steps(run.batch_size)
    rising = round(WARM_UP * steps)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - rising), warmup_target=run.rate, warmup_steps=rising
    )
    made = OPTIMIZERS[run.optimizer](schedule, weight_decay=run.weight_decay or None)
    if run.weight_decay:
        made.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return made


def callbacks(run):
    """What takes part in a training, besides its checkpoint."""
    variant = VARIANTS[run.variant]
    found = [kp.SpectrumLogger(convolutions="operator")] if variant.tight else []
    if variant.adversarial:
        found.append(
            kp.AdversarialTraining(ATTACK, epsilon=ATTACK_EPSILON, ratio=1.0, seed=run.seed)
        )
    return found
