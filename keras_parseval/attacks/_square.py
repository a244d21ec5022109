"""The square attack: random search without gradients, for images."""

import dataclasses
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_parseval._validation import check_choice, check_integer, check_number
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._problem import Problem
from keras_parseval.attacks._squares import Squares

# After so many queries of 10,000, the share of the image that changes is halved once more.
_HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Square(Attack):
    """Random search without gradients (Andriushchenko et al., 2020), for images.

    It starts from random stripes (with `norm=2`, from a pattern of bumps), changes a random square
    at a time, and keeps the change if the margin of the label shrinks. The squares become smaller.
    It asks the model for outputs only, and so finds what a model without useful gradients hides.

    `kp.robust_accuracy` drops the examples that are broken every 250 queries. See `kp.FGSM` for how
    attacks are called, and what they leave alone.

    Args:
        queries: How often the model is asked about an example. Defaults to 5,000.
        share: The share of the image that changes at first, in (0, 1]. Defaults to 0.8.
        seed: Integer seed of all that is random. Defaults to 0.

    The other arguments are those of `kp.FGSM`, save that `labels` cannot be `"least_likely"`. What
    shrinks is the margin, whatever the loss.

    Example:

    ```python
    layers = [keras.layers.Flatten(), keras.layers.Dense(5)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = keras.random.uniform((16, 8, 8, 1)), keras.ops.zeros(16, "int32")
    x_adv = kp.attacks.Square(queries=100, bounds=(0, 1))(model, x, y, epsilon=0.1)
    ```

    Reference:

    - [Andriushchenko et al., 2020](https://arxiv.org/abs/1912.00049)
    """

    queries: int = 5000
    share: float = 0.8
    seed: int = 0

    uses_gradient: ClassVar[bool] = False
    continues: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    # How many queries one round has.
    queries_at_a_time: ClassVar[int] = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("labels", self.labels, (None, "true", "predicted"))
        check_integer("queries", self.queries, "a positive integer", lambda value: value > 0)
        rule = "a number in the interval (0, 1]"
        check_number("share", self.share, rule, lambda value: 0 < value <= 1)
        check_integer("seed", self.seed, "an integer, 0 or more", lambda value: value >= 0)

    def check_shape(self, shape: tuple[int | None, ...]) -> None:
        """Raise unless these are images."""
        if len(shape) != 4 or None in shape[1:]:
            raise ValueError(
                "The square attack is for images, of shape (examples, height, width, channels). "
                "For other inputs use `kp.attacks.APGD`, or `kp.attacks.standard(queries=0)`, "
                f"which leaves it out. Received: inputs of shape {shape}"
            )

    def rounds(self, classes: int) -> int:
        """One for every 250 queries, or a part of them."""
        return -(-self.queries // self.queries_at_a_time)

    def perturbation(self, problem: Problem) -> Any:
        """The best that the queries of one round find, from where the last one ended."""
        first = problem.round * self.queries_at_a_time
        squares = Squares(
            problem,
            sides=self._sizes(problem),
            channels_first=self._last_axis_is_width(),
            seed=problem.seed_of_draw(first + 1),
            count=min(self.queries_at_a_time, self.queries),
        )
        start = squares.start(problem.seed_of_draw(first))
        if problem.previous is not None:
            start = ops.where(ops.equal(problem.round, 0), start, problem.previous)

        def ask(number: Any, worst: tuple[Any, Any]) -> tuple[Any, Any]:
            delta = squares.change(worst[0], number, first + number)
            return problem.worse((delta, problem.success(delta)), worst)

        queries = ops.minimum(self.queries_at_a_time, self.queries - first)
        return ops.fori_loop(1, queries, ask, (start, problem.success(start)))[0]

    def _sizes(self, problem: Problem) -> np.ndarray:
        """The side of the square for each query."""
        passed = np.arange(self.queries) / self.queries * 10_000
        halvings = np.searchsorted(_HALVED_AFTER, passed)
        height, width = self._plane(tuple(problem.x.shape))
        sides = np.sqrt(self.share * 0.5**halvings * height * width).round().astype("int32")
        if self.norm == 2:
            # Bumps need a middle.
            sides = np.maximum(sides, 3) // 2 * 2 + 1
        largest = min(height, width)
        return sides.clip(1, largest if self.norm != 2 or largest % 2 else max(1, largest - 1))

    def _plane(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return shape[-2:] if self._last_axis_is_width() else shape[1:3]  # type: ignore[return-value]

    def _last_axis_is_width(self) -> bool:
        return keras.config.image_data_format() == "channels_first"

    def describe(self) -> str:
        """The attack in a few words, for tables."""
        return f"Square (norm {self.norm}, {self.queries} queries)"
