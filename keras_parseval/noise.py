"""How strong a perturbation is: signal-to-noise ratios and epsilons."""

import numpy as np
from keras import ops

from keras_parseval._validation import check_norm, check_number

DEFAULT_SNR = (50, 45, 40, 33)


def snr(x, x_adv):
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
    kp.snr(x, x + 0.01)
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


def epsilon_for_snr(x, snr, norm="inf"):
    """The size of a perturbation that has the given signal-to-noise ratio, for each example.

    A step of the fast gradient sign method changes every feature by epsilon,
    so its 2-norm is `epsilon sqrt(D)`, with `D` features.

    Args:
        x: The examples, along the first axis.
        snr: The ratio in decibels.
        norm: The norm that epsilon is measured in, `"inf"` or 2.

    Returns:
        Array with one epsilon for each example, in the units of `x`.

    Example:

    ```python
    x = keras.random.uniform((16, 8))
    attack = kp.FGSM(kp.epsilon_for_snr(x, snr=40))
    ```
    """
    norm = check_norm(norm)
    (level,) = check_levels("snr", [snr])
    x = _examples(x)
    radius = np.linalg.norm(x.reshape(len(x), -1), axis=1) * 10 ** (-level / 20)
    return radius if norm == 2 else radius / np.sqrt(x[0].size)


def _examples(x):
    """Examples along the first axis, as float64."""
    x = np.asarray(ops.convert_to_numpy(x), "float64")
    if not x.ndim or not x.size:
        raise ValueError(
            f"There must be at least one example, along the first axis. Received: shape={x.shape}"
        )
    if not np.isfinite(x).all():
        raise ValueError("The examples must be finite. Received: examples with NaN or infinity")
    return x


def choose_levels(snr, epsilon):
    """The measure and its levels, from what the user gave."""
    if snr is not None and epsilon is not None:
        raise ValueError(
            "Levels must be given as `snr` or as `epsilon`, not as both. "
            f"Received: snr={snr!r}, epsilon={epsilon!r}"
        )
    if epsilon is not None:
        return "epsilon", check_levels("epsilon", epsilon)
    return "snr", check_levels("snr", DEFAULT_SNR if snr is None else snr)


def check_levels(name, levels):
    levels = [levels] if np.ndim(levels) == 0 else list(levels)
    if not levels:
        raise ValueError(f"`{name}` must have at least one level. Received: {name}={levels!r}")
    if name == "snr":
        rule = "finite, from -300 to 300 decibels"
        return [check_number("snr", each, rule, lambda value: abs(value) <= 300) for each in levels]
    rule = "finite and not negative, in the units of the model's input"
    return [check_number("epsilon", each, rule, is_size) for each in levels]


def is_size(epsilon):
    """Whether these are sizes of a perturbation, also when models compute in float32."""
    largest = float(np.finfo("float32").max)
    return np.all(np.greater_equal(epsilon, 0) & np.less_equal(epsilon, largest))
