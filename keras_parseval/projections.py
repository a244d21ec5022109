"""Steps towards, and projections onto, tight frames and the simplex.

Pure functions of tensors, for constraints and for those who write their own
loops. To "project" is to move to the nearest point, a "step" goes part of the way.
"""

import functools

import keras
from keras import ops

from keras_parseval._validation import check_beta, check_integer, check_scale
from keras_parseval.sampling import sample_units

# So many coefficients are sorted by comparing each with each.
FEW_COEFFICIENTS = 16


def _float32_or_better(tensor):
    """The tensor in float32, or in float64 if that is what it has."""
    tensor = ops.convert_to_tensor(tensor)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise TypeError(
            "Weights must be floating-point numbers to be moved; cast them with "
            f'`keras.ops.cast(x, "float32")`. Received: dtype={dtype}'
        )
    return tensor if dtype == "float64" else ops.cast(tensor, "float32")


def _keep_dtype(function):
    """Let `function` work in float32 or better, and return the dtype that came in."""

    @functools.wraps(function)
    def wrapper(tensor, *args, **kwargs):
        tensor = ops.convert_to_tensor(tensor)
        return ops.cast(function(_float32_or_better(tensor), *args, **kwargs), tensor.dtype)

    return wrapper


@_keep_dtype
def tight_frame_step(matrix, beta, scale=1.0):
    """One step of the retraction towards a tight frame.

    Computes `W + beta (W - W W^T W / scale**2)`, the update of Parseval
    training. It leaves the singular vectors alone and takes every singular
    value `t` to `t (1 + beta - beta t**2 / scale**2)`, which draws it towards
    `scale`. The map diverges from singular values above
    `scale (1 + 2 / beta)**0.5`; `beta` is therefore lowered, when it has to
    be, to half the inverse of an upper bound on `(t / scale)**2`. From any start, no
    singular value then ends above its start or above `scale`, whichever is larger, and none
    is shrunk by more than a half.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall; `W` and its
            transpose take the same step. Reshape the kernel of a
            convolution to `(-1, outputs)` first.
        beta: Step size in (0, 0.5].
        scale: The singular value to aim at.

    Returns:
        Tensor with the shape and dtype of `matrix`.

    Example:

    ```python
    matrix = keras.random.normal((64, 128))
    for _ in range(100):
        matrix = kp.tight_frame_step(matrix, beta=0.5)
    keras.ops.svd(matrix, compute_uv=False)  # all ones
    ```
    """
    return _retract(_check_rank(matrix), check_beta(beta), check_scale(scale))


@_keep_dtype
def sampled_tight_frame_step(matrix, beta, count, scale=1.0, unbiased=False):
    """`tight_frame_step` on a random subset of the rows; the others stay as they are.

    The subset is of columns where the matrix has fewer of these: there the
    frame is tight on the other side. It is drawn anew from the matrix's own
    content, so it needs no seed and differs from update to update.

    Args:
        matrix: Tensor of shape `(..., n, d)`. Matrices of a batch share the
            subset's indices.
        beta: Step size in (0, 0.5].
        count: Number of rows (or columns) in the subset, 2 or more.
        scale: The singular value to aim at.
        unbiased: Two rows are made orthogonal only when both are drawn, with
            probability `count (count - 1) / (n (n - 1))`. If true, `beta` is
            divided by that, at most up to 0.5, so that any two rows move towards
            orthogonality as fast as they would under the full step, on average.

    Returns:
        Tensor with the shape and dtype of `matrix`.

    Example:

    ```python
    kernel = keras.random.normal((512, 512))
    kernel = kp.sampled_tight_frame_step(kernel, beta=1e-3, count=51, unbiased=True)
    ```
    """
    beta, scale = check_beta(beta), check_scale(scale)
    axis = -2 if _is_wide(_check_rank(matrix)) else -1
    units = matrix.shape[axis]
    _check_count(count, units)
    if unbiased and count < units:
        beta = min(0.5, beta * (units * (units - 1)) / (count * (count - 1)))
    chosen = sample_units(matrix, count, axis)
    step = _retract(ops.take(matrix, chosen, axis=axis), beta, scale)
    return _replace(matrix, chosen, step, axis)


def _replace(matrix, chosen, step, axis):
    """The matrix with the rows (axis -2) or columns (axis -1) of `step` in the chosen places."""
    if axis == -2 and len(matrix.shape) == 2:
        return ops.scatter_update(matrix, chosen[:, None], step)
    # These do not lie together in memory: to write the matrix anew is faster than to scatter.
    count, units = chosen.shape[0], matrix.shape[axis]
    places = ops.full((units,), count, dtype="int32")
    places = ops.scatter_update(places, chosen[:, None], ops.arange(count, dtype="int32"))
    replaced = places < count if axis == -1 else (places < count)[:, None]
    return ops.where(replaced, ops.take(step, ops.minimum(places, count - 1), axis=axis), matrix)


def _check_count(count, rows):
    check_integer(
        "count",
        count,
        f"a number of rows between 2 and {rows}, the shorter side of the matrix: one row alone "
        "is never made orthogonal to another",
        lambda value: min(2, rows) <= value <= rows,
    )


def _retract(matrix, beta, scale):
    """The retraction, with the safeguard that `tight_frame_step` describes."""
    gram = _small_gram(matrix) / scale**2
    # The largest absolute row sum is never below the largest eigenvalue.
    bound = ops.max(ops.sum(ops.abs(gram), axis=-1, keepdims=True), axis=-2, keepdims=True)
    beta = ops.minimum(ops.cast(beta, matrix.dtype), 0.5 / bound)
    # Beta comes last: no copy of the Gram matrix is made for it.
    image = gram @ matrix if _is_wide(matrix) else matrix @ gram
    step = matrix + beta * (matrix - image)
    # The third power of a larger kernel may not be a number in float32; half of it does no harm.
    too_large = ops.logical_and(bound > 1e24, ops.isfinite(bound))
    return ops.where(too_large, matrix / 2, step)


def _small_gram(matrix):
    """`W W^T` or `W^T W`, whichever is smaller: they share their nonzero eigenvalues."""
    transposed = ops.swapaxes(matrix, -1, -2)
    return matrix @ transposed if _is_wide(matrix) else transposed @ matrix


def _is_wide(matrix):
    return matrix.shape[-2] <= matrix.shape[-1]


def tight_frame_penalty(matrix, beta, scale=1.0):
    """The penalty whose gradient step of size 1 is the step of `tight_frame_step`.

    Computes `beta / 4 * scale**2 * ||W W^T / scale**2 - I||_F**2`, over the
    smaller of the two Gram matrices, summed over a batch of matrices.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall.
        beta: Weight of the penalty.
        scale: The singular value to aim at.

    Returns:
        Scalar tensor, in float32 or better.
    """
    gram = _small_gram(_check_rank(_float32_or_better(matrix))) / scale**2
    excess = gram - ops.eye(gram.shape[-1], dtype=gram.dtype)
    return beta / 4 * scale**2 * ops.sum(ops.square(excess))


@_keep_dtype
def project_tight_frame(matrix, scale=1.0):
    """The nearest tight frame: the polar factor, by singular value decomposition.

    Solves `min_X ||X - W||_F` over all `X` whose singular values equal `scale`.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall. Reshape the kernel
            of a convolution to `(-1, outputs)` first.
        scale: The common singular value.

    Returns:
        Tensor with the shape and dtype of `matrix`. A matrix that holds NaN or
        infinity becomes NaN throughout.

    Example:

    ```python
    frame = kp.project_tight_frame(keras.random.normal((64, 128)))
    keras.ops.matmul(frame, keras.ops.transpose(frame))  # the identity
    ```
    """
    scale = check_scale(scale)
    finite = ops.all(ops.isfinite(_check_rank(matrix)), axis=(-2, -1), keepdims=True)
    left, _, right = ops.svd(ops.where(finite, matrix, 0.0), full_matrices=False)
    return ops.where(finite, scale * (left @ right), float("nan"))


def _check_rank(matrix):
    if len(matrix.shape) < 2:
        raise ValueError(
            "`matrix` must have rank 2 or more: the last two axes are the rows and the columns. "
            f"Received: shape={tuple(matrix.shape)}"
        )
    if 0 in matrix.shape:
        raise ValueError(f"`matrix` must not be empty. Received: shape={tuple(matrix.shape)}")
    return matrix


@_keep_dtype
def project_simplex(points, axis=-1):
    """The nearest point of the simplex, along an axis.

    Solves `min_p ||p - a||_2` over all `p >= 0` that sum to 1. The solution is
    `max(0, a - tau)`, where `tau` makes the sum 1 (Duchi et al., 2008).

    Args:
        points: Tensor of any rank above 0.
        axis: The axis along which the coefficients lie.

    Returns:
        Tensor with the shape and dtype of `points`. Points that hold NaN or
        infinity become NaN throughout.

    Example:

    ```python
    kp.project_simplex([0.8, 0.6, -1.0])  # [0.6, 0.4, 0.0]
    ```
    """
    _check_axis(points, axis)
    finite = ops.all(ops.isfinite(points), axis=axis, keepdims=True)
    # The projection does not change when all coefficients move together, nor when one that lies
    # a whole unit below the largest goes further down. So nothing here is ever large.
    points = ops.maximum(points - ops.max(points, axis=axis, keepdims=True), -1.0)
    points = ops.moveaxis(points, axis, -1)
    tau = _simplex_threshold(points)
    points = points - tau
    # Newton's method on the equation for tau takes back what a long sum lost to rounding.
    for _ in range(2):
        positive = ops.cast(points > 0, points.dtype)
        excess = ops.sum(positive * points, axis=-1, keepdims=True) - 1.0
        points = points - excess / ops.sum(positive, axis=-1, keepdims=True)
    projection = ops.moveaxis(ops.relu(points), -1, axis)
    return ops.where(finite, projection, float("nan"))


def _simplex_threshold(points):
    """The `tau` of `project_simplex`: the largest over k of (the sum of the k largest - 1) / k."""
    if points.shape[-1] <= FEW_COEFFICIENTS:
        # Next to a sort, XLA for processors recomputes the random numbers of dropout wherever they
        # are used, which makes a residual network several times slower. Comparing does not.
        larger = ops.expand_dims(points, -2) >= ops.expand_dims(points, -1)
        sizes = ops.sum(ops.cast(larger, points.dtype), axis=-1)
        sums = ops.sum(ops.where(larger, ops.expand_dims(points, -2), 0.0), axis=-1)
    else:
        sizes = ops.arange(1, points.shape[-1] + 1, dtype=points.dtype)
        sums = ops.cumsum(ops.flip(ops.sort(points, axis=-1), axis=-1), axis=-1)
    return ops.max((sums - 1.0) / sizes, axis=-1, keepdims=True)


def _check_axis(points, axis):
    rank = len(points.shape)
    check_integer(
        "axis",
        axis,
        f"an axis of the points, which have rank {rank}",
        lambda value: -rank <= value < rank,
    )
    if 0 in points.shape:
        raise ValueError(
            "There must be at least one coefficient to project. "
            f"Received: axis={axis}, shape={tuple(points.shape)}"
        )
