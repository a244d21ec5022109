"""Steps towards tight frames, and the projection onto them.

Pure functions of tensors, for constraints and for those who write their own
loops. To "project" is to move to the nearest point, a "step" goes part of the way.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_parseval._backend import retract_by_hand
from keras_parseval._precision import float32_or_better, keep_dtype
from keras_parseval._sampling import sample_units
from keras_parseval._validation import check_beta, check_integer, check_scale


@keep_dtype
def tight_frame_step(matrix: Any, beta: float, scale: float = 1.0) -> Any:
    """One step of the retraction towards a tight frame.

    Computes `W + beta (W - W W^T W / scale**2)`, the update of Parseval
    training. It leaves the singular vectors alone and takes every singular
    value `t` to `t (1 + beta - beta t**2 / scale**2)`, which draws it towards
    `scale`. The map diverges from singular values above
    `scale (1 + 2 / beta)**0.5`; `beta` is therefore lowered, when it has to
    be, by an upper bound on `(t / scale)**2 - 1`. From any start, no
    singular value then ends above its start or above `scale`, whichever is larger, and none
    ends below `scale` that was above it, unless it is shrunk by less than a half.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall; `W` and its
            transpose take the same step. Reshape the kernel of a
            convolution to `(-1, outputs)` first.
        beta: Step size in (0, 0.5].
        scale: The singular value to aim at. Defaults to 1.0.

    Returns:
        Tensor with the shape and dtype of `matrix`.

    Example:

    ```python
    matrix = keras.random.normal((64, 128))
    for _ in range(100):
        matrix = kp.constraints.tight_frame_step(matrix, beta=0.5)
    keras.ops.svd(matrix, compute_uv=False)  # all ones
    ```
    """
    return retract(check_rank(matrix), check_beta(beta), check_scale(scale))


@keep_dtype
def sampled_tight_frame_step(
    matrix: Any, beta: float, count: int, scale: float = 1.0, unbiased: bool = False
) -> Any:
    """`tight_frame_step` on a random subset of the rows; the others stay as they are.

    The subset is of columns where the matrix has fewer of these: there the
    frame is tight on the other side. It is drawn anew from the matrix's own
    content, so it needs no seed and differs from update to update.

    Args:
        matrix: Tensor of shape `(..., n, d)`. Matrices of a batch share the
            subset's indices.
        beta: Step size in (0, 0.5].
        count: Number of rows (or columns) in the subset, 2 or more.
        scale: The singular value to aim at. Defaults to 1.0.
        unbiased: Two rows are made orthogonal only when both are drawn, with
            probability `count (count - 1) / (n (n - 1))`. If true, `beta` is
            divided by that, at most up to 0.5, so that any two rows move towards
            orthogonality as fast as they would under the full step, on average.
            Defaults to `False`.

    Returns:
        Tensor with the shape and dtype of `matrix`.

    Example:

    ```python
    kernel = keras.random.normal((512, 512))
    kernel = kp.constraints.sampled_tight_frame_step(kernel, beta=1e-3, count=51, unbiased=True)
    ```
    """
    beta, scale = check_beta(beta), check_scale(scale)
    axis = -2 if is_wide(check_rank(matrix)) else -1
    units = matrix.shape[axis]
    check_count(count, units)
    if unbiased and count < units:
        beta = min(0.5, beta * (units * (units - 1)) / (count * (count - 1)))
    chosen = sample_units(matrix, count, axis)
    step = retract(ops.take(matrix, chosen, axis=axis), beta, scale)
    return _replace(matrix, chosen, step, axis)


def _replace(matrix: Any, chosen: Any, step: Any, axis: int) -> Any:
    """The matrix with the rows (axis -2) or columns (axis -1) of `step` in the chosen places."""
    if axis == -2 and len(matrix.shape) == 2:
        return ops.scatter_update(matrix, chosen[:, None], step)
    # These do not lie together in memory: to write the matrix anew is faster than to scatter.
    count, units = chosen.shape[0], matrix.shape[axis]
    places = ops.full((units,), count, dtype="int32")
    places = ops.scatter_update(places, chosen[:, None], ops.arange(count, dtype="int32"))
    replaced = places < count if axis == -1 else (places < count)[:, None]
    return ops.where(replaced, ops.take(step, ops.minimum(places, count - 1), axis=axis), matrix)


def check_count(count: Any, rows: int) -> None:
    check_integer(
        "count",
        count,
        f"a number of rows between 2 and {rows}, the shorter side of the matrix: one row alone "
        "is never made orthogonal to another",
        lambda value: min(2, rows) <= value <= rows,
    )


def retract(matrix: Any, beta: float, scale: float) -> Any:
    """The retraction, with the safeguard that `tight_frame_step` describes."""
    return retract_and_measure(matrix, beta, scale)[0]


@keep_dtype
def settle(matrix: Any, beta: float, scale: float) -> Any:
    """One step, and full ones after it until the singular values are within 5% of `scale`.

    Mostly one, 8 at most. After squares that are off by 0.169, a step with `beta=0.25` leaves
    `0.831**0.5 * 1.04225`, which is 0.9501, and one with 0.5 leaves 0.99.
    """
    first = retract_and_measure(matrix, beta, scale)
    return step_until_close(lambda each: retract_and_measure(each, 0.5, scale), first, 0.169, 7)


def step_until_close(
    step: Callable[[Any], tuple[Any, Any]], first: tuple[Any, Any], close: float, most: int
) -> Any:
    """More steps after a first one, until one has started from close by; mostly none.

    Args:
        step: Function from weights to weights, and a bound on the relative error of the squared
            singular values before the step.
        first: What the first step gave.
        close: The error from which one more step is enough.
        most: The number of further steps at most.
    """

    def go_on(_: Any, error: Any) -> Any:
        return ops.max(error) > close

    def again(weights: Any, _: Any) -> tuple[Any, Any]:
        return step(weights)

    return ops.while_loop(go_on, again, first, maximum_iterations=most)[0]


def retract_and_measure(matrix: Any, beta: float, scale: float) -> tuple[Any, Any]:
    """One step, and a bound on the relative error of the squared singular values before it."""
    gram = small_gram(matrix)
    by_hand = retract_by_hand(gram, matrix, beta, scale)
    if by_hand is not None:
        return by_hand
    excess = gram / scale**2 - ops.eye(gram.shape[-1], dtype=gram.dtype)
    error = spectral_error(ops.abs(excess))
    # Beta comes last: no copy of the Gram matrix is made for it.
    image = excess @ matrix if is_wide(matrix) else matrix @ excess
    return take_step(matrix, image, beta, error), error


def spectral_error(magnitudes: Any) -> Any:
    """An upper bound on the largest absolute eigenvalue, the better of two without products.

    The largest absolute row sum is good for many small entries, the Frobenius norm for a few large
    directions.

    Args:
        magnitudes: The absolute values of Hermitian matrices, of shape `(..., n, n)`.

    Returns:
        Tensor of shape `(..., 1, 1)`.
    """
    row_sums = ops.sum(magnitudes, axis=-1, keepdims=True)
    squares = ops.sum(ops.square(magnitudes), axis=(-2, -1), keepdims=True)
    return ops.minimum(ops.max(row_sums, axis=-2, keepdims=True), ops.sqrt(squares))


def take_step(weights: Any, direction: Any, beta: float, error: Any) -> Any:
    """`weights - beta direction`, with `beta` lowered where a singular value would go too far.

    A step takes a singular value `t` to `t (1 - beta (t**2 - 1))`. With the first of the two
    limits none is shrunk by more than a half. With the second the largest, if the error
    is sharp, comes down to 1 at once, and none above 1 falls below it.

    Args:
        weights: Tensor.
        direction: Tensor of the same shape.
        beta: Step size in (0, 0.5].
        error: Tensor, an upper bound on `t**2 - 1`.
    """
    largest = 1.0 + error
    limit = ops.maximum(0.5 / error, 1.0 / (largest + ops.sqrt(largest)))
    step = weights - ops.minimum(limit, beta) * direction
    # The third power of a larger kernel may not be a number in float32; half of it does no harm.
    too_large = ops.logical_and(error > 1e12, ops.isfinite(error))
    return ops.where(too_large, weights / 2, step)


def small_gram(matrix: Any) -> Any:
    """`W W^T` or `W^T W`, whichever is smaller: they share their nonzero eigenvalues."""
    transposed = ops.swapaxes(matrix, -1, -2)
    return matrix @ transposed if is_wide(matrix) else transposed @ matrix


def is_wide(matrix: Any) -> bool:
    return matrix.shape[-2] <= matrix.shape[-1]


def tight_frame_penalty(matrix: Any, beta: float, scale: float = 1.0) -> Any:
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
    gram = small_gram(check_rank(float32_or_better(matrix))) / scale**2
    excess = gram - ops.eye(gram.shape[-1], dtype=gram.dtype)
    return beta / 4 * scale**2 * ops.sum(ops.square(excess))


@keep_dtype
def project_tight_frame(matrix: Any, scale: float = 1.0) -> Any:
    """The nearest tight frame: the polar factor, by singular value decomposition.

    Solves `min_X ||X - W||_F` over all `X` whose singular values equal `scale`.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall. Reshape the kernel
            of a convolution to `(-1, outputs)` first.
        scale: The common singular value. Defaults to 1.0.

    Returns:
        Tensor with the shape and dtype of `matrix`. A matrix that holds NaN or
        infinity becomes NaN throughout.

    Example:

    ```python
    frame = kp.constraints.project_tight_frame(keras.random.normal((64, 128)))
    keras.ops.matmul(frame, keras.ops.transpose(frame))  # the identity
    ```
    """
    scale = check_scale(scale)
    finite = ops.all(ops.isfinite(check_rank(matrix)), axis=(-2, -1), keepdims=True)
    left, _, right = ops.svd(ops.where(finite, matrix, 0.0), full_matrices=False)
    return ops.where(finite, scale * (left @ right), float("nan"))


def check_rank(matrix: Any) -> Any:
    if len(matrix.shape) < 2:
        raise ValueError(
            "`matrix` must have rank 2 or more: the last two axes are the rows and the columns. "
            f"Received: shape={tuple(matrix.shape)}"
        )
    if 0 in matrix.shape:
        raise ValueError(f"`matrix` must not be empty. Received: shape={tuple(matrix.shape)}")
    return matrix
