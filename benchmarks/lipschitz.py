"""How long the Lipschitz bound of a wide residual network takes, by both methods."""

import dataclasses
import time

import keras_parseval as kp


@dataclasses.dataclass
class Lipschitz:
    """The benchmark for one network."""

    depth: int
    width: int

    @property
    def title(self):
        return f"The Lipschitz bound of WRN-{self.depth}-{self.width}"

    def run(self):
        model = kp.models.wide_resnet(self.depth, self.width)
        rows = []
        for method in ("paper", "operator"):
            started = time.perf_counter()
            result = kp.lipschitz_bound(model, method=method)
            seconds = round(time.perf_counter() - started, 1)
            rows.append({"method": method, "seconds": seconds, "bound": f"{result.bound:.4g}"})
        return rows


BENCHMARKS = {"lipschitz_wrn_16_4": Lipschitz(16, 4), "lipschitz_wrn_28_10": Lipschitz(28, 10)}
