"""Seeds that are told, not counted: the same numbers give the same draws, whoever resumes."""

from typing import Any

import keras
from keras import ops

from keras_parseval._backend import SEED_DTYPE

_RESTARTS_APART = 1_000_003
_DRAWS_APART = 7_919


class Seed(keras.random.SeedGenerator):
    """A seed of two numbers, either of which may be a tensor of the compiled code around it.

    Unlike a `SeedGenerator` of Keras it has no state: a compiled function needs none to be tracked,
    and what it draws depends on nothing that came before.
    """

    def __init__(self, first: Any, second: Any = 0):
        # Not the constructor of Keras, which makes a variable.
        self.words = first, second

    def next(self, ordered: bool = True) -> Any:
        """The two numbers, every time."""
        return ops.stack([ops.cast(ops.convert_to_tensor(each), SEED_DTYPE) for each in self.words])

    def restart(self, number: Any) -> "Seed":
        """The seed of the restart with this number; that of restart 0 is the seed itself."""
        first, second = self.words
        return Seed(first + _RESTARTS_APART * number, second)

    def draw(self, number: Any) -> "Seed":
        """The seed of the draw with this number, where one attempt draws many times."""
        first, second = self.words
        return Seed(first, second + _DRAWS_APART * number)
