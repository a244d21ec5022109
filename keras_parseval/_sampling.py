"""A random subset of rows or columns, drawn from nothing but the matrix itself.

A constraint has no state of its own: a seed generator inside it would not be
tracked by the model, so its updates would be lost under JAX, and replicas or
resumed runs would disagree. The content of the matrix is all that is needed.
It changes at every update, and it is the same on every replica.
"""

import math
from typing import Any

from keras import ops

from keras_parseval._backend import every

# A prime whose square fits in 32 bits. It leaves 2 when divided by 3, so that cubes modulo
# the prime are all different. No shorter side of a matrix is as long.
_PRIME = 46337
_PROBES = 1024
_ROUNDS = 16


def sample_units(matrix: Any, count: int, axis: int) -> Any:
    """Draw `count` distinct rows (axis -2) or columns, every subset as likely as any other.

    Args:
        matrix: Tensor of shape `(..., n, d)`.
        count: Number of rows or columns, from 1 to all.
        axis: -2 or -1.

    Returns:
        Integer tensor of shape `(count,)`. Matrices of a batch share it.
    """
    first, second = (number % _PRIME for number in fingerprint(matrix))
    # A random permutation tells for the first `count` numbers where they go, each on its own: no
    # sorting, and nothing for the rest. It is the swap-or-not shuffle: in each round, numbers of
    # a given sum are partners, and a hash of the larger of two partners tells whether they swap.
    n = matrix.shape[axis]
    units = ops.arange(count, dtype="int32")
    for turn in range(_ROUNDS):
        key = _scramble(first + turn * second)
        partners = (key + n - units) % n
        swap = _scramble(_scramble(ops.maximum(units, partners) + key) + second) % 2 == 1
        units = ops.where(swap, partners, units)
    return units


def _scramble(number: Any) -> Any:
    """A permutation of the numbers below the prime, without much order."""
    number = number % _PRIME
    return (number * number % _PRIME) * number % _PRIME


def noise(matrix: Any, shape: tuple[int, ...]) -> Any:
    """Numbers between -1 and 1, without much order, of a shape whose last two axes count."""
    first, second = (number % _PRIME for number in fingerprint(matrix))
    rows, columns = (ops.arange(size, dtype="int32") for size in shape[-2:])
    keys = _scramble(_scramble(rows + first) + second)
    numbers = _scramble(_scramble(keys[:, None] + columns) + first)
    return ops.broadcast_to(ops.cast(numbers, matrix.dtype) * (2.0 / _PRIME) - 1.0, shape)


def fingerprint(matrix: Any) -> tuple[Any, Any]:
    """Two integers that change when the matrix does."""
    size = math.prod(matrix.shape)
    # Coprime to the width, the stride visits every column; it visits every row as well.
    stride = max(1, size // _PROBES)
    while math.gcd(stride, matrix.shape[-1]) > 1:
        stride += 1
    values = ops.abs(ops.cast(every(matrix, stride), "float32"))
    # The bits of a number from 2^3 down to 2^-28, exactly, in two halves of 16.
    halves = [ops.cast(ops.mod(values * 2.0**shift, 2.0**16), "int32") for shift in (12, 28)]
    digits = halves[0] + halves[1]
    weights = 1 + ops.arange(digits.shape[0], dtype="int32") % 7
    return ops.sum(digits), ops.sum(digits * weights)
