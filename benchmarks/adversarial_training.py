"""One epoch of `fit`, with and without `AdversarialTraining`.

A step costs 3 forward passes: one forward, and two back, to weights and to activations. Crafting
half a batch costs one more: half a batch forward and half a batch back. So 4/3 is the arithmetic.
"""

import dataclasses

import keras_parseval as kp
from benchmarks.convnet import images, small_convnet
from benchmarks.timing import interleave


@dataclasses.dataclass
class AdversarialTraining:
    """The benchmark of the callback."""

    rounds: int
    title = "An epoch of fit (small convnet, 20 batches of 64, XLA)"
    baseline = "plain fit"

    def run(self):
        """Seconds for each round and contestant."""
        data = images(20 * 64)

        def fit(*callbacks):
            model = small_convnet()
            return lambda: model.fit(*data, batch_size=64, verbose=0, callbacks=callbacks)

        contestants = {
            self.baseline: fit(),
            "AdversarialTraining": fit(kp.AdversarialTraining()),
        }
        return interleave(contestants, self.rounds)
