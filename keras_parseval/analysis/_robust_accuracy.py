"""How accurate a classifier remains under attack."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_parseval._backend import NoGradientError
from keras_parseval._compiled_loss import check_model
from keras_parseval._progress import Verbose
from keras_parseval._validation import check_integer
from keras_parseval.analysis._accuracy_by_level import AccuracyByLevel
from keras_parseval.analysis._attack_warnings import attack_warnings
from keras_parseval.analysis._evaluation import Evaluation
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._fgsm import check_attack
from keras_parseval.attacks._findings import Findings
from keras_parseval.attacks._levels import choose_levels


@dataclasses.dataclass(frozen=True)
class AttackedExamples:
    """What an attack did to each example: `RobustAccuracy.details`.

    Args:
        labels: The classes that are right, one for each example.
        decisions: The worst decisions of the model: a row for the clean examples, then one for each
            level.
        broken_by: For each level and example, the number (in `attacks`) of the attack that broke
            it; -1 where none did, or where it was wrong from the start.
        attacks: The attacks, in words.
        kept: The numbers of the examples whose crafted inputs were kept.
        kept_levels: For each of them, the number of the level at which it fell.
        inputs: The crafted inputs of these examples, the first that broke each.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    attack = kp.attacks.quick(bounds=None, targets=2, classes=3, queries=0)
    result = kp.robust_accuracy(model, x, y, epsilon=(0.1, 0.5), attack=attack, keep_inputs=4)
    fallen = (result.details.broken_by >= 0).sum(axis=1)  # how many, at each level
    ```
    """

    labels: np.ndarray
    decisions: np.ndarray
    broken_by: np.ndarray
    attacks: tuple[str, ...]
    kept: np.ndarray
    kept_levels: np.ndarray
    inputs: np.ndarray


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
        warnings: What a reader should know before believing the figures. Defaults to none.
        details: A `kp.analysis.AttackedExamples`. Defaults to `None`.

    Example:

    ```python
    result = kp.analysis.RobustAccuracy(0.98, "snr", (40.0, 33.0), (0.95, 0.9), "FGSM", 1000)
    result.to_dict()  # {"clean": 0.98, "snr40": 0.95, "snr33": 0.9}
    result.intervals  # ((0.969, 0.987), ...): where the accuracy lies, with 95% confidence
    ```
    """

    clean: float
    measure: str
    levels: tuple[float, ...]
    accuracies: tuple[float, ...]
    attack: str
    examples: int
    warnings: tuple[str, ...] = ()
    details: AttackedExamples | None = dataclasses.field(default=None, repr=False, compare=False)

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
    keep_inputs: int = 0,
    radii: Any = None,
    attack_certified: bool = True,
    backup: str | os.PathLike[str] | None = None,
    verbose: Verbose = "auto",
) -> RobustAccuracy:
    """The accuracy of a classifier, clean and under attack at several levels.

    A one-step attack takes one gradient, whatever the number of levels, and a
    forward pass for each. Every accuracy is that of the model's decisions on the crafted
    examples. Where a classifier makes several binary decisions for an example, all must be right.

    Attacks that look for the worst case are `kp.attacks.APGD`, `Square` and `Ensemble`, and all
    that have several rounds, such as restarts; with `attack_certified=False` all are. Each round
    attacks the examples that are still right, from the smallest perturbation to the largest. What
    is broken at one level counts as broken at all larger ones.

    Args:
        model: A compiled Keras classifier; it is left exactly as it is.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`:
            a `tf.data.Dataset`, a `keras.utils.PyDataset`, a PyTorch
            `DataLoader`, or any iterable.
        y: The labels, where `x` is arrays.
        epsilon: One or several sizes of the perturbation, in the units of the model's input.
        snr: In place of `epsilon`, signal-to-noise ratios in decibels, for each example. Without
            either, they are 50, 45, 40 and 33, the paper's.
        attack: The attack, such as `kp.attacks.standard()`. Unless it says otherwise, it
            uses the true labels: against its own predictions, it would put mistakes right.
            Defaults to `kp.FGSM()`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        keep_inputs: For how many of the examples that fall first, at the smallest perturbation,
            the crafted inputs are kept in the result. Defaults to 0.
        radii: `None`, or the radius of each example that `kp.certified_radius` gave, in the norm
            of the attack. An example that is broken within its radius is an error.
            Defaults to `None`.
        attack_certified: Whether to attack examples by less than their radius too, which finds
            bounds that are wrong. If `False`, they count as right there, unattacked, which saves
            most of the time of a robust model. Defaults to `True`.
        backup: `None`, or the path of a file in which a long evaluation keeps what is known.
            If it was interrupted, the same call goes on from there. The file is
            removed in the end. Defaults to `None`.
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
    check_integer("keep_inputs", keep_inputs, "an integer, 0 or more", lambda value: value >= 0)
    radii = None if radii is None else np.asarray(radii, "float64")
    safe_radii = None if attack_certified or radii is None else radii.ravel()
    evaluation = Evaluation(model, attack, measure, levels, keep_inputs, safe_radii)
    found = evaluation.run(x, y, batch_size, backup, verbose)
    if not evaluation.moved and levels != [0.0]:
        raise NoGradientError
    _check_radii(radii, found, levels)
    clean, *accuracies = found.right.mean(axis=1, dtype="float64").tolist()
    return RobustAccuracy(
        *(clean, measure, tuple(levels), tuple(accuracies), attack.describe(), found.count),
        warnings=attack_warnings(attack, found, evaluation.features),
        details=_details(attack, found),
    )


def _details(attack: Attack, found: Findings) -> AttackedExamples:
    sizes = np.where(found.broken_by >= 0, found.epsilons, np.inf)
    return AttackedExamples(
        labels=found.labels,
        decisions=found.decisions,
        broken_by=found.broken_by,
        attacks=tuple(each.describe() for each in attack.members()),
        kept=found.kept,
        kept_levels=sizes[:, found.kept].argmin(axis=0),
        inputs=found.inputs,
    )


def _check_radii(radii: Any, found: Findings, levels: list[float]) -> None:
    """Raise if an example was broken by less than what it is certified for."""
    if radii is None:
        return
    if radii.shape != (found.count,):
        raise ValueError(
            "`radii` must be what `kp.certified_radius` gave for the same examples: one number for "
            f"each of the {found.count}. Received: radii of shape {radii.shape}"
        )
    # A radius holds in real arithmetic, up to the rounding of the model's own.
    broken = (found.broken_by >= 0) & (found.epsilons < radii * (1 - 1e-5))
    if broken.any():
        level, example = np.argwhere(broken)[0]
        raise RuntimeError(
            "An example must not be broken within its certified radius; either the radii are of "
            "another norm, model or data, or a bound is wrong: please report it. Received: "
            f"{broken.any(axis=0).sum()} such examples, the first with number {example}, radius "
            f"{radii[example]:.6g}, broken at level {levels[level]:g}, with a perturbation of "
            f"{found.epsilons[level, example]:.6g} at most"
        )
