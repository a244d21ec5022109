"""The projection onto the simplex, compiled, against the same in NumPy."""

import dataclasses

import keras
import numpy as np

from benchmarks.compiling import compiled_function
from benchmarks.timing import interleave, ratios
from keras_parseval.constraints import project_simplex

SHAPES = [(10,), (1_000,), (1_000_000,), (10_000, 10), (1_000, 1_000)]


@dataclasses.dataclass
class Simplex:
    """The benchmark."""

    rounds: int
    title = "The projection onto the simplex, by shape of the points (XLA)"

    def run(self):
        rows = []
        for shape in SHAPES:
            points = np.random.default_rng(0).normal(size=shape).astype("float32")
            tensor = keras.ops.convert_to_tensor(points)
            project = compiled_function(project_simplex)
            error = np.abs(keras.ops.convert_to_numpy(project(tensor)) - in_numpy(points)).max()
            contestants = {
                "NumPy": lambda points=points: in_numpy(points),
                "project_simplex": lambda tensor=tensor, project=project: (
                    keras.ops.convert_to_numpy(project(tensor))
                ),
            }
            for row in ratios(interleave(contestants, self.rounds), "NumPy"):
                rows.append({"shape": shape, **row, "largest difference": f"{error:.1e}"})
        return rows


def in_numpy(points):
    descending = -np.sort(-points, axis=-1)
    sums, positions = np.cumsum(descending, axis=-1), np.arange(1, points.shape[-1] + 1)
    size = np.sum(1 + positions * descending > sums, axis=-1, keepdims=True)
    tau = (np.take_along_axis(sums, size - 1, axis=-1) - 1) / size
    return np.maximum(points - tau, 0)


BENCHMARKS = {"simplex": Simplex(rounds=21)}
