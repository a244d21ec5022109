"""Many steps up the gradient of the loss: iterated FGSM, and PGD."""

import dataclasses
from typing import Any

from keras import ops

from keras_parseval._validation import check_flag, check_integer, check_number
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._problem import Problem


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class IteratedFGSM(Attack):
    """Several smaller steps of the fast gradient method, kept within epsilon.

    After each step the perturbation is projected back onto the ball of radius
    epsilon, and clipped to the bounds. With `random_start=True` this is projected gradient
    descent, `kp.attacks.PGD`. See `kp.FGSM` for how attacks are called, and what they leave alone.

    Args:
        steps: Number of steps. Defaults to 10.
        step_size: Size of one step, in the units of the model's input. `None`
            stands for `2.5 * epsilon / steps`, enough to reach
            any point of the ball from any other. Defaults to `None`.
        random_start: Whether to start from a random point of the ball (of its
            surface, with `norm=2`) in place of its centre. Defaults to `False`.
        restarts: How often to start anew, from other random points. For each example the
            restart that misleads the model most is kept. Defaults to 1.
        seed: Integer seed of the random starts. Calls with the same seed start
            from the same points. Defaults to 0.

    The other arguments are those of `kp.FGSM`. Predicted and least likely labels are those of the
    clean examples.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    attack = kp.IteratedFGSM(steps=20, norm=2)
    x, y = keras.random.uniform((16, 8)), keras.ops.zeros(16, "int32")
    x_adv = attack(model, x, y, epsilon=0.5)
    ```
    """

    steps: int = 10
    step_size: float | None = None
    random_start: bool = False
    restarts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("steps", self.steps, "a positive integer", lambda value: value > 0)
        check_flag("random_start", self.random_start)
        check_integer("seed", self.seed, "an integer, 0 or more", lambda value: value >= 0)
        rule = "a positive integer, and 1 unless `random_start` is True: the starts would be equal"
        check_integer(
            *("restarts", self.restarts, rule),
            lambda value: value > 0 and (value == 1 or self.random_start),
        )
        if self.step_size is not None:
            check_number(
                "step_size",
                self.step_size,
                "None or a positive number, in the units of the model's input",
                lambda value: value > 0,
            )

    def rounds(self, classes: int) -> int:
        """One for each start."""
        return self.restarts

    def perturbation(self, problem: Problem) -> Any:
        """The point that the steps of one round come to."""
        if not self.random_start:
            first = problem.limit(self._step(problem) * problem.ascend())
            return self._climb(problem, first, self.steps - 1)
        problem.labels  # noqa: B018 (known before the loop, which could not keep them)
        return self._climb(problem, problem.random(problem.seed), self.steps)

    def _climb(self, problem: Problem, delta: Any, steps: int) -> Any:
        step = self._step(problem)

        def climb(_: Any, delta: Any) -> Any:
            return problem.limit(delta + step * problem.ascend(delta))

        return ops.fori_loop(0, steps, climb, delta) if steps else delta

    def _step(self, problem: Problem) -> Any:
        size = 2.5 / self.steps * problem.epsilon if self.step_size is None else self.step_size
        return ops.cast(size, problem.x.dtype)

    def describe(self) -> str:
        """The attack in a few words, for tables."""
        steps = "" if self.steps == 1 else f", {self.steps} steps"
        restarts = "" if self.restarts == 1 else f", {self.restarts} restarts"
        return f"{super().describe()[:-1]}{steps}{restarts})"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PGD(IteratedFGSM):
    """Projected gradient descent: iterated FGSM from a random point of the ball.

    The attack of Madry et al. It is `kp.IteratedFGSM` with `random_start=True`.

    The other arguments are those of `kp.IteratedFGSM`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = keras.random.uniform((16, 8)), keras.ops.zeros(16, "int32")
    x_adv = kp.attacks.PGD(steps=20, restarts=3)(model, x, y, epsilon=0.1)
    ```

    Reference:

    - [Madry et al., 2018](https://arxiv.org/abs/1706.06083)
    """

    random_start: bool = True
