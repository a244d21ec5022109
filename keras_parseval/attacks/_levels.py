"""How much an attack may change: epsilons, and signal-to-noise ratios."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_parseval._validation import Norm, check_norm, check_number

DEFAULT_SNR = (50, 45, 40, 33)


def snr(x: Any, x_adv: Any) -> np.ndarray:
    """The signal-to-noise ratio of each perturbed example, `20 log10(||x|| / ||x_adv - x||)`.

    Args:
        x: The clean examples, along the first axis.
        x_adv: The perturbed ones.

    Returns:
        Array with one ratio in decibels for each example; infinite where
        nothing was perturbed.

    Example:

    ```python
    x = keras.random.uniform((16, 8))
    kp.attacks.snr(x, x + 0.01)
    ```
    """
    x, x_adv = _examples(x), _examples(x_adv)
    if x.shape != x_adv.shape:
        raise ValueError(
            "`x` and `x_adv` must have the same shape, with the examples along the first axis. "
            f"Received: shapes {x.shape} and {x_adv.shape}"
        )
    signal, noise = (np.linalg.norm(each.reshape(len(x), -1), axis=1) for each in (x, x_adv - x))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(noise == 0, np.inf, 20 * np.log10(signal / noise))


def epsilon_for_snr(x: Any, snr: float, norm: Norm = "inf", mask: Any = None) -> np.ndarray:
    """The size of a perturbation that has the given signal-to-noise ratio, for each example.

    A step of the fast gradient sign method changes every feature by epsilon,
    so its 2-norm is `epsilon sqrt(D)`, with `D` features that may move.

    Args:
        x: The examples, along the first axis.
        snr: The ratio in decibels.
        norm: The norm that epsilon is measured in, `"inf"` or 2. Defaults to `"inf"`.
        mask: `None`, or an array that broadcasts to the examples, 0 for features that
            cannot move. Defaults to `None`.

    Returns:
        Array with one epsilon for each example, in the units of `x`.

    Example:

    ```python
    x = keras.random.uniform((16, 8))
    kp.attacks.epsilon_for_snr(x, snr=40)
    ```
    """
    norm = check_norm(norm)
    (level,) = check_levels("snr", [snr])
    x = _examples(x)
    radius = np.linalg.norm(x.reshape(len(x), -1), axis=1) * 10 ** (-level / 20)
    if norm == 2:
        return radius
    moving = np.broadcast_to(1.0 if mask is None else np.asarray(mask, "float64"), x.shape)
    return radius / np.sqrt(np.maximum(moving.reshape(len(x), -1).sum(axis=1), 1.0))


def _examples(x: Any) -> np.ndarray:
    """Examples along the first axis, as float64."""
    x = np.asarray(ops.convert_to_numpy(x), "float64")
    if not x.ndim or not x.size:
        raise ValueError(
            f"There must be at least one example, along the first axis. Received: shape={x.shape}"
        )
    if not np.isfinite(x).all():
        raise ValueError("The examples must be finite. Received: examples with NaN or infinity")
    return x


def choose_levels(snr: Any, epsilon: Any) -> tuple[str, list[float]]:
    """The measure and its levels, from what the user gave; by default the paper's ratios."""
    if snr is not None and epsilon is not None:
        raise ValueError(
            "Levels must be given as `snr` or as `epsilon`, not as both. "
            f"Received: snr={snr!r}, epsilon={epsilon!r}"
        )
    if epsilon is not None:
        return "epsilon", check_levels("epsilon", epsilon)
    return "snr", check_levels("snr", DEFAULT_SNR if snr is None else snr)


def check_levels(name: str, levels: float | Iterable[float]) -> list[float]:
    """One or several levels as a list, or an error."""
    several = [levels] if np.ndim(levels) == 0 else list(levels)  # type: ignore[arg-type]
    if not several:
        raise ValueError(f"`{name}` must have at least one level. Received: {name}={levels!r}")
    if name == "snr":
        rule = "finite, from -300 to 300 decibels"
        return [
            check_number("snr", each, rule, lambda value: abs(value) <= 300) for each in several
        ]
    rule = "finite and not negative, in the units of the model's input"
    return [check_number("epsilon", each, rule, _is_size) for each in several]


def level_epsilons(
    x: np.ndarray, measure: str, levels: list[float], norm: Any, mask: Any
) -> np.ndarray:
    """Epsilon for each level and example: the examples of the first level, then the next."""
    if measure == "epsilon":
        sizes = [np.full(len(x), level) for level in levels]
    else:
        at_zero = epsilon_for_snr(x, 0, norm, mask)
        sizes = [at_zero * 10 ** (-level / 20) for level in levels]
    return np.concatenate(sizes).astype("float32").reshape(-1, *(1,) * (x.ndim - 1))


def check_amount(epsilon: ArrayLike | None, snr: float | None) -> None:
    """Raise unless exactly one of the two says how much an attack may change."""
    if (epsilon is None) == (snr is None):
        raise ValueError(
            "An attack must be told how much it may change: pass `epsilon`, in the units of the "
            "model's input, or `snr`, in decibels, and not both. "
            f"Received: epsilon={epsilon!r}, snr={snr!r}"
        )


def check_epsilon(epsilon: Any) -> np.ndarray:
    """Epsilon as an array of float32, or an error."""
    array = np.asarray(epsilon)
    if array.dtype.kind not in "fiu":
        raise TypeError(
            "`epsilon` must be a number or an array of numbers, in the units of the model's "
            f"input. Received: epsilon={epsilon!r}"
        )
    if not _is_size(array):
        raise ValueError(
            "`epsilon` must be finite and not negative; it is in the units of the model's input. "
            f"Received: epsilon={epsilon!r}"
        )
    return array.astype("float32")


def _is_size(epsilon: Any) -> bool:
    """Whether these are sizes of a perturbation, also when models compute in float32."""
    largest = float(np.finfo("float32").max)
    return bool(np.all(np.greater_equal(epsilon, 0) & np.less_equal(epsilon, largest)))


def align_epsilon(epsilon: np.ndarray, shape: tuple[int, ...], norm: Any) -> np.ndarray:
    """Epsilon with the rank of the input: one value, or one for each example or channel."""
    rank = len(shape)
    if epsilon.ndim == 0:
        aligned = epsilon.reshape((1,) * rank)
    elif epsilon.ndim == rank:
        aligned = epsilon
    else:
        aligned = _align_vector(epsilon, shape)
    fits = all(size in (1, axis) for size, axis in zip(aligned.shape, shape))
    if not fits or (norm == 2 and math.prod(aligned.shape[1:]) != 1):
        raise ValueError(
            "`epsilon` must be a number, one for each example, or (with norm='inf') one for each "
            f"channel. Received: epsilon of shape {epsilon.shape}, norm={norm!r}, for inputs of "
            f"shape {shape}"
        )
    return aligned


def _align_vector(epsilon: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    examples, channels, rank = shape[0], shape[-1], len(shape)
    if epsilon.ndim == 1 and examples == channels == len(epsilon):
        raise ValueError(
            f"`epsilon` has {len(epsilon)} values for as many examples as channels; say which is "
            "meant by its shape: (n, 1, ..., 1) for examples, (1, ..., 1, n) for channels. "
            f"Received: epsilon of shape {epsilon.shape}, for inputs of shape {shape}"
        )
    if epsilon.shape == (channels,):
        return epsilon.reshape((1,) * (rank - 1) + (-1,))
    if epsilon.shape == (examples,):
        return epsilon.reshape((-1,) + (1,) * (rank - 1))
    return epsilon.reshape(epsilon.shape + (1,) * max(0, rank - epsilon.ndim))
