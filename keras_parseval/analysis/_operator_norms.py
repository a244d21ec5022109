"""Norms of matrices and convolutions as linear operators: certain ones, and estimates."""

import math

import numpy as np


def spectral_norm(matrices):
    """The largest singular value of a matrix, or of a stack of matrices."""
    matrices = np.asarray(matrices)
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = np.swapaxes(matrices, -1, -2)
    gram = matrices @ np.swapaxes(matrices.conj(), -1, -2)
    return math.sqrt(max(0.0, np.linalg.eigvalsh(gram).max()))


def dilate(kernel, dilation):
    """The kernel with the zeros that a dilation puts between its taps."""
    spatial = [(size - 1) * rate + 1 for size, rate in zip(kernel.shape, dilation)]
    dilated = np.zeros((*spatial, *kernel.shape[-2:]))
    dilated[tuple(slice(None, None, rate) for rate in dilation)] = kernel
    return dilated


def estimate_norm(square, shape, tolerance=1e-4, iterations=100):
    """Estimate the 2-norm of a linear operator `A` from below, by Lanczos iteration.

    That is power iteration which remembers its way: the largest eigenvalue of `A^T A` on the
    space of all vectors met so far. Stops when the residual says that an eigenvalue lies
    within `tolerance` of it, relative to its value.

    Args:
        square: Function from `x` to `A^T A x`.
        shape: Shape of an input.
        tolerance: When to stop.
        iterations: When to stop at the latest.
    """
    vector = np.random.default_rng(0).normal(size=shape)
    vector, last = vector / np.linalg.norm(vector), 0.0
    diagonal: list[float] = []
    neighbours: list[float] = []
    for _ in range(min(iterations, vector.size)):
        # Rounding lets vectors drift from the first ones. That slows smaller eigenvalues down,
        # and does the largest no harm.
        image = square(vector).reshape(shape) - (neighbours[-1] * last if neighbours else 0.0)
        diagonal.append(float(np.vdot(image, vector)))
        image = image - diagonal[-1] * vector
        tridiagonal = np.diag(diagonal) + np.diag(neighbours, 1) + np.diag(neighbours, -1)
        values, vectors = np.linalg.eigh(tridiagonal)
        neighbours.append(float(np.linalg.norm(image)))
        if neighbours[-1] * abs(vectors[-1, -1]) <= tolerance * values[-1]:
            break
        vector, last = image / neighbours[-1], vector
    return math.sqrt(max(values[-1], 0.0))


def separable_norm(apply, sizes, norm):
    """The norm of a linear map of images that is one matrix for each axis, such as a resize.

    Each matrix is read from images that vary along its axis alone.

    Args:
        apply: Function from images of shape `(count, *sizes)` to others. It may add a constant.
        sizes: Size of the images along each axis.
        norm: `"inf"` or 2.

    Returns:
        The norm, or `None` if the map is of another kind.
    """
    offset = apply(np.zeros((1, *sizes)))

    def linear(images, cut=()):
        # In parts, because there is an image for each row.
        parts = np.array_split(images, math.ceil(images.size / 2**22))
        return np.concatenate([(apply(part) - offset)[(slice(None), *cut)] for part in parts])

    ones = linear(np.ones((1, *sizes)))[0]
    place = np.unravel_index(np.abs(ones).argmax(), ones.shape)
    if not ones[place]:
        return None
    matrices = []
    for axis, size in enumerate(sizes):
        shape = [size, *np.where(np.arange(len(sizes)) == axis, size, 1)]
        varying = np.broadcast_to(np.eye(size).reshape(shape), (size, *sizes))
        line = (*place[:axis], slice(None), *place[axis + 1 :])
        matrices.append(linear(varying, line).T.astype("float64"))
    # Each matrix came with the sums of the others' rows at this place.
    excess = abs(ones[place]) ** (len(sizes) - 1)
    image = np.random.default_rng(0).normal(size=sizes)
    expected = image
    for axis, matrix in enumerate(matrices):
        expected = np.moveaxis(np.tensordot(matrix, expected, (1, axis)), 0, axis)
    sign = np.sign(ones[place]) ** (len(sizes) - 1)
    if not np.allclose(linear(image[None])[0], expected * sign / excess, atol=1e-4):
        return None
    order = np.inf if norm == "inf" else 2
    return math.prod(np.linalg.norm(matrix, order) for matrix in matrices) / excess


def matrix_of(apply, shape):
    """The matrix of a linear map, or `None` if it is not linear, or mixes examples.

    Args:
        apply: Function from a batch of inputs to a batch of outputs. It may add a constant.
        shape: Shape of an input.
    """
    size = math.prod(shape)
    offset = apply(np.zeros((1, *shape)))
    matrix = apply(np.eye(size).reshape(size, *shape)) - offset
    if len(matrix) != size:
        return None
    matrix = matrix.reshape(size, -1).T.astype("float64")
    inputs = np.random.default_rng(0).normal(size=(2, *shape))
    outputs = apply(inputs) - offset
    expected = inputs.reshape(2, -1) @ matrix.T
    alike = outputs.size == expected.size and np.allclose(
        outputs.reshape(2, -1), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()
    )
    return matrix if alike else None
