"""Steps that correct what has drifted furthest, in wide matrices, whose full step is dear.

An update moves a wide matrix away from its tight frame in few directions above all. To find these
and to correct them takes a few products with thin matrices.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_parseval._backend import add_product
from keras_parseval._precision import keep_dtype
from keras_parseval._sampling import fingerprint, noise
from keras_parseval._tight_frames import (
    check_count,
    check_rank,
    is_wide,
    retract,
    small_gram,
    spectral_error,
    take_step,
)
from keras_parseval._validation import check_beta, check_scale

# How many directions are corrected together; at one of how many updates, and if it is far off.
_DIRECTIONS, _TURNS, _TURNS_IF_FAR = 64, 16, 8
# The cost of a full step grows with the units, and it is taken so much more rarely.
_UNITS_A_TURN = 8
# How many units tell whether a matrix is far from a frame.
_SAMPLE = 64
# Directions that are this much shorter than the longest, squared, count as lying in their span.
_NEGLIGIBLE, _ROUNDS = 1e-5, 12


@keep_dtype
def subspace_tight_frame_step(matrix: Any, beta: float, count: int, scale: float = 1.0) -> Any:
    """`tight_frame_step` in the few directions in which a matrix is furthest from a tight frame.

    The step takes `Q^T W` in place of `W`, where the columns of `Q`, nearly orthonormal, span
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
    """At some updates a step in 64 directions, and at fewer a full one, drawn from the content.

    The first at one of 16 updates, or of eight if the matrix is far from a tight frame; the
    second at one of as many as there are times 8 units. `beta` is raised, to 0.5 at most, to
    make up for the updates that are left out.
    """
    first, second = fingerprint(matrix)
    turns = min(matrix.shape[-2:]) // _UNITS_A_TURN
    in_some, in_all = first % _TURNS_IF_FAR == 0, second % turns == 0

    def correct_in_some(matrix: Any) -> Any:
        return _step(matrix, min(0.5, _TURNS * beta), _DIRECTIONS, scale)

    def correct_in_all(matrix: Any) -> Any:
        return retract(matrix, min(0.5, turns * beta), scale)

    def correct(matrix: Any) -> Any:
        needed = ops.logical_or(first % _TURNS == 0, _squared_error(matrix, scale) > 1)
        matrix = _once(ops.logical_and(in_some, needed), correct_in_some, matrix)
        return _once(in_all, correct_in_all, matrix)

    # Mostly nothing is due, and then there is one loop that does nothing, not two.
    return _once(ops.logical_or(in_some, in_all), correct, matrix)


def _once(condition: Any, function: Callable[[Any], Any], matrix: Any) -> Any:
    """The function of the matrix where the condition holds, or else the matrix."""

    def run(matrix: Any, _: Any) -> tuple[Any, Any]:
        return function(matrix), False

    # A loop, because a condition would copy the matrix whenever there is nothing to do.
    return ops.while_loop(lambda _, go: go, run, (matrix, condition), maximum_iterations=1)[0]


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
    directions = _nearly_orthonormal(start @ ahead @ back / scale**2 - start)
    part = directions @ ahead
    # Not less the identity: in a direction that is too short, a frame would seem too small.
    excess = part @ ops.swapaxes(part, -1, -2) / scale**2 - _gram(directions)
    move = take_step(part, excess @ part, beta, spectral_error(ops.abs(excess))) - part
    first, second = (directions, move) if wide else (move, directions)
    return add_product(matrix, first, second)


def _nearly_orthonormal(rows: Any) -> Any:
    """Orthonormal rows of the same span; shorter ones where there is little to tell them apart.

    The inverse root of their Gram matrix, by Newton and Schulz: a QR decomposition takes compilers
    as long as all the rest.
    """
    tiny = 1e-30
    rows = rows / (ops.max(ops.abs(rows), axis=(-2, -1), keepdims=True) + tiny)
    gram, identity = _gram(rows), ops.eye(rows.shape[-2], dtype=rows.dtype)
    size = ops.sum(gram * identity, axis=(-2, -1), keepdims=True) + tiny
    gram, more = gram / size + _NEGLIGIBLE * identity, 1.5 * identity

    def closer(_: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        root, inverse = pair
        factor = more - 0.5 * inverse @ root
        return root @ factor, factor @ inverse

    start = gram, ops.broadcast_to(identity, gram.shape)
    _, inverse = ops.fori_loop(0, _ROUNDS, closer, start)
    return inverse @ rows / ops.sqrt(size)


def _gram(rows: Any) -> Any:
    return rows @ ops.swapaxes(rows, -1, -2)
