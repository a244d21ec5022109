"""Histograms of singular values."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_parseval._kernel_readings import CONVOLUTION_READINGS, Convolutions
from keras_parseval._validation import check_choice
from keras_parseval.analysis._kernel_selection import select_kernels
from keras_parseval.analysis._spectra import kernel_singular_values
from keras_parseval.plots._style import axes_or_new, check_named, finish, styles

_OF_WHAT = {None: "", "kernel": " of the kernel", "operator": " of the operator"}


def spectra(
    models: Mapping[str, Any],
    *,
    layers: Any = None,
    convolutions: Convolutions | None = None,
    ax: Any = None,
) -> Any:
    """Histograms of the singular values of several models.

    The values are divided by their target, so that 1, the dotted line, means tight for
    every kernel. The vertical axis is logarithmic: the values of a tight frame are all in one bin.

    Args:
        models: Dictionary of built models, by the names for the legend.
        layers: The layers to count: a layer's name or a list of names. By default all that
            have kernels, the classifier among them. Defaults to `None`.
        convolutions: As in `kp.singular_values`: `"kernel"` for the spectra of flattened kernels,
            `"operator"` for those of the convolutions themselves; the label of the axis says
            which. Defaults to `None`.
        ax: The Axes to draw into. Defaults to those of a new figure.

    Returns:
        The Axes.

    Example:

    ```python
    layers = [keras.layers.Dense(64, kernel_initializer=kp.TightFrame()), keras.layers.Dense(64)]
    models = {
        name: keras.Sequential([keras.Input((64,)), layer])
        for name, layer in zip(("tight", "plain"), layers)
    }
    kp.plots.spectra(models)
    ```
    """
    check_named("models", models, keras.Model)
    check_choice("convolutions", convolutions, CONVOLUTION_READINGS)
    by_name = {
        name: _relative_spectrum(name, model, layers, convolutions)
        for name, model in models.items()
    }
    ax = axes_or_new(ax)
    edges = _bins(max(1.5, *(values.max() for values in by_name.values())))
    for (name, values), style in zip(by_name.items(), styles()):
        shares = np.histogram(values, edges)[0] / len(values)
        ax.stairs(shares, edges, fill=True, color=style["color"], alpha=0.25)
        line = {"color": style["color"], "linestyle": style["linestyle"]}
        ax.stairs(shares, edges, label=name, linewidth=1.5, **line)
    ax.axvline(1, color="black", linestyle=":", linewidth=1)
    ax.set_yscale("log")
    ax.set_xlim(0, edges[-1])
    ax.set_xlabel(f"singular value{_OF_WHAT[convolutions]} / target")
    ax.set_ylabel("share of the singular values")
    return finish(ax)


def _relative_spectrum(
    name: str, model: Any, layers: Any, convolutions: Convolutions | None
) -> np.ndarray:
    values = np.concatenate(
        [
            kernel_singular_values(kernel, True, convolutions)
            for kernel in select_kernels(model, layers).values()
        ]
    )
    if not np.isfinite(values).all():
        raise ValueError(f"Kernels must be finite. Received: NaN or infinity in model '{name}'")
    return values


def _bins(largest: float) -> np.ndarray:
    """About 40 bins from 0, one of which is centred at 1: it takes all of a tight frame."""
    width = 1 / (round(40 / largest) + 0.5)
    return width * np.arange(np.ceil(largest / width) + 1)
