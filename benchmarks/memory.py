"""The memory of a compiled training step with and without the constraint, as XLA plans it."""

import dataclasses
import math
import sys

import keras

from benchmarks import networks
from benchmarks.constraint import OURS

NETWORKS = {
    "MLP 4 x 2048, batch 100": (lambda: networks.multilayer(4, 2048), 100),
    "MLP 2 x 8192, batch 256": (lambda: networks.multilayer(2, 8192), 256),
    "small convnet, batch 64": (networks.small_convnet, 64),
    "WRN-16-4, batch 16": (networks.wide_resnet, 16),
}


@dataclasses.dataclass
class Memory:
    """The benchmark."""

    title = "Temporary memory of a compiled training step (MB)"

    def run(self):
        if keras.backend.backend() != "jax":
            print(
                "memory is left out: XLA tells it through JAX; KERAS_BACKEND=jax", file=sys.stderr
            )
            return []
        return [row for name in NETWORKS for row in self._network(name)]

    def _network(self, name):
        from benchmarks.steps import compiled_step

        network, batch = NETWORKS[name]
        base, plain = network(), None
        largest = max(math.prod(v.shape) * 4 for v in base.trainable_variables) / 1e6
        for contestant in list(OURS)[:4]:
            model = networks.with_hidden_layers(base, OURS[contestant])
            analysis = compiled_step(networks.compiled(model), batch).memory_analysis()
            megabytes = analysis.temp_size_in_bytes / 1e6
            plain = megabytes if plain is None else plain
            yield {
                "network": name,
                "contestant": contestant,
                "MB": round(megabytes, 1),
                "more than plain": round(megabytes - plain, 1),
                "two copies of the largest kernel": round(2 * largest, 1),
            }


BENCHMARKS = {"memory": Memory()}
