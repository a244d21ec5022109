"""Steps that correct what has drifted furthest, in wide matrices, whose full step is dear.

An update moves a wide matrix away from its tight frame in few directions, as many as a gradient
has. To find these and to correct them takes a few products with thin matrices.
"""

from typing import Any

from keras import ops

from keras_parseval._precision import keep_dtype
from keras_parseval._sampling import fingerprint, noise
from keras_parseval._tight_frames import check_count, check_rank, is_wide, retract, small_gram
from keras_parseval._validation import check_beta, check_scale

# How many directions are corrected together, and at one of how many updates.
_DIRECTIONS, _TURNS = 64, 16
# How many units tell whether a matrix is far from a frame.
_SAMPLE = 64


@keep_dtype
def subspace_tight_frame_step(matrix: Any, beta: float, count: int, scale: float = 1.0) -> Any:
    """`tight_frame_step` in the few directions in which a matrix is furthest from a tight frame.

    The step takes `Q^T W` in place of `W`, where the orthonormal columns of `Q` span
    `W W^T / scale**2 - I` times `count` random vectors: nearly the directions in which that is
    largest. The rest of `W` stays. It costs `8 count n d` operations, where the full step
    costs `4 n**2 d`. The random vectors are drawn from the matrix's own content, so it needs no
    seed and differs from update to update.

    Args:
        matrix: Tensor of shape `(..., n, d)`, wide or tall.
        beta: Step size in (0, 0.5], lowered where a step would go too far.
        count: Number of directions, no more than the shorter side of the matrix.
        scale: The singular value to aim at. Defaults to 1.0.

    Returns:
        Tensor with the shape and dtype of `matrix`.

    Example:

    ```python
    kernel = kp.TightFrame()((512, 512)) + 1e-3 * keras.random.normal((512, 512))
    kernel = kp.constraints.subspace_tight_frame_step(kernel, beta=0.5, count=32)
    ```
    """
    beta, scale = check_beta(beta), check_scale(scale)
    check_count(count, min(check_rank(matrix).shape[-2:]))
    return _step(matrix, beta, count, scale)


@keep_dtype
def hold(matrix: Any, beta: float, scale: float) -> Any:
    """At one of 16 updates, drawn from the matrix's content, a step in 64 directions.

    At every update if the matrix is far from a tight frame. `beta` is raised, to 0.5 at most, to
    make up for the updates that are left out.
    """
    first, second = fingerprint(matrix)
    is_far = _squared_error(matrix, scale) > 1
    turn = ops.logical_or((first + second) % _TURNS == 0, is_far)

    def step(matrix: Any, _: Any) -> tuple[Any, Any]:
        return _step(matrix, min(0.5, _TURNS * beta), _DIRECTIONS, scale), False

    # A loop, because a condition would copy the matrix whenever there is nothing to do.
    return ops.while_loop(lambda _, turn: turn, step, (matrix, turn), maximum_iterations=1)[0]


def _squared_error(matrix: Any, scale: float) -> Any:
    """About `||W W^T / scale**2 - I||_F**2`, the largest of a batch, from some units of all."""
    units = min(matrix.shape[-2:])
    apart = max(1, units // _SAMPLE)
    some = matrix[..., ::apart, :] if is_wide(matrix) else matrix[..., ::apart]
    gram = small_gram(some) / scale**2
    excess = gram - ops.eye(gram.shape[-1], dtype=gram.dtype)
    squares = ops.sum(ops.square(excess), axis=(-2, -1))
    # Directions that have to do with all units alike are seen in this part.
    return ops.max(squares) * (units / gram.shape[-1]) ** 2


def _step(matrix: Any, beta: float, count: int, scale: float) -> Any:
    # Thin matrices lie: compilers for processors take three times as long for those that stand.
    wide, transposed = is_wide(matrix), ops.swapaxes(matrix, -1, -2)
    ahead, back = (matrix, transposed) if wide else (transposed, matrix)
    start = noise(matrix, (*matrix.shape[:-2], count, min(matrix.shape[-2:])))
    image = start @ ahead @ back / scale**2 - start
    found = ops.qr(ops.swapaxes(image, -1, -2))[0]
    directions = ops.swapaxes(found, -1, -2)
    part = directions @ ahead
    move = retract(part, beta, scale) - part
    return matrix + (found @ move if wide else ops.swapaxes(move, -1, -2) @ directions)
