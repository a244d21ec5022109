"""A model that is trained and evaluated again and again needs neither more memory nor compilers."""

import gc
import mmap
import os

import keras
import pytest
from classifiers import CLASSES, FEATURES, points
from conftest import BACKEND, JIT_COMPILE

import keras_parseval as kp

# For a long run: KERAS_PARSEVAL_ROUNDS=200 python -m pytest -n 0 -s tests/test_soak.py.
ROUNDS = int(os.environ.get("KERAS_PARSEVAL_ROUNDS", 12))
WARM_UP = max(3, ROUNDS // 5)


class Counter(keras.layers.Layer):
    """Counts how often the model is traced; compiled code does not run this line."""

    traces = 0

    def call(self, inputs):
        Counter.traces += 1
        return inputs


@kp.analysis.lipschitz_rule(Counter)
def counter_constant(layer, call):
    return 1.0


def network():
    constraint = kp.ParsevalTightFrame(0.1, rows=0.5)
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(8, "relu", kernel_constraint=constraint)(Counter()(inputs))
    x = kp.ConvexAdd()([x, keras.layers.Dense(8, "relu", kernel_constraint=constraint)(x)])
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
    return model


def resident_memory():
    """What this process holds, in bytes."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="memory is read from /proc"
)


@needs_proc
def test_what_is_measured_is_the_memory_that_is_held():
    before = resident_memory()
    # Pages of its own: an array may be put where another one was, which the process still holds.
    # Many of them: what earlier tests left may be given back meanwhile.
    held = mmap.mmap(-1, 2**29)
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1
    assert resident_memory() - before > len(held) / 2
    held.close()


@needs_proc
def test_memory_and_compilations_stay_flat():
    model, (x, y) = network(), points(24)
    memory, traces = [], []
    for _ in range(ROUNDS):
        # New callbacks for each fit, as a user's loop would have them.
        callbacks = [kp.AdversarialTraining(), kp.AdversarialEvaluation(x, y, snr=20)]
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[*callbacks, kp.SpectrumLogger()])
        kp.robust_accuracy(model, x, y, snr=(30, 20), attack=kp.IteratedFGSM(), verbose=0)
        kp.FGSM()(model, x, epsilon=0.1)
        kp.certified_accuracy(model, x, y, epsilon=0.1, verbose=0)
        memory.append(resident_memory())
        traces.append(Counter.traces)
    growth = memory[-1] / memory[WARM_UP - 1] - 1
    print(
        f"{ROUNDS} fits and evaluations on {BACKEND}: memory grew by {growth:.2%} after the first "
        f"{WARM_UP}, from {memory[WARM_UP - 1] / 2**20:.0f} MB; {traces[WARM_UP - 1]} traces then, "
        f"{traces[-1]} at the end"
    )
    assert growth < 0.05
    assert traces[0] > 0
    if BACKEND != "torch":  # which runs every line, every time
        assert traces[-1] == traces[WARM_UP - 1]
