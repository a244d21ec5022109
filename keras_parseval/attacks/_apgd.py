"""Auto-PGD: projected gradient ascent that chooses the size of its steps itself."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_parseval._validation import check_choice, check_integer
from keras_parseval.attacks import _objectives as objectives
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._geometry import by_example, choose
from keras_parseval.attacks._problem import Problem


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class APGD(Attack):
    """Auto-PGD, projected gradient ascent with nothing to tune (Croce and Hein, 2020).

    Each example starts at a random point, with steps of twice epsilon and some momentum. At given
    checkpoints, an example whose loss has risen in too few steps, or whose best loss has not
    grown, halves its steps and goes on from its best point. It counts as broken if any
    point on its way was misclassified, and that is the point returned.

    `kp.robust_accuracy` drops what is broken after each round, a start or a target, and at larger
    epsilons. See `kp.FGSM` for how attacks are called, and what they leave alone.

    Args:
        steps: Number of steps. Defaults to 100.
        restarts: How often to start anew, from other random points. Defaults to 1.
        loss: What to raise. `"ce"`: the cross-entropy that the model was compiled with. `"dlr"`:
            the difference of logits ratio, which no scale of the logits can hide, for three
            classes or more (four with targets). Or any loss, as in `kp.FGSM`. Defaults to `"ce"`.
        targets: `None`, or a number: so many of the likeliest other classes are aimed at,
            one after the other, in rounds of their own. Fewer where there are fewer.
            Defaults to `None`.
        seed: Integer seed of the random starts. Defaults to 0.

    The other arguments are those of `kp.FGSM`, save that `labels` cannot be `"least_likely"`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = keras.random.uniform((16, 8)), keras.ops.zeros(16, "int32")
    x_adv = kp.attacks.APGD(steps=20, loss="dlr", targets=3)(model, x, y, epsilon=0.1)
    ```

    Reference:

    - [Croce and Hein, 2020](https://arxiv.org/abs/2003.01690)
    """

    loss: Any = "ce"
    steps: int = 100
    restarts: int = 1
    targets: int | None = None
    seed: int = 0

    searches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("labels", self.labels, (None, "true", "predicted"))
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, ("ce", "dlr"))
        check_integer("steps", self.steps, "a positive integer", lambda value: value > 0)
        check_integer("restarts", self.restarts, "a positive integer", lambda value: value > 0)
        check_integer("seed", self.seed, "an integer, 0 or more", lambda value: value >= 0)
        if self.targets is not None:
            rule = "None or a positive integer"
            check_integer("targets", self.targets, rule, lambda value: value > 0)

    @property
    def classifier_loss(self) -> Any:
        """The loss that says what the model's outputs and labels mean; `None` for its own."""
        return None if isinstance(self.loss, str) else self.loss

    def rounds(self, classes: int) -> int:
        """One for each start and target."""
        return self.restarts * self._target_count(classes)

    def _target_count(self, classes: int) -> int:
        return 1 if self.targets is None else min(self.targets, classes - 1)

    def perturbation(self, problem: Problem) -> Any:
        """The worst point on the way of one round."""
        loss = self._objective(problem)
        start = problem.random(problem.seed)
        direction, losses, success = problem.slope(start, loss)
        # Like the losses, example by example.
        zero, one = ops.zeros_like(losses), ops.ones_like(losses)
        state = _Climb(
            *(start, start, direction, 2.0 * one, losses, zero),
            *(start, direction, losses, losses, one > 0),
            *(start, success),
        )
        # As far behind as the first step goes ahead, so that momentum changes nothing there.
        state = state._replace(before=2.0 * start - _ahead(problem, state))
        windows = _windows(self.steps)
        lengths = ops.convert_to_tensor(windows)

        def climb(number: Any, state: _Climb) -> _Climb:
            steps = ops.take(lengths, number)
            move = lambda _, state: _move(problem, loss, state)  # noqa: E731
            return _check(ops.fori_loop(0, steps, move, state), steps)

        return ops.fori_loop(0, len(windows), climb, state).worst

    def _objective(self, problem: Problem) -> Callable[[Any], Any]:
        classifier, labels = problem.classifier, problem.labels
        ratio = isinstance(self.loss, str) and self.loss == "dlr"
        if (ratio or self.targets is not None) and classifier.encoding == "binary":
            raise ValueError(
                'A binary classifier has no third class and no other target: use `loss="ce"` and '
                f"`targets=None`. Received: loss={self.loss!r}, targets={self.targets}"
            )
        if self.targets is None:
            objective = objectives.logits_ratio if ratio else objectives.crossentropy
            return objective(classifier, labels)
        count = self._target_count(problem.classes)
        rank = problem.round % count
        target = objectives.likeliest_others(labels, problem.clean_outputs, count, rank)
        if ratio:
            return objectives.targeted_logits_ratio(classifier, labels, target)
        return objectives.targeted_crossentropy(classifier, target)

    def describe(self) -> str:
        """The attack in a few words, for tables."""
        loss = self.loss.upper() if isinstance(self.loss, str) else "own loss"
        targets = "" if self.targets is None else f", {self.targets} targets"
        restarts = "" if self.restarts == 1 else f", {self.restarts} restarts"
        return f"APGD-{loss} (norm {self.norm}, {self.steps} steps{targets}{restarts})"


class _Climb(NamedTuple):
    """Where all examples are on their way; `halved` and what follows `steps` at checkpoints."""

    delta: Any
    before: Any
    direction: Any
    # As a multiple of epsilon.
    size: Any
    loss: Any
    rises: Any
    # The point of the highest loss, and that loss now and at the last checkpoint.
    best: Any
    best_direction: Any
    best_loss: Any
    checked_loss: Any
    halved: Any
    # The point that misleads the model most.
    worst: Any
    success: Any


def _ahead(problem: Problem, state: _Climb) -> Any:
    """Where a step leads without momentum."""
    size = ops.cast(by_example(state.size, state.delta), state.delta.dtype)
    return problem.limit(state.delta + size * problem.epsilon * state.direction)


def _move(problem: Problem, loss: Callable[[Any], Any], state: _Climb) -> _Climb:
    """One step, with momentum."""
    delta = state.delta
    moved = delta + 0.75 * (_ahead(problem, state) - delta) + 0.25 * (delta - state.before)
    moved = problem.limit(moved)
    direction, losses, success = problem.slope(moved, loss)
    better = losses > state.best_loss
    better_example = by_example(better, moved)
    worst, success = problem.worse((moved, success), (state.worst, state.success))
    return state._replace(
        delta=moved,
        before=delta,
        direction=direction,
        loss=losses,
        rises=state.rises + ops.cast(losses > state.loss, losses.dtype),
        best=ops.where(better_example, moved, state.best),
        best_direction=ops.where(better_example, direction, state.best_direction),
        best_loss=ops.where(better, losses, state.best_loss),
        worst=worst,
        success=success,
    )


def _check(state: _Climb, window: Any) -> _Climb:
    """At a checkpoint, after a window of so many steps, halve where it is due."""
    rarely = state.rises <= 0.75 * ops.cast(window, state.rises.dtype)
    stuck = ops.logical_not(state.halved) & (state.best_loss <= state.checked_loss)
    halve = rarely | stuck
    return state._replace(
        delta=choose(halve, state.best, state.delta),
        direction=choose(halve, state.best_direction, state.direction),
        size=ops.where(halve, state.size / 2, state.size),
        loss=ops.where(halve, state.best_loss, state.loss),
        rises=ops.zeros_like(state.rises),
        checked_loss=state.best_loss,
        halved=halve,
    )


def _windows(steps: int) -> np.ndarray:
    """The numbers of steps between checkpoints; the last window ends where the steps do."""
    shortest, shrinks = max(int(0.06 * steps), 1), max(int(0.03 * steps), 1)
    windows = [max(int(0.22 * steps), 1)]
    while sum(windows) < steps:
        windows.append(max(windows[-1] - shrinks, shortest))
    windows[-1] -= sum(windows) - steps
    return np.array(windows, "int32")
