"""The paper's settings for each data set, as plain data."""

_CIFAR = {"depth": 28, "width": 10, "beta": 3e-4, "dropout": 0.3, "weight_decay": 5e-4}
_CIFAR_RATES = {"learning_rate": 0.1, "momentum": 0.9, "drops": (60, 120, 160), "drop_factor": 0.2}
_CIFAR_TRAINING = {"epochs": 200, "batch_size": 128, **_CIFAR_RATES}
_SVHN = {"depth": 16, "width": 4, "beta": 1e-4, "dropout": 0.4, "weight_decay": 5e-4}
_SVHN_RATES = {"learning_rate": 0.01, "momentum": 0.9, "drops": (80, 120), "drop_factor": 0.1}
_SVHN_TRAINING = {"epochs": 160, "batch_size": 128, **_SVHN_RATES}
_DENSE = {"hidden": 4, "units": 2048, "rows": 0.3, "classes": 10}
_DENSE_RATES = {
    "learning_rate": None,
    "momentum": 0.0,
    "drops": (10, 20, 30, 40),
    "drop_factor": 0.5,
}
_DENSE_TRAINING = {"epochs": 50, "batch_size": 100, **_DENSE_RATES}
_CIFAR10_PIXELS = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
_CIFAR100_PIXELS = {"mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)}
_MNIST_PIXELS = {"input_shape": (28, 28, 1), "pad_to": 32, "mean": 0.1307, "std": 0.3081}
# The paper divides the pixels of SVHN by 255, and no more.
_SVHN_PIXELS = {"mean": 0.0, "std": 1.0}

# By data set and builder: the arguments of the builder, and how the paper trains the model. The
# learning rate is multiplied by `drop_factor` after each of the epochs in `drops`; `None` is one
# that the paper does not tell. Pixel statistics are those of the training sets.
PAPER = {
    "cifar10": {
        "wide_resnet": {
            "model": {**_CIFAR, **_CIFAR10_PIXELS, "classes": 10},
            "training": _CIFAR_TRAINING,
        },
        "fully_connected": {"model": {**_DENSE, **_CIFAR10_PIXELS}, "training": _DENSE_TRAINING},
    },
    "cifar100": {
        "wide_resnet": {
            "model": {**_CIFAR, **_CIFAR100_PIXELS, "classes": 100},
            "training": _CIFAR_TRAINING,
        },
    },
    "svhn": {
        "wide_resnet": {
            "model": {**_SVHN, **_SVHN_PIXELS, "classes": 10},
            "training": _SVHN_TRAINING,
        },
    },
    "mnist": {
        "fully_connected": {"model": {**_DENSE, **_MNIST_PIXELS}, "training": _DENSE_TRAINING},
    },
}
