"""One page that tells how robust a model is, to look at and to hand on."""

from keras_parseval.reports._report import report
from keras_parseval.reports._robustness_report import RobustnessReport

__all__ = ["RobustnessReport", "report"]
