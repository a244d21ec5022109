"""The worst case over several attacks, and the suites that are meant to be used."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from keras_parseval._validation import Norm, check_integer
from keras_parseval.attacks._apgd import APGD
from keras_parseval.attacks._attack import Attack, Labels
from keras_parseval.attacks._problem import Problem
from keras_parseval.attacks._square import Square

_SHARED = ("norm", "labels", "bounds", "mask", "perturb")


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Ensemble(Attack):
    """The worst case over several attacks: an example is broken if any of them breaks it.

    `kp.robust_accuracy` runs each of them only on the examples that are still right, in batches of
    one size, and tells which attack broke which example. A call crafts with all of them, and keeps
    the worst for each example.

    Args:
        attacks: The attacks, the cheapest first. They must agree in `norm`, `labels`, `bounds`,
            `mask` and `perturb`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((16, 8)), keras.ops.zeros(16, "int32")
    attack = kp.attacks.Ensemble([kp.FGSM(), kp.attacks.APGD(steps=20)])
    print(kp.robust_accuracy(model, x, y, epsilon=0.1, attack=attack))
    ```
    """

    attacks: Sequence[Attack] = ()

    searches: ClassVar[bool] = True

    def __new__(cls, attacks: Any = (), **options: Any) -> Any:
        """Unlike other attacks, take the attacks without a keyword."""
        return super().__new__(cls, **options)

    def __init__(self, attacks: Sequence[Attack]):
        _check_members(attacks)
        shared = {name: getattr(attacks[0], name) for name in _SHARED}
        self._set(attacks=tuple(attacks), loss=attacks[0].classifier_loss, **shared)

    def members(self) -> tuple[Attack, ...]:
        """The attacks, and those of ensembles among them."""
        return tuple(each for attack in self.attacks for each in attack.members())

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Raise if one of the attacks cannot take inputs of this shape."""
        for attack in self.attacks:
            attack.check_shape(shape)

    def perturbation(self, problem: Problem) -> Any:
        """For each example the perturbation that misleads the model most."""
        worst = None
        for attack in self.members():
            delta = problem.for_attack(attack).worst_perturbation()
            found = delta, problem.success(delta)
            worst = found if worst is None else problem.worse(found, worst)
        return worst[0]  # type: ignore[index]

    def with_labels(self, default: Labels) -> "Ensemble":
        """The same attacks, with `labels` settled where it was `None`."""
        return Ensemble([attack.with_labels(default) for attack in self.attacks])

    def static_key(self, model: Any) -> tuple[Any, ...]:
        """Everything that the compiled attacks depend on, save the tensors."""
        return type(self), *(attack.static_key(model) for attack in self.attacks)

    def describe(self) -> str:
        """The attacks in a few words, for tables."""
        return " + ".join(attack.describe() for attack in self.attacks)


def _check_members(attacks: Any) -> None:
    if isinstance(attacks, Attack) or not isinstance(attacks, Sequence) or not attacks:
        raise TypeError(
            "An ensemble must be given a list of attacks, such as "
            f"`[kp.FGSM(), kp.attacks.APGD()]`. Received: {attacks!r}"
        )
    for attack in attacks:
        if not isinstance(attack, Attack):
            raise TypeError(f"An ensemble must consist of attacks. Received: {attack!r}")
        if attack.labels == "least_likely":
            raise ValueError(
                "The worst case is one for a label, true or predicted; aim at other classes with "
                f'`kp.attacks.APGD(targets=...)`. Received: labels="least_likely" in {attack}'
            )
    for name in (*_SHARED, "classifier_loss"):
        values = [getattr(attack, name) for attack in attacks]
        if not all(np.array_equal(each, values[0]) for each in values):
            raise ValueError(
                f"The attacks of an ensemble must agree in `{name.removeprefix('classifier_')}`. "
                f"Received: {values}"
            )


def standard(
    norm: Norm = "inf",
    bounds: tuple[float, float] | None = (0, 1),
    *,
    steps: int = 100,
    targets: int = 9,
    queries: int = 5000,
    classes: int = 10,
    seed: int = 0,
    **options: Any,
) -> Ensemble:
    """The suite to measure robustness with: the worst case over three attacks.

    It has three of the four parts of AutoAttack's standard suite (Croce and Hein, 2020), with the
    same number of steps, targets and queries: Auto-PGD on the cross-entropy, Auto-PGD
    towards nine targets on the difference of logits ratio, and the square attack. The fourth,
    FAB-T, which looks for the smallest perturbation, is left out. So a figure is one of "APGD-CE,
    APGD-T and Square", not of AutoAttack.

    Args:
        norm: The norm that perturbations are measured in, `"inf"` or 2. Defaults to `"inf"`.
        bounds: The smallest and largest value of an input, or `None`. Defaults to `(0, 1)`.
        steps: Steps of Auto-PGD. Defaults to 100.
        targets: The number of targets; 0 leaves this part out. Defaults to 9.
        queries: Queries of the square attack; 0 leaves it out, for inputs that are not images.
            Defaults to 5,000.
        classes: The number of classes of the model. With fewer than four, for which the ratio is
            not defined, the targeted part raises the cross-entropy; with two it is left out.
            Defaults to 10.
        seed: Integer seed of all that is random. Defaults to 0.
        **options: Further arguments of all parts: `labels`, `mask`, `perturb`.

    Returns:
        A `kp.attacks.Ensemble`.

    Example:

    ```python
    attack = kp.attacks.standard(norm=2)
    ```
    """
    for name, value in (("targets", targets), ("queries", queries)):
        check_integer(name, value, "an integer, 0 or more", lambda value: value >= 0)
    check_integer("classes", classes, "an integer, 2 or more", lambda value: value >= 2)
    options = {"norm": norm, "bounds": bounds, "seed": seed, **options}
    attacks: list[Attack] = [APGD(steps=steps, **options)]
    if targets and classes > 2:
        loss = "dlr" if classes > 3 else "ce"
        attacks.append(APGD(steps=steps, loss=loss, targets=targets, **options))
    if queries:
        attacks.append(Square(queries=queries, **options))
    return Ensemble(attacks)


def quick(
    norm: Norm = "inf", bounds: tuple[float, float] | None = (0, 1), **options: Any
) -> Ensemble:
    """A small form of `kp.attacks.standard`, for reports and for use during training.

    It has 50 steps, 3 targets and 500 queries.

    Args:
        norm: As in `kp.attacks.standard`. Defaults to `"inf"`.
        bounds: The smallest and largest value of an input. Defaults to `(0, 1)`.
        **options: Further arguments of `kp.attacks.standard`.

    Returns:
        A `kp.attacks.Ensemble`.

    Example:

    ```python
    attack = kp.attacks.quick(bounds=(0, 255))
    ```
    """
    sizes = {"steps": 50, "targets": 3, "queries": 500}
    return standard(norm, bounds, **{**sizes, **options})
