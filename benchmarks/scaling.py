"""What one retraction costs, by the width of a square kernel and by the share of rows.

The arithmetic is 4 n^2 d operations for n rows of d numbers. What the machine could do with them is
taken from a product of two matrices of that width.
"""

import dataclasses
import statistics

import keras

import keras_parseval as kp
from benchmarks.compiling import compiled_function
from benchmarks.timing import interleave

WIDTHS = (256, 512, 1024, 2048, 4096)
SHARES = (1.0, 0.3, 0.1)


@dataclasses.dataclass
class Scaling:
    """The benchmark."""

    rounds: int
    title = "One retraction, by width and share of rows (XLA)"

    def run(self):
        return [row for width in WIDTHS for row in self._width(width)]

    def _width(self, width):
        kernel = kp.TightFrame(seed=0)((width, width))
        contestants = {"product": lambda kernel: kernel @ kernel}
        contestants |= {share: kp.ParsevalTightFrame(rows=share, unbiased=True) for share in SHARES}
        runs = {name: _timed(function, kernel) for name, function in contestants.items()}
        times = interleave(runs, self.rounds)
        seconds = {
            name: statistics.median(each.processors for each in rounds)
            for name, rounds in times.items()
        }
        speed = 2 * width**3 / seconds["product"]
        for share in SHARES:
            operations = 4 * round(share * width) ** 2 * width
            yield {
                "width": width,
                "rows": share,
                "ms": round(1000 * seconds[share], 2),
                "ms by arithmetic": round(1000 * operations / speed, 2),
                "ratio": round(seconds[share] * speed / operations, 2),
            }


def _timed(function, kernel):
    function = compiled_function(function)
    return lambda: keras.ops.convert_to_numpy(function(kernel)[0, 0])


BENCHMARKS = {"scaling": Scaling(rounds=5)}
