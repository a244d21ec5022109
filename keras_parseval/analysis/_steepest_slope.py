"""The steepest slope that ascent finds: a lower bound of a model's Lipschitz constant."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled, input_gradient
from keras_parseval._validation import check_integer

_STEPS = 20
# How far to look along a direction, as a share of the size of the input.
_SHARE = 1e-2


def steepest_slope(model: Any, norm: Any, at: Any) -> float:
    """The largest slope that is found at some inputs, by power iteration on the Jacobian `J`.

    For a vector `u` of outputs, the gradient `J^T u` has a dual norm of at most the Lipschitz
    constant times that of `u`: this is the slope that is measured. The direction `v` in
    which `u` grows fastest is followed for a little, and the outputs change by about `J v`. In the
    direction of that change is the next `u`. In the 2-norm this is power iteration on `J^T J`.

    Args:
        model: A functional or Sequential model.
        norm: `"inf"` or 2.
        at: The inputs as the model takes them, or a number of random ones in [0, 1].
    """
    inputs = _inputs(model, at)
    shapes = tuple(each.shape[1:] for each in inputs)
    points = np.concatenate([each.reshape(len(each), -1) for each in inputs], axis=1)
    forward = functools.partial(_outputs, shapes)
    outputs = ops.convert_to_numpy(call_compiled(model, ("outputs", shapes), forward, points))
    weights = np.random.default_rng(0).normal(size=outputs.shape).astype("float32")
    ascend = functools.partial(_ascend, norm, shapes)
    found = 0.0
    for _ in range(_STEPS):
        slopes, weights = call_compiled(model, ("ascend", norm, shapes), ascend, points, weights)
        found = max(found, float(np.nan_to_num(ops.convert_to_numpy(slopes)).max()))
    return found


def _ascend(norm: Any, shapes: Any, model: Any, points: Any, weights: Any) -> tuple[Any, Any]:
    """The slope along the weights at each point, and weights along which it is steeper."""
    # Weights of the dual norm 1: in the 1-norm, those that read a single output.
    if norm == "inf":
        largest = ops.one_hot(ops.argmax(ops.abs(weights), axis=-1), weights.shape[-1])
        weights = largest * ops.sign(weights)
    else:
        weights = weights / _length(weights)
    gradient, before = input_gradient(lambda x: _weighted(shapes, model, weights, x), points)
    if norm == "inf":
        slopes, direction = ops.sum(ops.abs(gradient), axis=-1), ops.sign(gradient)
        size = ops.max(ops.abs(points), axis=-1, keepdims=True)
    else:
        slopes, size = _length(gradient)[:, 0], _length(points)
        direction = gradient / _length(gradient)
    after = _outputs(shapes, model, points + _SHARE * (size + 1e-3) * direction)
    return slopes, after - before


def _weighted(shapes: Any, model: Any, weights: Any, points: Any) -> tuple[Any, Any]:
    outputs = _outputs(shapes, model, points)
    return ops.sum(weights * outputs), outputs


def _length(vectors: Any) -> Any:
    # The root has no slope at zero.
    return ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True) + 1e-30)


def _outputs(shapes: Any, model: Any, points: Any) -> Any:
    """All outputs in a row for each example, from all inputs in a row."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = [
        ops.reshape(points[:, end - int(np.prod(shape)) : end], (-1, *shape))
        for end, shape in zip(ends, shapes)
    ]
    sequential = isinstance(model, keras.Sequential)
    inputs = parts[0] if sequential else keras.tree.pack_sequence_as(model.input, parts)
    outputs = model(inputs, training=False)
    rows = [
        ops.reshape(ops.cast(each, "float32"), (points.shape[0], -1))
        for each in keras.tree.flatten(outputs)
    ]
    return ops.concatenate(rows, axis=1)


def _inputs(model: Any, at: Any) -> list[np.ndarray]:
    """An array for each input of the model."""
    rule = "a positive number of random inputs, or inputs as the model takes them"
    if not isinstance(at, (int, float, str)):
        arrays = [at] if len(model.inputs) == 1 else keras.tree.flatten(at)
        if len(arrays) != len(model.inputs):
            raise ValueError(
                f"`slope_at` must be {rule}. Received: {len(arrays)} tensors for a model of "
                f"{len(model.inputs)} inputs"
            )
        return [ops.convert_to_numpy(each).astype("float32") for each in arrays]
    count = check_integer("slope_at", at, rule, lambda value: value > 0)
    shapes = [tuple(each.shape[1:]) for each in model.inputs]
    if any(None in shape for shape in shapes):
        raise ValueError(
            "`slope_at` must be inputs if the model takes them of any size; random ones would need "
            f"one. Received: slope_at={at}, and inputs of shapes {shapes}"
        )
    rng = np.random.default_rng(0)
    return [rng.uniform(size=(count, *shape)).astype("float32") for shape in shapes]
