"""How accurate a classifier remains under attack."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled, no_gradient
from keras_parseval._batches import Examples, check_labels, padded
from keras_parseval._classifier import Classifier, not_a_number
from keras_parseval._compiled_loss import check_model
from keras_parseval._progress import Progress, Verbose
from keras_parseval.analysis._accuracy_by_level import AccuracyByLevel
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._fgsm import check_attack
from keras_parseval.attacks._inputs import check_batch
from keras_parseval.attacks._levels import choose_levels, level_epsilons


@dataclasses.dataclass(frozen=True)
class RobustAccuracy(AccuracyByLevel):
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
    result = kp.analysis.RobustAccuracy(0.98, "snr", (40.0, 33.0), (0.95, 0.9), "FGSM", 1000)
    result.to_dict()  # {"clean": 0.98, "snr40": 0.95, "snr33": 0.9}
    ```
    """

    clean: float
    measure: str
    levels: tuple[float, ...]
    accuracies: tuple[float, ...]
    attack: str
    examples: int

    def title(self) -> str:
        """The first line of the table."""
        return f"{self.attack}, {self.examples} examples"


def robust_accuracy(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    epsilon: float | Iterable[float] | None = None,
    snr: float | Iterable[float] | None = None,
    attack: Attack | None = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> RobustAccuracy:
    """The accuracy of a classifier, clean and under attack at several levels.

    A one-step attack takes one gradient, whatever the number of levels, and a
    forward pass for each. Every accuracy is that of the model's decisions on the crafted
    examples. Where a classifier makes several binary decisions for an example, all must be right.

    Args:
        model: A compiled Keras classifier; it is left exactly as it is.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`:
            a `tf.data.Dataset`, a `keras.utils.PyDataset`, a PyTorch
            `DataLoader`, or any iterable.
        y: The labels, where `x` is arrays.
        epsilon: One or several sizes of the perturbation, in the units of the model's input.
        snr: In place of `epsilon`, signal-to-noise ratios in decibels, for each example. Without
            either, they are 50, 45, 40 and 33, the paper's.
        attack: The attack, such as `kp.IteratedFGSM(steps=20)`. Unless it says otherwise, it
            uses the true labels: against its own predictions, it would put mistakes right.
            Defaults to `kp.FGSM()`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: 0 for silence, 1 for a progress bar, `"auto"` for one on runs of
            more than five seconds. Defaults to `"auto"`.

    Returns:
        A `kp.analysis.RobustAccuracy`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    print(kp.robust_accuracy(model, x, y, snr=(40, 30, 20)))
    ```
    """
    check_model(model)
    measure, levels = choose_levels(snr, epsilon)
    attack = check_attack(attack).with_labels("true")
    check = functools.partial(check_labels, model, attack.loss)
    examples = Examples(x, y, batch_size=batch_size, check_labels=check)
    progress = Progress(examples.total, verbose)
    counts, count, size, moved = np.zeros(len(levels) + 1), 0, 0, 0
    for inputs, labels in examples:
        check_batch(attack, inputs)
        if not count:
            if not model.built:
                model(inputs)
            Classifier(model, attack.loss).check_probabilities(inputs)
        size = max(size, len(labels))
        *right, steps, nans = _count_correct(model, attack, inputs, labels, measure, levels, size)
        if nans:
            raise not_a_number(model)
        counts += right
        moved += steps
        count += len(labels)
        progress.advance()
    if not moved and levels != [0.0]:
        raise no_gradient()
    clean, *accuracies = (counts / count).tolist()
    return RobustAccuracy(
        clean, measure, tuple(levels), tuple(accuracies), attack.describe(), count
    )


def _count_correct(
    model: Any,
    attack: Attack,
    inputs: Any,
    labels: Any,
    measure: str,
    levels: list[float],
    size: int,
) -> np.ndarray:
    """The number of right decisions, clean and at each level, in a batch padded to `size`.

    Then 0 if the attack did not move anything, and last 0 if all outputs are numbers.
    """
    tensors = {
        "x": padded(inputs, size),
        "y": padded(labels, size),
        "valid": np.arange(size) < len(labels),
    }
    moving = attack.select(tensors["x"])
    tensors["epsilon"] = level_epsilons(moving, measure, levels, attack.norm, attack.mask)
    if attack.mask is not None:
        tensors["mask"] = attack.mask

    def count(model: Any, tensors: dict[str, Any]) -> Any:
        classifier = Classifier(model, attack.loss)
        right, *flags = _decisions(classifier, attack, len(levels), tensors)
        counts = ops.sum(right * ops.cast(tensors["valid"], right.dtype), axis=1)
        return ops.append(counts, ops.cast(ops.stack(flags), counts.dtype))

    key = ("robust accuracy", len(levels), attack.static_key(model))
    return ops.convert_to_numpy(call_compiled(model, key, count, tensors))


def _decisions(
    classifier: Classifier, attack: Attack, levels: int, tensors: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Whether each decision is right: a row for clean examples, then one for each level.

    And whether any example was moved at all, and any output is not a number.
    """
    problem, y = attack.problem(classifier, tensors), tensors["y"]
    crowd = attack.perturbed_levels(problem, levels, tensors["epsilon"])
    moved = ops.any(attack.select(crowd) != problem.repeat(problem.x, levels))
    clean, outputs = problem.clean_outputs, classifier.outputs(crowd)
    attacked = classifier.correct(problem.repeat(y, levels), outputs)
    rows = [classifier.correct(y, clean)[None], ops.reshape(attacked, (levels, -1))]
    nans = ops.any(ops.isnan(ops.concatenate([clean, outputs])))
    return ops.concatenate(rows), moved, nans
