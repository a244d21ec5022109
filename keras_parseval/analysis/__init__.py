"""What is known of a model: accuracy under attack, certificates, Lipschitz bounds, spectra."""

from keras_parseval.analysis._certified import (
    CertifiedAccuracy,
    adversarial_loss_bound,
    certified_accuracy,
    certified_radius,
)
from keras_parseval.analysis._covariance import CovarianceDimension, covariance_dimension
from keras_parseval.analysis._lipschitz import (
    LipschitzBound,
    LipschitzEntry,
    lipschitz_bound,
    lipschitz_report,
)
from keras_parseval.analysis._robust_accuracy import (
    AttackedExamples,
    RobustAccuracy,
    robust_accuracy,
)
from keras_parseval.analysis._rules import Constant, LayerCall, lipschitz_rule
from keras_parseval.analysis._spectra import singular_values, tightness

__all__ = [
    "AttackedExamples",
    "CertifiedAccuracy",
    "Constant",
    "CovarianceDimension",
    "LayerCall",
    "LipschitzBound",
    "LipschitzEntry",
    "RobustAccuracy",
    "adversarial_loss_bound",
    "certified_accuracy",
    "certified_radius",
    "covariance_dimension",
    "lipschitz_bound",
    "lipschitz_report",
    "lipschitz_rule",
    "robust_accuracy",
    "singular_values",
    "tightness",
]
