"""`robust_accuracy` at 4 and 16 levels, against as many runs of `predict`.

With n levels there are n forward passes, one more for the clean accuracy and one back for
the gradient: (n + 2) / n is the arithmetic.
"""

import dataclasses

import keras_parseval as kp
from benchmarks.convnet import images, small_convnet
from benchmarks.timing import interleave

BATCH = 128


@dataclasses.dataclass
class RobustAccuracy:
    """The benchmark for a number of levels."""

    levels: int
    rounds: int

    @property
    def title(self):
        return f"Accuracy at {self.levels} levels (small convnet, 1,024 images, XLA)"

    @property
    def baseline(self):
        return f"{self.levels} x predict"

    def run(self):
        """Seconds for each round and contestant."""
        model, (x, y) = small_convnet(), images(1024)

        def predict():
            for _ in range(self.levels):
                model.predict(x, batch_size=BATCH, verbose=0)

        def measure():
            snr = [50 - 2 * level for level in range(self.levels)]
            kp.robust_accuracy(model, x, y, snr=snr, batch_size=BATCH, verbose=0)

        return interleave({self.baseline: predict, "robust_accuracy": measure}, self.rounds)
