"""Figures of what the library measures. They need matplotlib: `keras-parseval[plots]`.

Each function draws into the Axes it is given, or into a figure of its own, and
returns the Axes. None of them changes matplotlib's settings or shows a window.
"""

from keras_parseval.plots.curves import accuracy_against_snr as accuracy_against_snr
from keras_parseval.plots.curves import covariance_dimension as covariance_dimension
from keras_parseval.plots.curves import learning_curves as learning_curves
from keras_parseval.plots.curves import lipschitz_bound as lipschitz_bound
from keras_parseval.plots.curves import singular_values as singular_values
from keras_parseval.plots.images import adversarial_grid as adversarial_grid
