"""What XLA makes of a training step for a GPU that need not be there.

The compiler for GPUs is part of `jax[cuda12]`; told what device to compile for (an H100), it needs
none. It says how many kernels the device would run, how much arithmetic, how much memory.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path

import keras

import keras_parseval as kp
from benchmarks import convolution, networks
from benchmarks.constraint import OURS

DEVICE = Path(__file__).parent / "h100.txtpb"


@dataclasses.dataclass
class Gpu:
    """The benchmark for one network.

    Args:
        name: What the network is called.
        batch: Number of images in a step.
        contestants: By name, a function that returns a compiled model, and callbacks.
    """

    name: str
    batch: int
    contestants: dict

    @property
    def title(self):
        return f"A training step of {self.name} (batch {self.batch}), compiled for an H100"

    def run(self):
        if keras.backend.backend() != "jax":
            print("gpu is left out: it compiles through JAX (KERAS_BACKEND)", file=sys.stderr)
            return []
        try:
            sharding = device_sharding()
        except Exception as error:  # Without the compiler, JAX fails in its own ways.
            print(f"gpu is left out: it needs jax[cuda12] ({error})", file=sys.stderr)
            return []
        return [
            {"contestant": name, **_measures(make(), self.batch, callbacks, sharding)}
            for name, (make, callbacks) in self.contestants.items()
        ]


def _residual(contestant):
    return lambda: networks.compiled(
        networks.with_hidden_layers(networks.wide_resnet(), OURS[contestant])
    )


def _convolutional(network, contestant):
    return lambda: networks.compiled(convolution.constrained(network(), contestant))


def device_sharding():
    """Where to put everything: on the one device that is compiled for."""
    import jax
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda",
        topology_name="1x1x1",
        topology="1x1x1",
        target_config=DEVICE.read_text(),
    )
    return jax.sharding.SingleDeviceSharding(topology.devices[0])


def _measures(model, batch, callbacks, sharding):
    import jax

    from benchmarks.steps import step_and_arguments

    step, arguments = step_and_arguments(model, batch, *callbacks)
    shapes = jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(step, donate_argnums=0, out_shardings=sharding).lower(*shapes)
    compiled = lowered.compile()
    return {
        "kernels": kernels_of(compiled.as_text()),
        "GFLOP": round(jax.jit(step).lower(*arguments).cost_analysis()["flops"] / 1e9, 1),
        "temporary MB": round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 1),
    }


def kernels_of(text):
    """How many kernels a compiled program starts: fusions, and calls of libraries."""
    entry = text[text.index("ENTRY") :]
    return len(re.findall(r"= .*? (?:fusion|custom-call|copy|sort|scatter|while)\(", entry))


# Autotuning would time kernels on the device that is not there, which JAX would look for first.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

FRAME, OPERATOR = "ParsevalTightFrame", "ParsevalConvolution"
BENCHMARKS = {
    "gpu": Gpu(
        "WRN-16-4",
        64,
        {
            "plain": (_residual("plain"), []),
            "Parseval": (_residual(f"{FRAME}()"), []),
            "Parseval, AdversarialTraining": (
                _residual(f"{FRAME}()"),
                [kp.AdversarialTraining()],
            ),
            OPERATOR: (_convolutional(networks.wide_resnet, OPERATOR), []),
        },
    ),
    "gpu_convnet": Gpu(
        "lipschitz_convnet",
        256,
        {
            name: (_convolutional(kp.models.lipschitz_convnet, name), [])
            for name in ("plain", FRAME, OPERATOR)
        },
    ),
}
