"""Which input of a model an attack moves, whether it can be moved, and between which bounds."""

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_parseval._batches import check_finite

if TYPE_CHECKING:
    from keras_parseval.attacks._attack import Attack


def check_inputs(attack: "Attack", inputs: Any) -> Any:
    """Raise unless the input to perturb is there and can be moved; return it."""
    x = _check_perturb(attack, inputs)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise TypeError(
            "An input must consist of floating-point numbers to be perturbed. Convert images, as "
            'in `x.astype("float32") / 255`, and let the model take pixels in [0, 1]. Tokens and '
            "categories cannot be moved a little: attack a model that starts after their "
            f"embedding. Received: dtype={dtype}"
        )
    attack.check_shape(tuple(x.shape))
    if attack.mask is not None:
        shape, mask = tuple(x.shape), np.shape(attack.mask)
        aligned = zip(reversed(mask), reversed(shape))
        if len(mask) > len(shape) or any(m not in (1, n) and n is not None for m, n in aligned):
            raise ValueError(
                "`mask` must broadcast to the input that is perturbed. "
                f"Received: mask of shape {mask}, for an input of shape {shape}"
            )
    return x


def _check_perturb(attack: "Attack", inputs: Any) -> Any:
    several = isinstance(inputs, (list, tuple, dict))
    if not several and not hasattr(inputs, "dtype"):
        raise TypeError(f"Inputs must be arrays or tensors. Received: {type(inputs).__name__}")
    if several != (attack.perturb is not None):
        raise ValueError(
            "`perturb` must name the input to perturb, by its key or index, if the model has "
            "several inputs (a list or a dictionary), and be None if it has one. "
            f"Received: perturb={attack.perturb!r}, for "
            + (f"{len(inputs)} inputs" if several else "one input")
        )
    try:
        return attack.select(inputs)
    except (KeyError, IndexError, TypeError) as error:
        names = list(inputs) if isinstance(inputs, dict) else f"0 to {len(inputs) - 1}"
        raise ValueError(
            "`perturb` must be the key or index of one of the model's inputs. "
            f"Received: perturb={attack.perturb!r}, for inputs {names}"
        ) from error


def check_batch(attack: "Attack", inputs: Any) -> np.ndarray:
    """Raise unless the batch is such that the attack means something; return what it moves."""
    x = ops.convert_to_numpy(check_inputs(attack, inputs))
    if not x.size:
        raise ValueError(f"There must be at least one example. Received: shape={x.shape}")
    check_finite(inputs)
    if attack.bounds is not None:
        low, high = attack.bounds
        if x.min() < low or x.max() > high:
            raise ValueError(
                "The inputs must lie in `bounds`, which are in the units of the model's input. "
                f"Received: bounds={attack.bounds!r}, inputs from {x.min()} to {x.max()}"
            )
    return x


def check_bounds(bounds: Any) -> tuple[float, float] | None:
    """The smallest and largest value of an input as numbers, `None` as it is, or an error."""
    if bounds is None:
        return None
    pair = np.asarray(bounds)
    if pair.shape != (2,) or pair.dtype.kind not in "fiu":
        raise TypeError(
            "`bounds` must be None or a pair of numbers (low, high), the smallest and the "
            f"largest value of the model's input. Received: bounds={bounds!r}"
        )
    if not pair[0] < pair[1]:
        raise ValueError(
            f"`bounds` must be (low, high), with low < high. Received: bounds={bounds!r}"
        )
    return float(pair[0]), float(pair[1])
