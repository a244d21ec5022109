"""Convolutions as matrices, entry by entry."""

import itertools
import math

import numpy as np


def matrix_of_convolution(kernel, sizes, strides, groups=1, padding="wrap", dilation=1):
    """The matrix of `y[n] = sum_j K[j] x[s n + d j - before]`, from inputs to outputs.

    Args:
        kernel: Array of shape `(*spatial, inputs, outputs)`.
        sizes: Size of the input along each axis.
        strides: Stride along each axis.
        groups: Number of groups.
        padding: `"wrap"` for an image with its ends joined, `"same"` for zeros around it, half of
            the kernel on each side.
        dilation: Distance of the taps.
    """
    *spatial, inputs, outputs = kernel.shape
    inputs, outputs = inputs * groups, outputs // groups
    counts = [-(-size // stride) for size, stride in zip(sizes, strides)]
    matrix = np.zeros((*counts, groups, outputs, *sizes, groups, inputs // groups))
    taps = np.moveaxis(kernel.reshape(*spatial, inputs // groups, groups, outputs), -3, -1)
    for place in itertools.product(*map(range, counts)):
        for tap in itertools.product(*map(range, spatial)):
            before = [0 if padding == "wrap" else (dilation * (n - 1)) // 2 for n in spatial]
            source = [s * n + dilation * j - b for s, n, j, b in zip(strides, place, tap, before)]
            inside = all(0 <= at < size for at, size in zip(source, sizes))
            if padding == "wrap":
                source = [at % size for at, size in zip(source, sizes)]
            elif not inside:
                continue
            for group in range(groups):
                rows, columns = (*place, group), (*source, group)
                matrix[(*rows, slice(None), *columns)] += taps[tap][group]
    return matrix.reshape(math.prod(counts) * groups * outputs, -1)


def smallest_torus(kernel, strides):
    """The torus on which a kernel is tight only if it is so on every other, and its strides."""
    spatial = kernel.shape[:-2]
    strides = [min(stride, size) for stride, size in zip(strides, spatial)]
    return [s * (2 * -(-size // s) - 1) for size, s in zip(spatial, strides)], strides


def error_of(matrix):
    """`||W W^T - I||_F`, with the smaller Gram matrix."""
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return np.linalg.norm(gram - np.eye(len(gram)))
