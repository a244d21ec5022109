"""Many devices do what one does, and a worker that dies takes nobody into an endless wait.

Devices are virtual, all on one CPU, and workers are processes of one machine. They
have processes of their own, because devices must be set up before a backend starts.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKEND

HERE = Path(__file__).parent
# How many devices there are, beside one.
COUNTS = (2, 4)
# Seconds in which a worker must notice that another is gone; TensorFlow takes about ten.
PATIENCE = 120
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="for TensorFlow's strategies")


def run(script, *arguments, **environment):
    command = [sys.executable, HERE / script, *map(str, arguments)]
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]


def largest_difference(ours, theirs):
    return max(abs(one - other).max() for one, other in zip(ours, theirs, strict=True))


def under(results, *path):
    """The arrays whose names begin with this path."""
    prefix = "/".join(map(str, path)) + "/"
    return [array for key, array in results.items() if key.startswith(prefix)]


@on_tensorflow
@pytest.mark.parametrize("replicas", COUNTS)
def test_replicas_train_as_one_device(replicas, tmp_path):
    run("replicas.py", replicas, tmp_path / "results.npz")
    results = dict(np.load(tmp_path / "results.npz"))
    scenarios = {key.split("/")[0] for key in results} - {"metrics"}
    assert "adversarial, sampled" in scenarios and (replicas > 2 or len(scenarios) == 4)
    for name in scenarios:
        one, many = (under(results, name, kind) for kind in ("one", "replicas"))
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


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = ["{}:{}".format(*each.getsockname()) for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def start_workers(folder, options=((), ())):
    """Two processes that train together."""
    cluster = {"worker": free_addresses(len(options))}
    processes = []
    for index, arguments in enumerate(options):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", folder, *arguments],
            env={**os.environ, "TF_CONFIG": json.dumps(task)},
            stderr=(folder / f"errors{index}").open("w"),
        )
        processes.append(process)
    return processes


@on_tensorflow
def test_workers_go_on_after_one_was_killed(tmp_path):
    processes = start_workers(tmp_path, ((), ("--kill", "1")))
    survivor, victim = processes
    try:
        assert victim.wait(3 * PATIENCE) == -signal.SIGKILL
        death = time.monotonic()
        assert survivor.wait(PATIENCE) == 1
        print(f"the survivor ended {time.monotonic() - death:.0f} seconds after the other worker")
        assert "Collective ops is aborted" in (tmp_path / "errors0").read_text()
        processes += start_workers(tmp_path)
        for process, errors in zip(processes[2:], ("errors0", "errors1")):
            assert process.wait(3 * PATIENCE) == 0, (tmp_path / errors).read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
    first, second = (dict(np.load(tmp_path / f"weights{index}.npz")) for index in range(2))
    assert first["epochs"].tolist() == [2, 3]
    for name, weights in first.items():
        np.testing.assert_array_equal(weights, second[name])


@pytest.mark.skipif(BACKEND != "jax", reason="for the distributions of Keras, which JAX has")
def test_shards_train_as_one_device(tmp_path):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={max(COUNTS)}"
    results_file = tmp_path / "results.npz"
    run("shards.py", *COUNTS, results_file, XLA_FLAGS=flags, JAX_ENABLE_X64="1")
    results = dict(np.load(results_file))
    for name in ("plain, full", "adversarial, sampled"):
        one = under(results, 1, name, "one")
        for devices, kind in itertools.product(COUNTS, ("DataParallel", "ModelParallel")):
            difference = largest_difference(one, under(results, devices, name, kind))
            print(f"{kind} on {devices}, {name}: weights differ by {difference:.1e}")
            assert difference < 1e-5
    for devices in COUNTS:
        messages = json.loads(str(results[f"{devices}/messages"]))
        for name, sent in messages.items():
            print(f"{name}, {devices} devices: {sent}")
        # Split along its longer side, a kernel stays where it is: its Gram matrix is summed up.
        for kernel in ("512x128 split along -2", "128x512 split along -1"):
            assert messages[f"{kernel}, rows=1.0"] == [["all-reduce", [128, 128]]]
