"""Auto-PGD is no weaker than PGD, and a suite no weaker than its parts, whatever the model."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from conftest import BACKEND
from digit_models import Misleading, attacked, convnet, train

import keras_parseval as kp

A = kp.attacks
EXAMPLES = int(os.environ.get("KERAS_PARSEVAL_ATTACKED", 48))
LEVELS = {"inf": (0.06, 0.12), 2: (0.4, 0.8)}
# Only PyTorch, which compiles nothing, attacks all models in both norms.
ALL = BACKEND == "torch" or EXAMPLES > 500


def hardened():
    callback = kp.AdversarialTraining(A.PGD(steps=5, bounds=(0, 1)), epsilon=0.1, ratio=1.0)
    return train(convnet(), callbacks=[callback])


def tight():
    options = {"kernel_initializer": kp.TightConvolution()}
    return train(convnet(kernel_constraint=kp.ParsevalConvolution(), **options))


MAKERS = {
    "plain": lambda: train(convnet()),
    "hardened": hardened,
    "tight": tight,
    "masked": lambda: train(convnet(Misleading())),
}
MODELS = [name for name in MAKERS if ALL or name == "plain"]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    keras.utils.set_random_seed(0)
    return MAKERS[request.param]()


@pytest.fixture(scope="module")
def masked():
    keras.utils.set_random_seed(0)
    return MAKERS["masked"]()


def measured(model, attack):
    x, y = attacked(EXAMPLES)
    return kp.robust_accuracy(
        model, x, y, epsilon=LEVELS[attack.norm], attack=attack, batch_size=EXAMPLES, verbose=0
    )


@pytest.mark.parametrize("norm", LEVELS if ALL else ["inf"])
def test_auto_pgd_is_no_weaker_than_pgd(model, norm):
    options = {"norm": norm, "bounds": (0, 1), "steps": 100}
    ours, plain = (measured(model, kind(**options)) for kind in (A.APGD, A.PGD))
    assert ours.clean > 0.8
    # From other points, one example more or less may fall.
    luck = 1.5 / EXAMPLES
    assert all(mine <= other + luck for mine, other in zip(ours.accuracies, plain.accuracies))


@pytest.mark.parametrize("norm", LEVELS if ALL else ["inf"])
def test_a_suite_is_no_weaker_than_its_parts(model, norm):
    suite = A.standard(norm, steps=20, targets=2, queries=50)
    worst = measured(model, suite)
    parts = [measured(model, part) for part in suite.members()]
    for level, accuracy in enumerate(worst.accuracies):
        assert accuracy <= min(part.accuracies[level] for part in parts)
    assert worst.accuracies[-1] < worst.clean


def test_random_search_finds_what_masked_gradients_hide(masked):
    result = measured(masked, A.standard(steps=20, targets=3, queries=500))
    broken_last = (result.details.broken_by[-1] == 2).mean()
    assert broken_last > 0.1
    assert any("masks its gradients" in warning for warning in result.warnings)


SAME_ON_ALL = """
import sys
import keras, numpy as np
import keras_parseval as kp
from digit_models import attacked
model = keras.saving.load_model(sys.argv[1])
x, y = attacked(int(sys.argv[2]))
attack = kp.attacks.standard(steps=int(sys.argv[3]), targets=3, queries=int(sys.argv[4]))
result = kp.robust_accuracy(model, x, y, epsilon=(0.06, 0.12), attack=attack, verbose=0)
parts = [(result.details.broken_by == number).mean(axis=1) for number in range(3)]
print("RESULT", *result.accuracies, *np.concatenate(parts))
"""


@pytest.mark.skipif(EXAMPLES <= 500 or BACKEND != "tensorflow", reason="takes all backends long")
def test_backends_agree(tmp_path):
    path = tmp_path / "model.keras"
    MAKERS["hardened"]().save(path)
    found = {}
    for backend in ("tensorflow", "jax", "torch"):
        settings = [str(path), str(EXAMPLES), "100", "500"]
        folders = [os.path.dirname(__file__), *sys.path]
        environment = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(folders)}
        printed = subprocess.run(
            [sys.executable, "-c", SAME_ON_ALL, *settings],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (line,) = (line for line in printed.splitlines() if line.startswith("RESULT"))
        found[backend] = np.array(line.split()[1:], "float64")
        print(backend, np.round(100 * found[backend], 2), flush=True)
    spread = np.ptp(list(found.values()), axis=0)[:2]
    assert (spread <= 0.01).all()
