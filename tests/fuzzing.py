"""What the fuzz tests share: how many examples there are, and what counts as a clear refusal."""

import os

import hypothesis
import keras
import numpy as np
from conftest import BACKEND, to_numpy

# More for a long run: KERAS_PARSEVAL_EXAMPLES=350 python -m pytest -n 0 -s tests/test_fuzz*.py.
FEW = {"tensorflow": 6, "jax": 2}  # where each may take a compilation
EXAMPLES = int(os.environ.get("KERAS_PARSEVAL_EXAMPLES", FEW.get(BACKEND, 15)))
COUNT = {"examples": 0}


def several(times=1.0):
    """As many examples as the run has time for; slow tests take a part of them."""
    return hypothesis.settings(
        deadline=None,
        max_examples=max(3, int(EXAMPLES * times)),
        derandomize="KERAS_PARSEVAL_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


REFUSED = object()
# Keras refuses some inputs itself, in words of its own.
KERAS = ("expected", "Expected", "Could not interpret", "Unknown `config`")
CLEAR = ("Received", "no direction to attack in", *KERAS)


def answer(function, *args, **kwargs):
    """What a call returns; or `REFUSED`, if that was done with an error that can be understood."""
    COUNT["examples"] += 1
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        assert any(words in str(error) for words in CLEAR), repr(error)
        return REFUSED


def is_finite(*structure):
    arrays = [np.asarray(to_numpy(each), "float64") for each in keras.tree.flatten(structure)]
    return all(np.isfinite(array).all() for array in arrays)
