"""A run that is killed and resumed ends in the weights of an undisturbed one, to the bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import resumable
from conftest import BACKEND

SCRIPT = Path(__file__).parent / "resumable.py"
# More for a long run: KERAS_PARSEVAL_KILLS=20 python -m pytest -s tests/test_resume.py.
KILLS = int(os.environ.get("KERAS_PARSEVAL_KILLS", 2))


def run(folder, how, kill=None):
    """Train in a process of its own; how it ended, and the weights if it came to the end."""
    folder.mkdir(exist_ok=True)
    weights = folder / "weights.npz"
    command = [sys.executable, SCRIPT, folder, weights, "--how", how]
    command += [] if kill is None else ["--kill", str(kill)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-2000:]
    return process.returncode, list(np.load(weights).values()) if weights.exists() else None


@pytest.mark.skipif(BACKEND != "tensorflow", reason="to the bit is promised for TensorFlow's CPU")
def test_a_killed_run_resumes_to_the_bit(tmp_path):
    _, undisturbed = run(tmp_path / "undisturbed", "backup")
    points = np.random.default_rng(KILLS).integers(resumable.EVENTS, size=KILLS)
    for number, point in enumerate(points):
        how = ("backup", "checkpoint")[number % 2]
        folder = tmp_path / str(number)
        assert run(folder, how, kill=point) == (-signal.SIGKILL, None)
        code, resumed = run(folder, how)
        assert code == 0
        for ours, theirs in zip(resumed, undisturbed, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"killed at event {point}, {how}")
        print(f"killed at event {point} of {resumable.EVENTS}, resumed from {how}: equal")
