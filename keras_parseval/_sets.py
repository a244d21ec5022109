"""The sets of constrained weights: how far a weight is off its set, and its nearest point."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._precision import finite_float64
from keras_parseval._tight_frames import project_tight_frame
from keras_parseval.constraints import ParsevalTightFrame, Simplex


@dataclasses.dataclass(frozen=True, eq=False)
class ConstrainedWeight:
    """A weight that one of the constraints of this library acts on.

    Args:
        variable: The weight.
        distance: How far it is off its set: for a tight frame the largest relative error of a
            singular value, for coefficients the largest change that the projection makes.
    """

    variable: Any
    distance: float

    def nearest(self) -> Any:
        """The nearest point of the set."""
        constraint = self.variable.constraint
        if isinstance(constraint, Simplex):
            return constraint(self.variable)
        layout, shape = constraint.layout, tuple(self.variable.shape)
        frames = project_tight_frame(layout.to_matrices(self.variable), layout.target(shape))
        return layout.to_kernel(frames, shape)


def constrained_weights(model: Any) -> Iterator[ConstrainedWeight]:
    """All weights of a model with a constraint of this library, or an error for NaN."""
    for variable in model.weights:
        constraint = variable.constraint
        if not isinstance(constraint, (ParsevalTightFrame, Simplex)):
            continue
        values = finite_float64(variable, f"'{variable.path}'")
        distance = _to_simplex if isinstance(constraint, Simplex) else _to_frame
        yield ConstrainedWeight(variable, distance(values, constraint))


def _to_simplex(values: np.ndarray, constraint: Simplex) -> float:
    return float(abs(ops.convert_to_numpy(constraint(values)) - values).max())


def _to_frame(values: np.ndarray, constraint: ParsevalTightFrame) -> float:
    layout = constraint.layout
    matrices = ops.convert_to_numpy(layout.to_matrices(values))
    singular = np.linalg.svd(matrices, compute_uv=False)
    return float(abs(singular / layout.target(values.shape) - 1.0).max())
