"""On JAX, the same function in a form whose gradient is fast on processors.

XLA takes the gradients of two operations slowly there: that of max-pooling window by window, and
that of a convolution, inside a loop, by code of its own in place of a library's; or, for few
channels, such as the colours of an image, by gathering far more numbers than there are. Both have
other forms, with the same values and the same gradients.

What a function does is read from its jaxpr, as JAX's guide to interpreters of one's own describes.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Literal

# Larger windows would need too many parts.
_LARGEST_WINDOW = 27
# How many rows of a sum fit into a processor's memory nearby.
_ROWS = 128
# What a convolution has for each axis of its window.
_WINDOW = ("rhs_dilation", "window_strides", "padding")


def input_gradient(objective: Callable[[Any], tuple[Any, Any]], x: Any) -> tuple[Any, Any]:
    """The gradient of a scalar at `x`, and what else there is."""
    if jax.default_backend() == "cpu":
        objective = with_fast_gradient(objective)
    return jax.grad(objective, has_aux=True)(x)


def add_product(matrix: Any, first: Any, second: Any) -> Any:
    """`matrix + first^T @ second`; on processors some rows at a time.

    XLA would write the product in full beside a matrix that comes through a loop, and copy the sum.
    """
    rows = matrix.shape[-2]
    if jax.default_backend() != "cpu":
        return matrix + jnp.swapaxes(first, -1, -2) @ second

    def add(matrix: Any, start: Any, count: int) -> Any:
        before = lax.dynamic_slice_in_dim(matrix, start, count, -2)
        thin = jnp.swapaxes(lax.dynamic_slice_in_dim(first, start, count, -1), -1, -2)
        return lax.dynamic_update_slice_in_dim(matrix, before + thin @ second, start, -2)

    blocks, rest = divmod(rows, _ROWS)
    if blocks:
        matrix = lax.fori_loop(0, blocks, lambda i, matrix: add(matrix, i * _ROWS, _ROWS), matrix)
    return add(matrix, rows - rest, rest) if rest else matrix


def with_fast_gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function of one array, to be differentiated."""

    def same(x: Any) -> Any:
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(x)
        outputs = _evaluate(jaxpr, x)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return same


def _evaluate(closed: Any, *arguments: Any) -> list[Any]:
    """What a jaxpr gives, with other forms of what has one."""
    jaxpr = closed.jaxpr
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *arguments]))

    def value(each: Any) -> Any:
        return each.val if isinstance(each, Literal) else known[each]

    for equation in jaxpr.eqns:
        known |= zip(equation.outvars, _apply(equation, *map(value, equation.invars)))
    return [value(each) for each in jaxpr.outvars]


def _apply(equation: Any, *values: Any) -> list[Any]:
    name, options = equation.primitive.name, equation.params
    if name in ("jit", "pjit"):
        return _evaluate(options["jaxpr"], *values)
    if name == "reduce_window_max" and _has_few_parts(*values, **options):
        return [_max_pool(*values, **options)]
    if name == "conv_general_dilated" and _is_plain(**options):
        convolve = functools.partial(equation.primitive.bind, **options)
        return [_with_fast_gradient_of_input(convolve, **options)(*values)]
    bound = equation.primitive.get_bind_params(options)
    # Before JAX 0.10, functions among the options come apart from them.
    functions, options = bound if isinstance(bound, tuple) else ((), bound)
    outputs = equation.primitive.bind(*functions, *values, **options)
    return outputs if equation.primitive.multiple_results else [outputs]


def _has_few_parts(x: Any, *, window_dimensions: Any, base_dilation: Any, **_: Any) -> bool:
    few = math.prod(window_dimensions) <= _LARGEST_WINDOW
    return few and set(base_dilation) == {1} and jnp.issubdtype(x.dtype, jnp.floating)


def _max_pool(
    x: Any,
    *,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    window_dilation: Any,
    **_: Any,
) -> Any:
    """The largest number of each window: of all first ones, all second ones, and so on."""
    x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), [(low, high, 0) for low, high in padding])
    axes = list(zip(x.shape, window_dimensions, window_strides, window_dilation))
    last = [size - (window - 1) * apart for size, window, _, apart in axes]
    largest = None
    for place in itertools.product(*map(range, window_dimensions)):
        start = [index * apart for index, (*_, apart) in zip(place, axes)]
        end = [first + size for first, size in zip(start, last)]
        part = lax.slice(x, start, end, window_strides)
        largest = part if largest is None else _first_of_largest(largest, part)
    return largest


def _first_of_largest(one: Any, other: Any) -> Any:
    """The larger number, or NaN. Of two that are equal, the first alone has the gradient."""
    return jnp.where((one >= other) | jnp.isnan(one), one, other)


def _is_plain(
    *, lhs_dilation: Any, feature_group_count: int, batch_group_count: int, **_: Any
) -> bool:
    return set(lhs_dilation) == {1} and feature_group_count == batch_group_count == 1


def _with_fast_gradient_of_input(convolve: Callable[[Any, Any], Any], **options: Any) -> Any:
    inputs, (out, into, *window), outputs = map(list, options["dimension_numbers"])

    def gradients(known: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
        x, kernel = known
        (of_kernel,) = jax.vjp(functools.partial(convolve, x), kernel)[1](gradient)
        # What is computed on the way by products is at most twice as large as the output.
        few = kernel.size <= 2 * kernel.shape[out] ** 2
        form = _gradient_by_product if few else _gradient_by_convolution
        places = [x.shape[axis] for axis in inputs[2:]]
        gradient = jnp.transpose(gradient, _channels_last(outputs))
        of_x = form(places, jnp.transpose(kernel, [*window, out, into]), gradient, options)
        return jnp.transpose(of_x, np.argsort(_channels_last(inputs)).tolist()), of_kernel

    same = jax.custom_vjp(convolve)
    same.defvjp(lambda x, kernel: (convolve(x, kernel), (x, kernel)), gradients)
    return same


def _gradient_by_product(
    places: list[int], kernel: Any, gradient: Any, options: dict[str, Any]
) -> Any:
    """What each number of a window passes back, moved to where it came from, and added up."""
    # One axis for each axis of the batch, the places and the window, and one for the channels.
    product = jnp.tensordot(gradient, kernel, (-1, -2))
    total = jnp.zeros((), product.dtype)
    for place in itertools.product(*map(range, kernel.shape[:-2])):
        part = product[(..., *place, slice(None))]
        moves = [(0, 0, 0)]
        for index, apart, stride, (before, _after), size, count in zip(
            place, *(options[name] for name in _WINDOW), places, part.shape[1:]
        ):
            first = index * apart - before
            moves.append((first, size - first - (count - 1) * stride - 1, stride - 1))
        total = total + lax.pad(part, jnp.zeros((), part.dtype), [*moves, (0, 0, 0)])
    return total


def _gradient_by_convolution(
    places: list[int], kernel: Any, gradient: Any, options: dict[str, Any]
) -> Any:
    """The convolution by the kernel turned round, with axes in the order that is fast in loops."""
    rank = len(places)
    # Or else XLA takes the order of the axes back.
    turned = lax.optimization_barrier(lax.rev(kernel, range(rank)))
    around = []
    for size, count, window, apart, stride, (before, _after) in zip(
        places, gradient.shape[1:], kernel.shape, *(options[name] for name in _WINDOW)
    ):
        reach = (window - 1) * apart
        around.append((reach - before, size + before - (count - 1) * stride - 1))
    axes = (0, rank + 1, *range(1, rank + 1))
    return lax.conv_general_dilated(
        *(gradient, turned, [1] * rank, around, options["window_strides"]),
        options["rhs_dilation"],
        lax.ConvDimensionNumbers(axes, (rank + 1, rank, *range(rank)), axes),
        precision=options["precision"],
        preferred_element_type=options["preferred_element_type"],
    )


def _channels_last(axes: list[int]) -> list[int]:
    first, channels, *places = axes
    return [first, *places, channels]


def keep_weights_on_error(model: Any, train_function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a training function that fails put the weights back that `fit` took out of the model."""

    def guarded(state, iterator):
        try:
            return train_function(state, iterator)
        except BaseException:
            groups = (
                model.trainable_variables,
                model.non_trainable_variables,
                model.optimizer.variables,
                model.metrics_variables,
            )
            for variables, values in zip(groups, state):
                for variable, value in zip(variables, values):
                    if not value.is_deleted():
                        variable.assign(value)
            raise

    return guarded
