"""What every test file may use: random numbers, and each backend's compiler."""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests run side by side. Threads that wait for those of another process take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# Most of a test on JAX is XLA's work for the processor. Its programs are the same without it.
# So are they without emitters of fused loops, which take a third of a compilation, and more on JAX.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
# Many tests compile the same programs. Those of one run share them, over all its processes.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="keras-parseval-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
# Keras compiles whole training steps with XLA on these; on PyTorch it would start Dynamo.
JIT_COMPILE = BACKEND in ("tensorflow", "jax")


# What these test does not depend on the backend, and each test takes a compilation: PyTorch, which
# needs none, runs all of them, the others one of so many, and none that is marked `once`.
# KERAS_PARSEVAL_ALL=1 runs all everywhere.
SAMPLED = {
    "tensorflow": {
        **{"test_operation_rules": 2, "test_logical_kernels": 4, "test_fuzz_answers": 2},
        "test_conformance": 4,
    },
    "jax": {
        **{"test_operation_rules": 2, "test_logical_kernels": 4, "test_fuzz_answers": 3},
        **{"test_conformance": 4, "test_lipschitz": 2},
    },
}


def pytest_configure(config):
    """Count, in the coverage of a run, what its backend can run, and not what is for others."""
    plugin = config.pluginmanager.get_plugin("_cov")
    if plugin is not None and plugin.cov_controller is not None:
        others = {"tensorflow", "jax", "torch"} - {BACKEND}
        files = [f"keras_parseval/_backend_{other}.py" for other in sorted(others)]
        # Where tests run side by side, a second one unites what their processes have counted.
        for name in ("cov", "combining_cov"):
            if (coverage := getattr(plugin.cov_controller, name, None)) is not None:
                coverage.set_option("report:omit", files)


def pytest_collection_modifyitems(config, items):
    if os.environ.get("KERAS_PARSEVAL_ALL"):
        return
    left_out = set()
    for name, part in SAMPLED.get(BACKEND, {}).items():
        own = [item for item in items if item.module.__name__ == name]
        left_out |= {id(item) for number, item in enumerate(own) if number % part}
    if BACKEND != "torch":
        left_out |= {id(item) for item in items if item.get_closest_marker("once")}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


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
