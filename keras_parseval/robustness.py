"""How accurate a classifier remains under attack."""

import dataclasses
import inspect

import keras
import numpy as np
from keras import ops

from keras_parseval._attack_checks import check_data, check_labels, not_a_number
from keras_parseval._backend import call_compiled, no_gradient
from keras_parseval._data import Progress, batches_of, padded
from keras_parseval.attacks import FGSM, GradientAttack
from keras_parseval.classifier import Classifier
from keras_parseval.noise import choose_levels


@dataclasses.dataclass(frozen=True)
class RobustAccuracy:
    """What `kp.robust_accuracy` measured. Prints as a table.

    Args:
        clean: Accuracy without attack.
        measure: `"snr"` or `"epsilon"`: what the levels are.
        levels: The levels of attack, as they were given.
        accuracies: The accuracy at each level.
        attack: What attacked, in words.
        examples: How many examples were counted.

    Example:

    ```python
    result = kp.RobustAccuracy(0.98, "snr", (40.0, 33.0), (0.95, 0.9), "FGSM", 1000)
    result.to_dict()  # {"clean": 0.98, "snr40": 0.95, "snr33": 0.9}
    ```
    """

    clean: float
    measure: str
    levels: tuple
    accuracies: tuple
    attack: str
    examples: int

    def to_dict(self):
        """Accuracies by name: `clean`, then `snr40` or `eps0.1` and the like."""
        prefix = "snr" if self.measure == "snr" else "eps"
        named = {f"{prefix}{level:g}": value for level, value in zip(self.levels, self.accuracies)}
        return {"clean": self.clean, **named}

    def to_rows(self):
        """A dictionary for each level, clean first: what `pandas.DataFrame` takes."""
        levels = [(None, self.clean), *zip(self.levels, self.accuracies)]
        common = {"attack": self.attack, "examples": self.examples, "measure": self.measure}
        return [{**common, "level": level, "accuracy": value} for level, value in levels]

    def __str__(self):
        heading = "SNR (dB)" if self.measure == "snr" else "epsilon"
        lines = [f"{self.attack}, {self.examples} examples", f"{heading:>10}{'accuracy':>11}"]
        levels = ["clean", *(f"{level:g}" for level in self.levels)]
        values = [self.clean, *self.accuracies]
        return "\n".join([*lines, *(f"{a:>10}{b:>11.4f}" for a, b in zip(levels, values))])


def robust_accuracy(
    model, x, y=None, snr=None, epsilon=None, attack=FGSM, batch_size=128, verbose="auto"
):
    """The accuracy of a classifier, clean and under attack at several levels.

    A one-step attack takes one gradient, whatever the number of levels, and a
    forward pass for each. Every accuracy is that of the model's decisions on the crafted
    examples. Where a classifier makes several binary decisions for an example, all must be right.

    Args:
        model: A compiled Keras classifier; it is left exactly as it is.
        x: The inputs, as arrays; or a data set of batches `(x, y)`:
            a `tf.data.Dataset`, a `keras.utils.PyDataset`, a PyTorch
            `DataLoader`, or any iterable.
        y: The labels, where `x` is arrays.
        snr: Signal-to-noise ratios in decibels, for each example. By
            default 50, 45, 40 and 33, the paper's.
        epsilon: Sizes of the perturbation, in the units of the model's input,
            in place of `snr`.
        attack: `kp.FGSM` or `kp.IteratedFGSM`, which then use the true labels:
            against its own predictions, an attack would put mistakes right.
            Or an instance with settings of your own, whose epsilon is
            replaced by each level.
        batch_size: Number of examples at a time, where `x` is arrays.
        verbose: 0 for silence, 1 for a progress bar, `"auto"` for one on runs of
            more than five seconds.

    Returns:
        A `kp.RobustAccuracy`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    print(kp.robust_accuracy(model, x, y, snr=(40, 30, 20)))
    ```
    """
    measure, levels = choose_levels(snr, epsilon)
    attack = as_template(attack)
    batches, total = batches_of(x, y, batch_size)
    progress = Progress(total, verbose)
    counts, examples, size, moved = np.zeros(len(levels) + 1), 0, 0, 0
    for inputs, labels in batches:
        check_labels(model, attack.loss, labels, len(check_data(attack, inputs)))
        size = max(size, len(labels))
        *right, steps, nans = _count_correct(model, attack, inputs, labels, measure, levels, size)
        if nans:
            raise not_a_number(model)
        counts += right
        moved += steps
        examples += len(labels)
        progress.advance()
    if not examples:
        raise ValueError("There must be at least one example. Received: an empty data set")
    if not moved and levels != [0.0]:
        raise no_gradient()
    clean, *accuracies = (counts / examples).tolist()
    return RobustAccuracy(
        clean, measure, tuple(levels), tuple(accuracies), _describe(attack), examples
    )


def as_template(attack):
    """An instance of the attack, whose epsilon will be replaced."""
    if inspect.isclass(attack) and issubclass(attack, GradientAttack):
        return attack(epsilon=0.0, labels="true")
    if isinstance(attack, GradientAttack):
        if np.ndim(attack.epsilon):
            raise ValueError(
                "The epsilon of `attack` is replaced by each level, and must be a single number. "
                f"Received: epsilon of shape {attack.epsilon.shape}"
            )
        return attack
    raise TypeError(
        "`attack` must be `FGSM`, `IteratedFGSM` or an instance of one of them. "
        f"Received: attack={attack!r}"
    )


def _describe(attack):
    steps = "" if attack.steps == 1 else f", {attack.steps} steps"
    return f"{type(attack).__name__} (norm {attack.norm}, {attack.labels} labels{steps})"


def _count_correct(model, attack, inputs, labels, measure, levels, size):
    """The number of right decisions, clean and at each level, in a batch padded to `size`.

    Then 0 if the attack did not move anything, and last 0 if all outputs are numbers.
    """
    tensors = {
        "x": padded(inputs, size),
        "y": padded(labels, size),
        "valid": np.arange(size) < len(labels),
        "levels": np.asarray(levels, "float32"),
    }
    if attack.mask is not None:
        tensors["mask"] = attack.mask
    if not model.built:
        model(tensors["x"])

    def count(model, tensors):
        right, *flags = _decisions(Classifier(model, attack.loss), attack, measure, tensors)
        counts = ops.sum(right * ops.cast(tensors["valid"], right.dtype), axis=1)
        return ops.append(counts, ops.cast(ops.stack(flags), counts.dtype))

    key = ("robust accuracy", measure, attack.static_key(model))
    return ops.convert_to_numpy(call_compiled(model, key, count, tensors))


def _decisions(classifier, attack, measure, tensors):
    """Whether each decision is right: a row for clean examples, then one for each level.

    And whether any example was moved at all, and any output is not a number.
    """
    inputs, y, levels = tensors["x"], tensors["y"], tensors["levels"]
    x, mask, count = attack.select(inputs), tensors.get("mask"), tensors["levels"].shape[0]

    def repeat(tensor):
        return ops.concatenate([tensor] * count)

    epsilon = ops.cast(_level_epsilons(x, levels, measure, attack.norm, mask), x.dtype)
    crowd = keras.tree.map_structure(repeat, inputs)
    if isinstance(attack, FGSM):
        # The gradient does not depend on epsilon: one is enough for all levels.
        direction, _, clean = attack.ascend(classifier, inputs, y, mask=mask)
        moved = attack.limit(attack.select(crowd), epsilon * repeat(direction))
        crowd = attack.replace(crowd, moved)
    else:
        clean = classifier.outputs(inputs)
        crowd = attack.craft(classifier, crowd, repeat(y), epsilon=epsilon, mask=mask)
    moved = ops.any(attack.select(crowd) != repeat(x))
    outputs = classifier.outputs(crowd)
    attacked = classifier.correct(repeat(y), outputs)
    rows = [classifier.correct(y, clean)[None], ops.reshape(attacked, (count, -1))]
    nans = ops.any(ops.isnan(ops.concatenate([clean, outputs])))
    return ops.concatenate(rows), moved, nans


def _level_epsilons(x, levels, measure, norm, mask):
    """Epsilon for each level and example, level by level along the first axis."""
    ones, x = (1,) * (len(x.shape) - 1), ops.cast(x, "float32")
    if measure == "epsilon":
        return ops.reshape(ops.repeat(levels, x.shape[0]), (-1, *ones))
    flat = ops.reshape(x, (x.shape[0], -1))
    norms = ops.sqrt(ops.sum(ops.square(flat), axis=1))
    if norm == "inf":
        # Only the features that may move carry noise.
        moving = ops.ones_like(flat)
        if mask is not None:
            moving = moving * ops.reshape(
                ops.broadcast_to(ops.cast(mask, x.dtype), x.shape), flat.shape
            )
        norms = norms / ops.sqrt(ops.maximum(ops.sum(moving, axis=1), 1.0))
    return ops.reshape(10.0 ** (-levels[:, None] / 20.0) * norms[None], (-1, *ones))
