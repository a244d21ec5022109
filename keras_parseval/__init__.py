"""Parseval networks for Keras 3: robust by construction."""

from keras_parseval import analysis as analysis
from keras_parseval import attacks as attacks
from keras_parseval import callbacks as callbacks
from keras_parseval import constraints as constraints
from keras_parseval import initializers as initializers
from keras_parseval import layers as layers
from keras_parseval import losses as losses
from keras_parseval import models as models
from keras_parseval import plots as plots
from keras_parseval import regularizers as regularizers
from keras_parseval import reports as reports
from keras_parseval.analysis import (
    certified_accuracy,
    certified_radius,
    lipschitz_bound,
    lipschitz_report,
    robust_accuracy,
    singular_values,
    tightness,
)
from keras_parseval.attacks import FGSM, IteratedFGSM
from keras_parseval.callbacks import AdversarialEvaluation, AdversarialTraining, SpectrumLogger
from keras_parseval.constraints import (
    ParsevalConvolution,
    ParsevalTightFrame,
    Simplex,
    tight_convolution,
    tight_frame,
)
from keras_parseval.initializers import TightConvolution, TightFrame
from keras_parseval.layers import ConvexAdd, MaxMin
from keras_parseval.models import parseval, parseval_plan, tighten
from keras_parseval.regularizers import TightFrameRegularizer
from keras_parseval.reports import RobustnessReport, report

__version__ = "0.1.0"

__all__ = [
    "FGSM",
    "AdversarialEvaluation",
    "AdversarialTraining",
    "ConvexAdd",
    "IteratedFGSM",
    "MaxMin",
    "ParsevalConvolution",
    "ParsevalTightFrame",
    "RobustnessReport",
    "Simplex",
    "SpectrumLogger",
    "TightConvolution",
    "TightFrame",
    "TightFrameRegularizer",
    "certified_accuracy",
    "certified_radius",
    "lipschitz_bound",
    "lipschitz_report",
    "parseval",
    "parseval_plan",
    "report",
    "robust_accuracy",
    "singular_values",
    "tight_convolution",
    "tight_frame",
    "tighten",
    "tightness",
]
