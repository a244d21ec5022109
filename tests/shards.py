"""Trains on one device of JAX, and on several, and writes what came out of both.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python shards.py 2 4 RESULTS

Also compiles the retraction of kernels that lie on several devices, and notes what it sends.
"""

import json
import os
import re
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras import distribution
from parallel import BATCH, SCENARIOS, STEPS, examples, network, train

import keras_parseval as kp

_SENT = re.compile(r"= f32\[([\d,]*)\]\S* (all-gather|all-reduce|collective-permute)(?:-start)?\(")


def distributions(devices):
    """The batch on all devices; or kernels on two, and the batch on the others."""
    names = distribution.list_devices()[:devices]
    mesh = distribution.DeviceMesh((devices // 2, 2), ["batch", "model"], names)
    layouts = distribution.LayoutMap(mesh)
    layouts["dense.*/kernel"] = (None, "model")
    layouts["dense.*/bias"] = ("model",)
    return {
        "DataParallel": distribution.DataParallel(devices=names),
        "ModelParallel": distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"),
    }


def weights_of(parallel, attacked, rows, dtype):
    distribution.set_distribution(parallel)
    model = network(rows, dtype, classes=4)
    train(model, examples(STEPS * BATCH, dtype), attacked)
    if isinstance(parallel, distribution.ModelParallel):
        kernel = model.layers[1].kernel.value
        assert kernel.sharding.shard_shape(kernel.shape)[-1] == kernel.shape[-1] // 2
    distribution.set_distribution(None)
    return model.get_weights()


def sent(shape, axis, devices, rows):
    """What devices send each other in a retraction of a kernel that is split along an axis."""
    spec = [None] * len(shape)
    spec[axis] = "model"
    mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    constraint = jax.jit(
        kp.ParsevalTightFrame(0.1, rows=rows), in_shardings=sharding, out_shardings=sharding
    )
    text = constraint.lower(jax.ShapeDtypeStruct(shape, "float32")).compile().as_text()
    return [(kind, [int(n) for n in size.split(",") if n]) for size, kind in _SENT.findall(text)]


def messages(devices):
    """What is sent for kernels of several shapes; with sampled rows only where all is run."""
    everything = "KERAS_PARSEVAL_ALL" in os.environ
    return {
        f"{'x'.join(map(str, shape))} split along {axis}, rows={rows}": sent(
            shape, axis, devices, rows
        )
        for shape in ((512, 128), (128, 512), (3, 3, 64, 128))
        for axis in (-1, -2)
        for rows in (1.0, 0.25)[: 1 + everything]
    }


def main(counts, results):
    arrays = {f"{devices}/messages": json.dumps(messages(devices)) for devices in counts}
    for name in ("plain, full", "adversarial, sampled"):
        runs = {(1, "one"): None}
        for devices in counts:
            runs |= {(devices, kind): each for kind, each in distributions(devices).items()}
        for (devices, kind), parallel in runs.items():
            weights = weights_of(parallel, **SCENARIOS[name])
            path = f"{devices}/{name}/{kind}"
            arrays |= {f"{path}/{index}": each for index, each in enumerate(weights)}
    np.savez(results, **arrays)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:-1]], sys.argv[-1])
