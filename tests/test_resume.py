"""A run that is killed and resumed ends in the weights of an undisturbed one, to the bit."""

import json
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


def weights_in(folder):
    return list(np.load(folder / "weights.npz").values())


@pytest.mark.skipif(BACKEND != "tensorflow", reason="to the bit is promised for TensorFlow's CPU")
def test_a_killed_run_resumes_to_the_bit(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    events = np.random.default_rng(KILLS).integers(resumable.EVENTS, size=KILLS).tolist()
    kills = [
        (tmp_path / str(number), ("backup", "checkpoint")[number % 2], event)
        for number, event in enumerate(events)
    ]
    runs = [(undisturbed, "backup", None)]
    for folder, how, event in kills:
        runs += [(folder, how, event), (folder, how, None)]
    for folder, *_ in runs:
        folder.mkdir(exist_ok=True)
    process = subprocess.run(
        [sys.executable, SCRIPT, json.dumps(runs, default=str)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]
    ends = json.loads(process.stdout.splitlines()[-1])
    assert ends == [0] + [-signal.SIGKILL, 0] * KILLS, process.stderr[-3000:]
    for folder, how, event in kills:
        for ours, theirs in zip(weights_in(folder), weights_in(undisturbed), strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"killed at event {event}, {how}")
        print(f"killed at event {event} of {resumable.EVENTS}, resumed from {how}: equal")
