"""Figures of what the library measures. They need matplotlib: `keras-parseval[plots]`.

Each function draws into the Axes it is given, or into a figure of its own, and
returns the Axes. None of them changes matplotlib's settings or shows a window.
"""

from keras_parseval.plots._curves import accuracies, bounds, dimensions, learning_curves
from keras_parseval.plots._images import adversarial_images
from keras_parseval.plots._spectra import spectra

__all__ = [
    "accuracies",
    "adversarial_images",
    "bounds",
    "dimensions",
    "learning_curves",
    "spectra",
]
