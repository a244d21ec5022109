"""Many devices do what one does, and a worker that dies takes nobody into an endless wait.

Devices are virtual, all on one CPU, and workers are processes of one machine. Each run
has a process of its own, because devices must be set up before a backend starts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKEND

HERE = Path(__file__).parent
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow's strategies")


def run(script, *arguments, **environment):
    command = [sys.executable, HERE / script, *map(str, arguments)]
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]


def largest_difference(ours, theirs):
    return max(abs(one - other).max() for one, other in zip(ours, theirs, strict=True))


@on_tensorflow
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_train_as_one_device(replicas, tmp_path):
    from replicas import SCENARIOS

    run("replicas.py", replicas, tmp_path / "results.npz")
    results = np.load(tmp_path / "results.npz")
    for name in SCENARIOS:
        one, many = (
            [array for key, array in results.items() if key.startswith(f"{name}/{kind}/")]
            for kind in ("one", "replicas")
        )
        for copies in many:
            assert len(copies) == replicas
            for copy in copies[1:]:
                np.testing.assert_array_equal(copy, copies[0])
        difference = largest_difference(one, [copies[0] for copies in many])
        print(f"{replicas} replicas, {name}: weights differ from one device's by {difference:.1e}")
        assert difference < 1e-5
    metrics = json.loads(str(results["metrics"]))
    assert metrics["replicas"] == pytest.approx(metrics["one"], abs=1e-6)
    assert {"accuracy", "val_accuracy", "val_adv_accuracy_snr20"} < set(metrics["replicas"])
