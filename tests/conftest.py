"""What every test file may use: random numbers, and each backend's compiler."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests run side by side. Threads that wait for those of another process take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
# Keras compiles whole training steps with XLA on these; on PyTorch it would start Dynamo.
JIT_COMPILE = BACKEND in ("tensorflow", "jax")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def keras_seed():
    keras.utils.set_random_seed(0)


def compiled(function):
    """The function under XLA where the backend has it."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def to_numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def singular_values(matrix):
    return np.linalg.svd(np.asarray(matrix, dtype="float64"), compute_uv=False)
