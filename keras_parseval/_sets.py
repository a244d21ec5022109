"""The sets of constrained weights: how far a weight is off its set, and its nearest point."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._convolution_frames import project_tight_convolution
from keras_parseval._precision import finite_float64
from keras_parseval._tight_frames import project_tight_frame
from keras_parseval.constraints import ParsevalConvolution, ParsevalTightFrame, Simplex

# The way to a tight convolution is gone in stages of so many steps. The first is mostly enough
# after training; a long one that leads nowhere is the last. A stage gathers speed as it goes.
_STAGES = (20, 80, 300, 600, 1200)
_LONG = 300


@dataclasses.dataclass(frozen=True, eq=False)
class ConstrainedWeight:
    """A weight that one of the constraints of this library acts on.

    Args:
        variable: The weight.
        values: Its values.
        distance: How far they are off the set: for a tight frame the largest relative error of a
            singular value, for coefficients the largest change that the projection makes.
    """

    variable: Any
    values: np.ndarray
    distance: float

    def nearest(self, tolerance: float) -> Any:
        """A point of the set: the nearest, but for convolutions, where it is one that is near.

        Args:
            tolerance: How far off the set it may be.

        Returns:
            The values, or `None` if the set was not reached.
        """
        constraint, values = self.variable.constraint, self.values
        if isinstance(constraint, Simplex):
            return constraint(values)
        layout = constraint.layout
        if isinstance(constraint, ParsevalTightFrame):
            target = layout.target(values.shape)
            frames = project_tight_frame(layout.to_matrices(values), target)
            return layout.to_kernel(frames, values.shape)
        distance, kernel = self.distance, ops.convert_to_tensor(values, "float32")
        for steps in _STAGES:
            kernel = project_tight_convolution(kernel, **layout.get_config(), steps=steps)
            before, distance = distance, _to_frame(kernel, constraint)
            if distance <= tolerance:
                return kernel
            if steps >= _LONG and distance > 0.9 * before:
                break
        return None


def constrained_weights(model: Any) -> Iterator[ConstrainedWeight]:
    """All weights of a model with a constraint of this library, or an error for NaN."""
    for variable in model.weights:
        constraint = variable.constraint
        if not isinstance(constraint, (ParsevalTightFrame, ParsevalConvolution, Simplex)):
            continue
        values = finite_float64(variable, f"'{variable.path}'")
        distance = _to_simplex if isinstance(constraint, Simplex) else _to_frame
        yield ConstrainedWeight(variable, values, distance(values, constraint))


def _to_simplex(values: np.ndarray, constraint: Simplex) -> float:
    return float(abs(ops.convert_to_numpy(constraint(values)) - values).max())


def _to_frame(values: Any, constraint: ParsevalTightFrame | ParsevalConvolution) -> float:
    matrices = constraint.layout.relative_matrices(values)
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = np.swapaxes(matrices, -1, -2)
    # Faster than to decompose the matrices themselves, and exact enough in double precision.
    squares = np.linalg.eigvalsh(matrices @ np.swapaxes(matrices.conj(), -1, -2))
    return float(abs(np.sqrt(np.maximum(squares, 0.0)) - 1.0).max())
