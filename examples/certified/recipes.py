"""What is trained, and how: one place for networks, loss, rates and their schedule."""

import dataclasses

import keras

import keras_parseval as kp

# Each variant is a builder of `kp.models`, and its arguments. "paper" is "kernel" with the scale
# of the paper, which does not consider strides: wherever an image is halved, so is the signal.
_RESIDUAL = {"width": 1, "activation": "maxmin", "normalization": None, "dropout": 0.0}
VARIANTS = {
    "operator": ("lipschitz_convnet", {"convolutions": "operator"}),
    "kernel": ("lipschitz_convnet", {"convolutions": "kernel"}),
    "paper": ("lipschitz_convnet", {"convolutions": "kernel"}),
    "wrn-operator": ("wide_resnet", {"depth": 16, "convolutions": "operator", **_RESIDUAL}),
    "wrn-kernel": ("wide_resnet", {"depth": 16, "convolutions": "kernel", **_RESIDUAL}),
}

# The share of all steps in which the rate rises; in the others it falls to zero.
WARM_UP = 0.1


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of one training.

    Args:
        dataset: The data set's name.
        variant: A key of `VARIANTS`.
        rate: The highest learning rate of Adam.
        seed: Seed of initial weights, order and augmentation.
        network: Arguments of the builder, in place of the variant's or beside them.
        epochs: Number of epochs.
        batch_size: Number of images in a step.
        margin: That of `kp.losses.MarginCrossentropy`.
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
    batch_size: int
    margin: float
    limit: int | None
    full: bool
    precision: str
    backend: str

    @property
    def name(self):
        return f"{self.dataset}-{self.variant}-rate{self.rate:g}-seed{self.seed}"

    def to_dict(self):
        """The run as plain data, as JSON would return it."""
        return dataclasses.asdict(self)


def build(run, dataset):
    """The model of a run, uncompiled, for a `data.Dataset`."""
    builder, arguments = VARIANTS[run.variant]
    told_by_data = {
        "input_shape": dataset.input_shape,
        "classes": dataset.classes,
        "mean": dataset.mean,
    }
    model = getattr(kp.models, builder)(**(told_by_data | arguments | run.network))
    return with_scale_of_paper(model) if run.variant == "paper" else model


def with_scale_of_paper(model):
    """A copy of a model with flattened frames of the default scale, `prod(kernel_size)**-0.5`."""

    def clone(layer):
        frame = kp.tight_frame() if isinstance(layer, keras.layers.Conv2D) else {}
        return type(layer).from_config(layer.get_config() | frame)

    return keras.models.clone_model(model, clone_function=clone)


def optimizer(run, dataset):
    """Adam with one cycle: the rate rises in a line, and falls to zero as a cosine."""
    steps = run.epochs * dataset.steps(run.batch_size)
    rising = round(WARM_UP * steps)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - rising), warmup_target=run.rate, warmup_steps=rising
    )
    return keras.optimizers.Adam(schedule)
