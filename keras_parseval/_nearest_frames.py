"""The nearest tight frames of long kernels, without a singular value decomposition of the whole."""

from typing import Any

import numpy as np
from keras import ops

from keras_parseval._tight_frames import project_tight_frame

# Rows that are brought to float64 at once, so that a large kernel is never copied as a whole.
_BLOCK = 4096
# How much longer than wide a matrix must be. A 3 x 3 kernel of as many inputs as outputs is.
_LONG = 6
# The Gram matrix squares the condition number. Up to here, float64 leaves an error below 1e-6.
_WELL_CONDITIONED = 1e4


def nearest_frames(matrices: Any, scale: float) -> Any:
    """`project_tight_frame`, by another way for matrices that are much longer than they are wide.

    The polar factor of `W` is `W (W^T W)^(-1/2)`, so that only the smaller Gram
    matrix is decomposed. On JAX and PyTorch that takes less time; TensorFlow's own
    decomposition of the whole is no slower. Not for compiled code.

    Args:
        matrices: Tensor of shape `(..., n, d)`.
        scale: The common singular value.

    Returns:
        Tensor or array of the same shape.
    """
    rows, columns = matrices.shape[-2:]
    if len(matrices.shape) == 2 and min(rows, columns) * _LONG <= max(rows, columns):
        matrix = ops.convert_to_numpy(ops.cast(matrices, "float32"))
        frame = _tall_polar_factor(matrix if rows > columns else matrix.T)
        if frame is not None:
            return scale * (frame if rows > columns else frame.T)
    return project_tight_frame(matrices, scale)


def _tall_polar_factor(matrix: np.ndarray) -> np.ndarray | None:
    """The polar factor by the Gram matrix; `None` if that would not be exact enough."""
    blocks = [matrix[start : start + _BLOCK] for start in range(0, len(matrix), _BLOCK)]
    gram = np.zeros((matrix.shape[1],) * 2)
    for block in blocks:
        block = block.astype("float64")
        gram += block.T @ block
    if not np.isfinite(gram).all():
        return None
    values, vectors = np.linalg.eigh(gram)
    if not values[0] * _WELL_CONDITIONED**2 > values[-1]:
        return None
    inverse_root = (vectors / np.sqrt(values)) @ vectors.T
    return np.concatenate([(block @ inverse_root).astype("float32") for block in blocks])
