"""The norm of a convolution of any image size, bounded from a small grid of frequencies."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# Eigenvalues are rounded up by this much at most, which spares most decompositions.
_TOLERANCE = 1e-3
# So many entries of Gram matrices are held at a time, or one matrix for each group.
_PART = 2**20


def grid_norm(
    kernels: np.ndarray, strides: Sequence[int], sizes: Sequence[int] | None = None
) -> tuple[float, bool]:
    """A certain upper bound of the 2-norm of a convolution.

    At each frequency `w` a convolution is a small matrix. The square of its norm is the largest
    eigenvalue of its smaller Gram matrix `G(w)`, and `u* G(w) u` is a trigonometric polynomial of
    degree `k - 1` along an axis with `k` taps. Such a polynomial is nowhere larger than
    `1 / cos(pi (k - 1) / N)` times its largest value on `N` equidistant points (Ehlich and
    Zeller, 1964). With `F` the product of these factors and `c` any number,
    `||G|| <= c + F max ||G - c I||`, the maximum over the points: best for `c` in the middle of
    the eigenvalues there.

    A convolution with padding is a part, a submatrix, of one on a torus that has room for the image
    and its padding. On the torus there are no frequencies but its own, so that the factor of an
    axis is 1.

    Args:
        kernels: Array of shape `(groups, *spatial, inputs, outputs)`, in which every group is a
            convolution of its own. Dilation changes nothing and is left out.
        strides: Stride along each spatial axis.
        sizes: Least size of a torus along each spatial axis. Where it has fewer points than the
            grid, it is taken in its place. Defaults to `None`, images of any size.

    Returns:
        The bound, and whether it is that of the torus, with no factor.
    """
    kernels = _fold_strides(kernels, strides)
    taps = kernels.shape[1:-2]
    # Of these, the product of all factors raises no norm by more than 1%.
    points = [max(1, (11 + 4 * len(taps)) * (tap - 1)) for tap in taps]
    factor = 1.0
    for axis, tap in enumerate(taps):
        torus = math.inf if sizes is None else math.ceil(sizes[axis] / strides[axis])
        if torus <= points[axis]:
            points[axis] = int(torus)
        elif tap > 1:
            factor /= math.cos(math.pi * (tap - 1) / points[axis])
    if not kernels.any():
        return 0.0, factor == 1.0
    grams = _GramMatrices(kernels, points)
    high = spread = _largest_eigenvalue(grams)
    if factor > 1.0:
        # Beyond this share there is nothing to gain from the exact number.
        spread = _largest_eigenvalue(grams.below(high), enough=0.9 * high)
        spread = high if spread > 0.9 * high else spread
    bound = high + (factor - 1.0) * spread / 2
    # A little more, for what double precision lost.
    return math.sqrt(bound) * (1 + 1e-6), factor == 1.0


def _fold_strides(kernels: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Equal convolutions without strides, whose channels are the phases of the input."""
    spatial = kernels.shape[1:-2]
    # A stride beyond the kernel skips what the kernel never sees.
    strides = [min(size, stride) for size, stride in zip(spatial, strides)]
    taps = [math.ceil(size / stride) for size, stride in zip(spatial, strides)]
    padding = [(0, tap * stride - size) for tap, stride, size in zip(taps, strides, spatial)]
    kernels = np.pad(kernels, [(0, 0), *padding, (0, 0), (0, 0)])
    groups, *_, inputs, outputs = kernels.shape
    split = [each for pair in zip(taps, strides) for each in pair]
    kernels = kernels.reshape([groups, *split, inputs, outputs])
    last = 1 + len(split)
    order = [0, *range(1, last, 2), *range(2, last, 2), last, last + 1]
    return kernels.transpose(order).reshape(groups, *taps, -1, outputs)


class _GramMatrices:
    """The smaller Gram matrices at equidistant frequencies: stacks of `(matrices, n, n)`.

    Args:
        kernels: Array of shape `(groups, *taps, inputs, outputs)`, real.
        points: Number of frequencies along each axis.
    """

    def __init__(self, kernels: np.ndarray, points: Sequence[int]):
        *taps, inputs, outputs = kernels.shape[1:]
        if inputs < outputs:
            kernels, inputs, outputs = np.swapaxes(kernels, -1, -2), outputs, inputs
        # The taps of a product of two kernels, all of which so many frequencies tell apart.
        extent = [2 * tap - 1 for tap in taps]
        frequencies = _half_of_frequencies(extent)
        shifts = np.indices(taps).reshape(len(taps), -1)
        kernels = np.moveaxis(kernels, 0, -3).reshape(shifts.shape[1], -1)
        matrices = _transform(frequencies @ shifts, kernels).reshape(-1, inputs, outputs)
        grams = (np.swapaxes(matrices.conj(), -1, -2) @ matrices).reshape(len(frequencies), -1)
        self.size, self.shifts = outputs, np.indices(extent).reshape(len(taps), -1)
        self.shifts -= np.reshape(taps, (-1, 1)) - 1
        # The transform back; a frequency that is left out would add as much as its opposite.
        angles = (frequencies @ self.shifts).T
        weights = np.where(frequencies[:, -1] == 0, 1, 2) / math.prod(extent)
        self.products = (weights * np.cos(angles)) @ grams.real
        self.products -= (weights * np.sin(angles)) @ grams.imag
        self.angles = _half_of_frequencies(points) @ self.shifts

    def __iter__(self) -> Iterator[np.ndarray]:
        count = math.ceil(len(self.angles) * self.products.shape[1] / _PART)
        for angles in np.array_split(self.angles, min(count, len(self.angles))):
            yield _transform(angles, self.products).reshape(-1, self.size, self.size)

    def below(self, high: float) -> Iterator[np.ndarray]:
        """`high I - G` for each matrix `G`."""
        return (high * np.eye(self.size) - stack for stack in self)


def _half_of_frequencies(points: Sequence[int]) -> np.ndarray:
    """Equidistant frequencies, a row each, without the opposites of others along the last axis.

    There, the matrices of a real kernel are the conjugates.
    """
    *first, last = points
    places = np.indices([*first, last // 2 + 1]).reshape(len(points), -1)
    return 2 * np.pi * places.T / np.array(points)


def _transform(angles: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """The sum of `exp(-i angle) tap`, for each row of angles; taps are few and flat."""
    # By real products, because taps are real.
    parts = np.empty((len(angles), taps.shape[1], 2))
    parts[..., 0] = np.cos(angles) @ taps
    parts[..., 1] = -np.sin(angles) @ taps
    return parts.view("complex128")[..., 0]


def _largest_eigenvalue(stacks: Iterable[np.ndarray], enough: float = math.inf) -> float:
    """The largest eigenvalue of Hermitian matrices, rounded up; any above `enough` will do."""
    bound = 0.0
    for stack in stacks:
        bound = _raise_above(stack, bound)
        if bound > enough:
            break
    return bound


def _raise_above(stack: np.ndarray, bound: float) -> float:
    """The bound, raised if a matrix of the stack has a larger eigenvalue.

    All eigenvalues are below a bound if the matrix `bound I - G` has a Cholesky decomposition,
    which takes a small part of the time of eigenvalues. Few matrices exceed those before them.
    """
    try:
        np.linalg.cholesky(bound * np.eye(stack.shape[-1]) - stack)
        return bound
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return max(bound, float(np.linalg.eigvalsh(stack[0])[-1]) * (1 + _TOLERANCE))
    middle = len(stack) // 2
    return _raise_above(stack[middle:], _raise_above(stack[:middle], bound))
