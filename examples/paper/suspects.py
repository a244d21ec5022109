"""What a result of the paper's experiments may hang on: one thing is changed at a time.

Every variant starts from its best setting. Each suspect changes one thing about the network or its
training, and nothing else; the outcome is measured on the validation images, as in tuning. Beside
it are recorded the singular values and, for fully connected networks, the dimensions of the
activations on the training images.
"""

import dataclasses
import fnmatch

import keras

import keras_parseval as kp

from ..experiments.records import append, read
from . import tuning
from .training import covariance_dimension, singular_values


@dataclasses.dataclass(frozen=True)
class Suspect:
    """One change.

    Args:
        variants: Patterns of the names of the variants that it can be tried on.
        builder: Other arguments of the model's builder.
        training: Another way to train.
        rate: Factor on the learning rate.
        decay: Factor on the weight decay.
        length: Factor on the number of epochs, and on those after which the learning rate drops.
        change: Called on the compiled model, before training.
        finish: Called on the trained model and its data, before measuring.
    """

    variants: tuple = ("sgd-wd", "vanilla", "parseval*")
    builder: dict = dataclasses.field(default_factory=dict)
    training: dict = dataclasses.field(default_factory=dict)
    rate: float = 1.0
    decay: float = 1.0
    length: int = 1
    change: object = lambda model: None
    finish: object = lambda model, dataset: None

    def applied_to(self, run):
        """The run with the change, but for what is done to the model."""
        builder, training = run.builder | self.builder, run.training | self.training
        training["learning_rate"] *= self.rate
        training["epochs"] *= self.length
        training["drops"] = [self.length * drop for drop in training["drops"]]
        builder["weight_decay"] *= self.decay
        return dataclasses.replace(run, builder=builder, training=training)


def start_elsewhere(initializer):
    """Give all hidden kernels other initial values, each from an initializer of its own."""

    def change(model):
        for layer in _dense_layers(model)[:-1]:
            layer.kernel.assign(initializer()(layer.kernel.shape))

    return change


def hold_classifier(scale):
    """Hold the classifier at a scale, in place of its weight decay."""

    def change(model):
        kernel = _dense_layers(model)[-1].kernel
        kernel.assign(kp.TightFrame(scale=scale)(kernel.shape))
        kernel.constraint = kp.ParsevalTightFrame(beta=0.1, scale=scale)
        kernel.regularizer = None

    return change


def hold_sums(model):
    """Leave the coefficients of convex sums as they are at the start, all equal."""
    for layer in model.layers:
        if isinstance(layer, kp.ConvexAdd):
            layer.trainable = False


def settle_statistics(model, dataset):
    """Let batch normalisation average over what it will see: activations without dropout."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    x, _ = dataset.train_pixels()
    for start in range(0, len(x), 128):
        model(x[start : start + 128], training=True)


def _dense_layers(model):
    return [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]


FULLY_CONNECTED = {
    "nothing": Suspect(),
    "four times the epochs": Suspect(length=4),
    "pixels not normalised": Suspect(builder={"mean": 0.0, "std": 1.0}),
    "batch normalisation": Suspect(builder={"normalization": "batch"}),
    "learning rate never dropped": Suspect(training={"drops": []}),
    "twice the learning rate": Suspect(rate=2.0),
    "three times the weight decay": Suspect(decay=3.0),
    "started on a frame": Suspect(("sgd*",), change=start_elsewhere(kp.TightFrame)),
    "not started on a frame": Suspect(
        ("parseval*",), change=start_elsewhere(keras.initializers.HeNormal)
    ),
    "all units retracted": Suspect(("parseval*",), builder={"rows": 1.0}),
    "classifier held at 1": Suspect(("parseval*",), change=hold_classifier(1.0)),
    "classifier held at 3": Suspect(("parseval*",), change=hold_classifier(3.0)),
}
WIDE_RESNET = {
    "nothing": Suspect(),
    "no batch normalisation": Suspect(builder={"normalization": None}),
    "statistics without dropout": Suspect(finish=settle_statistics),
    "the paper's beta": Suspect(("parseval*",), builder={"beta": 3e-4}),
    "the paper's beta, statistics without dropout": Suspect(
        ("parseval*",), builder={"beta": 3e-4}, finish=settle_statistics
    ),
    "convex sums held at a half": Suspect(("parseval",), change=hold_sums),
}


def suspects_of(run):
    """What may be changed about a run, as `{name: suspect}`."""
    suspects = FULLY_CONNECTED if run.model == "fc" else WIDE_RESNET
    return {
        name: suspect
        for name, suspect in suspects.items()
        if any(fnmatch.fnmatchcase(run.variant, pattern) for pattern in suspect.variants)
    }


def try_all(runs, dataset, folder, verbose):
    """Try every suspect on every run that it fits, and add a line to `suspects.jsonl` for each."""
    path = folder / "suspects.jsonl"
    for run in runs:
        for name, suspect in suspects_of(run).items():
            known = [(each["suspect"], each["name"]) for each in read(path)]
            if (name, run.name) in known:
                continue
            varied = suspect.applied_to(run)
            record, model = tuning.try_out(
                varied, dataset, folder, verbose, suspect.change, suspect.finish
            )
            if record["validation"] is not None:
                record["singular_values"] = singular_values(model)
                if run.model == "fc":
                    record["covariance_dimension"] = covariance_dimension(dataset, model)
            append(path, {"suspect": name, **record})
            print(f"{run.name}, {name}: {record['score']:.4f}")
