"""Weights are moved in single precision or better, whatever precision they are kept in."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import keras
import numpy as np
from keras import ops

Parameters = ParamSpec("Parameters")


def float32_or_better(tensor: Any) -> Any:
    """The tensor in float32, or in float64 if that is what it has."""
    tensor = ops.convert_to_tensor(tensor)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise TypeError(
            "Weights must be floating-point numbers to be moved; cast them with "
            f'`keras.ops.cast(x, "float32")`. Received: dtype={dtype}'
        )
    return tensor if dtype == "float64" else ops.cast(tensor, "float32")


def keep_dtype(function: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """Let `function` work in float32 or better, and return the dtype that came in."""

    @functools.wraps(function)
    def wrapper(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = ops.convert_to_tensor(tensor)
        return ops.cast(function(float32_or_better(tensor), *args, **kwargs), tensor.dtype)

    return wrapper  # type: ignore[return-value]


def finite_float64(tensor: Any, where: str) -> np.ndarray:
    """The numbers in a tensor, in double precision, or an error if one is NaN or infinite.

    Args:
        tensor: A tensor or variable.
        where: What it is, for the error.
    """
    values = ops.convert_to_numpy(ops.cast(tensor, "float32")).astype("float64")
    if not np.isfinite(values).all():
        raise ValueError(
            "Weights and constants must be finite here; look for where the training diverged. "
            f"Received: NaN or infinity in {where}"
        )
    return values
