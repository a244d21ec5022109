"""What the paper trained, how, and what it reports: the plan of its experiments."""

import dataclasses
import re

import keras

import keras_parseval as kp

# By data set and builder: the builder's arguments, and the training. The learning rate is
# multiplied by `drop_factor` after each of the epochs in `drops`. What the data itself tells is not
# here: the shape of the images, the number of classes, the mean and deviation of the pixels.
_CIFAR = (
    {"depth": 28, "width": 10, "beta": 3e-4, "dropout": 0.3, "weight_decay": 5e-4},
    {
        **{"epochs": 200, "batch_size": 128, "learning_rate": 0.1, "momentum": 0.9},
        **{"drops": (60, 120, 160), "drop_factor": 0.2},
    },
)
_SVHN = (
    {"depth": 16, "width": 4, "beta": 1e-4, "dropout": 0.4, "weight_decay": 5e-4},
    {
        **{"epochs": 160, "batch_size": 128, "learning_rate": 0.01, "momentum": 0.9},
        **{"drops": (80, 120), "drop_factor": 0.1},
    },
)
_FULLY_CONNECTED = {"hidden": 4, "units": 2048, "beta": 0.1, "rows": 0.3}
_FULLY_CONNECTED_TRAINING = {
    # The paper does not tell the learning rate, but for halving it every 10 epochs.
    **{"epochs": 50, "batch_size": 100, "learning_rate": 0.1, "momentum": 0.0},
    **{"drops": (10, 20, 30, 40), "drop_factor": 0.5},
}
RECIPES = {
    ("cifar10", "wide_resnet"): _CIFAR,
    ("cifar100", "wide_resnet"): _CIFAR,
    ("svhn", "wide_resnet"): _SVHN,
    ("cifar10", "fully_connected"): (_FULLY_CONNECTED, _FULLY_CONNECTED_TRAINING),
    ("mnist", "fully_connected"): (
        _FULLY_CONNECTED | {"pad_to": 32},
        _FULLY_CONNECTED_TRAINING,
    ),
}

FULLY_CONNECTED_VARIANTS = {
    "sgd": {"variant": "vanilla", "weight_decay": 0.0},
    "sgd-wd": {"variant": "vanilla"},
    "parseval": {"variant": "parseval"},
    "parseval-100%": {"variant": "parseval", "rows": 1.0},
    "parseval-unbiased-30%": {"variant": "parseval", "unbiased": True},
    "parseval-unbiased-10%": {"variant": "parseval", "rows": 0.1, "unbiased": True},
    "parseval-unbiased-10%-maxmin": {
        **{"variant": "parseval", "rows": 0.1, "unbiased": True},
        "activation": "maxmin",
    },
}
WIDE_RESNET_VARIANTS = {variant: {"variant": variant} for variant in kp.models.VARIANTS}

DEFAULT_MODELS = {
    "digits": "fc",
    "mnist": "fc",
    "cifar10": "wrn-28-10",
    "cifar100": "wrn-28-10",
    "svhn": "wrn-16-4",
}

# Accuracy in %, clean and at SNR 50, 45, 40 and 33, by data set, variant and adversarial training.
PAPER_ACCURACIES = {
    ("cifar10", "vanilla", False): (95.63, 90.16, 85.97, 76.62, 67.21),
    ("cifar10", "parseval-oc", False): (95.82, 91.85, 88.56, 78.79, 61.38),
    ("cifar10", "parseval", False): (96.28, 93.03, 90.40, 81.76, 69.10),
    ("cifar10", "vanilla", True): (95.49, 91.17, 88.90, 86.75, 84.87),
    ("cifar10", "parseval-oc", True): (95.59, 92.31, 90.00, 87.02, 85.23),
    ("cifar10", "parseval", True): (96.08, 92.51, 90.05, 86.89, 84.53),
    ("cifar100", "vanilla", False): (79.70, 65.76, 57.27, 44.62, 34.49),
    ("cifar100", "parseval-oc", False): (81.07, 70.33, 63.78, 49.97, 32.99),
    ("cifar100", "parseval", False): (80.72, 72.43, 66.41, 55.41, 41.19),
    ("cifar100", "vanilla", True): (79.23, 67.06, 62.53, 56.71, 51.78),
    ("cifar100", "parseval-oc", True): (80.34, 69.27, 62.93, 53.21, 52.60),
    ("cifar100", "parseval", True): (80.19, 73.41, 67.16, 58.86, 39.56),
    ("svhn", "vanilla", False): (98.38, 97.04, 95.18, 92.71, 88.11),
    ("svhn", "parseval-oc", False): (97.91, 97.55, 96.35, 93.73, 89.09),
    ("svhn", "parseval", False): (98.13, 97.86, 96.19, 93.55, 88.47),
}

# Dimensions for 99% of the covariance, in % of all, on CIFAR-10: (all, class) for each layer.
PAPER_DIMENSIONS = {
    ("sgd-wd", False): ((72.6, 34.7), (1.5, 1.3), (0.5, 0.5), (0.5, 0.4)),
    ("sgd-wd", True): ((73.6, 34.7), (1.5, 1.3), (0.4, 0.4), (0.4, 0.4)),
    ("parseval", False): ((89.0, 38.4), (82.6, 38.2), (81.9, 30.6), (56.0, 19.3)),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of one training.

    Args:
        dataset: The data set's name.
        model: `"fc"`, or `"wrn-D-W"` for a wide residual network of depth D and width W.
        variant: How the weights are regularised.
        adversarial: Whether half of every minibatch is adversarial.
        seed: Seed of initial weights, order, augmentation, dropout and adversarial magnitudes.
        builder: The arguments of the model's builder, other than the data set's.
        training: Epochs, batch size, learning rate and its drops, momentum.
        limit: How many images to use, or `None` for all.
        full: Whether the validation images are trained on.
        backend: Keras's backend.
        attacked: How many images the attack in many steps is tried on, or `None` for all.
    """

    dataset: str
    model: str
    variant: str
    adversarial: bool
    seed: int
    builder: dict
    training: dict
    limit: int | None
    full: bool
    backend: str
    attacked: int | None = None

    @property
    def group(self):
        """What is compared in one table."""
        return f"{self.dataset}-{self.model}"

    @property
    def label(self):
        """The variant as the paper writes it: -da for adversarial training."""
        return self.variant + ("-da" if self.adversarial else "")

    @property
    def name(self):
        return f"{self.group}-{self.label}-seed{self.seed}"

    def to_dict(self):
        """The run as plain data, as JSON would return it."""
        config = dataclasses.asdict(self)
        config["training"]["drops"] = list(config["training"]["drops"])
        return config


def variants_of(model):
    """The variants of a kind of model, as `{name: arguments of the builder}`."""
    return FULLY_CONNECTED_VARIANTS if model == "fc" else WIDE_RESNET_VARIANTS


def default_variants(model):
    """The variants that are run unless others are named."""
    if model == "fc":
        return ["sgd", "sgd-wd", "parseval", "parseval-unbiased-10%"]
    return list(WIDE_RESNET_VARIANTS)


def parse_model(model):
    """The name of the builder, and the arguments that the name of the model stands for."""
    if model == "fc":
        return "fully_connected", {}
    match = re.fullmatch(r"wrn-(\d+)-(\d+)", model)
    if match is None:
        raise ValueError(
            "The model must be fc, or wrn-D-W for a wide residual network of depth D and width "
            f"W, such as wrn-16-4. Received: {model!r}"
        )
    depth, width = map(int, match.groups())
    return "wide_resnet", {"depth": depth, "width": width}


def recipe(dataset, model):
    """The paper's arguments for the builder and for training.

    Where the paper does not train such a network on the data set, the recipe is that of MNIST for
    fully connected networks, and CIFAR's for residual ones. The digits have smaller layers.
    """
    builder, given = parse_model(model)
    stand_in = "mnist" if builder == "fully_connected" else "cifar10"
    arguments, training = RECIPES.get((dataset, builder), RECIPES[stand_in, builder])
    if dataset == "digits" and model == "fc":
        arguments = arguments | {"units": 256, "pad_to": None}
    return {**arguments, **given}, dict(training)


def build(run, dataset):
    """The model of a run, uncompiled, for a `data.Dataset`."""
    builder, _ = parse_model(run.model)
    told_by_data = {
        "input_shape": dataset.input_shape,
        "classes": dataset.classes,
        "mean": dataset.mean,
        "std": dataset.std,
    }
    # The paper lets coefficients of its convex sums fall to zero.
    floor = {"floor": 0.0} if builder == "wide_resnet" else {}
    return getattr(kp.models, builder)(**(told_by_data | floor | run.builder))


def learning_rate(run, epoch):
    """The learning rate of an epoch, after the drops before it."""
    drops = sum(epoch >= drop for drop in run.training["drops"])
    return run.training["learning_rate"] * run.training["drop_factor"] ** drops


def optimizer(run):
    return keras.optimizers.SGD(learning_rate(run, 0), momentum=run.training["momentum"])
