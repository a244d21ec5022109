"""The projection onto the simplex."""

from typing import Any

from keras import ops

from keras_parseval._precision import keep_dtype
from keras_parseval._validation import check_floor, check_integer

# So many coefficients are sorted by comparing each with each.
FEW_COEFFICIENTS = 16


@keep_dtype
def project_simplex(points: Any, axis: int = -1, floor: float = 0.0) -> Any:
    """The nearest point of the simplex, along an axis.

    Solves `min_p ||p - a||_2` over all `p >= floor / n` that sum to 1. The solution is
    `max(floor / n, a - tau)`, where `tau` makes the sum 1 (Duchi et al., 2008).

    Args:
        points: Tensor of any rank above 0.
        axis: The axis along which the `n` coefficients lie. Defaults to -1.
        floor: The share of its equal part, `1 / n`, that each coefficient keeps, in [0, 1).
            Defaults to 0.0.

    Returns:
        Tensor with the shape and dtype of `points`. Points that hold NaN or
        infinity become NaN throughout.

    Example:

    ```python
    kp.constraints.project_simplex([0.8, 0.6, -1.0])  # [0.6, 0.4, 0.0]
    ```
    """
    _check_axis(points, axis)
    floor = check_floor(floor)
    # What is above the floor lies on a smaller simplex, of the same shape.
    least, room = floor / points.shape[axis], 1.0 - floor
    points = (points - least) / room if floor else points
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
    projection = least + room * projection if floor else projection
    return ops.where(finite, projection, float("nan"))


def _simplex_threshold(points: Any) -> Any:
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


def _check_axis(points: Any, axis: Any) -> None:
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
