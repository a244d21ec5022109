"""Parseval networks for Keras 3: robust by construction."""

from keras_parseval import models as models
from keras_parseval import plots as plots
from keras_parseval.analysis.certificates import adversarial_loss_bound as adversarial_loss_bound
from keras_parseval.analysis.certificates import certified_accuracy as certified_accuracy
from keras_parseval.analysis.certificates import certified_radius as certified_radius
from keras_parseval.analysis.covariance import CovarianceDimension as CovarianceDimension
from keras_parseval.analysis.covariance import covariance_dimension as covariance_dimension
from keras_parseval.analysis.lipschitz import LipschitzBound as LipschitzBound
from keras_parseval.analysis.lipschitz import lipschitz_bound as lipschitz_bound
from keras_parseval.analysis.lipschitz import lipschitz_report as lipschitz_report
from keras_parseval.analysis.rules import lipschitz_rule as lipschitz_rule
from keras_parseval.analysis.spectra import singular_values as singular_values
from keras_parseval.analysis.spectra import tightness as tightness
from keras_parseval.attacks import FGSM as FGSM
from keras_parseval.attacks import IteratedFGSM as IteratedFGSM
from keras_parseval.callbacks import AdversarialEvaluation as AdversarialEvaluation
from keras_parseval.callbacks import AdversarialTraining as AdversarialTraining
from keras_parseval.callbacks import SpectrumLogger as SpectrumLogger
from keras_parseval.constraints import ParsevalTightFrame as ParsevalTightFrame
from keras_parseval.constraints import Simplex as Simplex
from keras_parseval.conversion import parseval as parseval
from keras_parseval.conversion import parseval_plan as parseval_plan
from keras_parseval.initializers import TightFrame as TightFrame
from keras_parseval.layers import ConvexAdd as ConvexAdd
from keras_parseval.layers import MaxMin as MaxMin
from keras_parseval.layers import convex_add as convex_add
from keras_parseval.noise import epsilon_for_snr as epsilon_for_snr
from keras_parseval.noise import snr as snr
from keras_parseval.projections import project_simplex as project_simplex
from keras_parseval.projections import project_tight_frame as project_tight_frame
from keras_parseval.projections import sampled_tight_frame_step as sampled_tight_frame_step
from keras_parseval.projections import tight_frame_step as tight_frame_step
from keras_parseval.regularizers import TightFrameRegularizer as TightFrameRegularizer
from keras_parseval.robustness import RobustAccuracy as RobustAccuracy
from keras_parseval.robustness import robust_accuracy as robust_accuracy

__version__ = "0.1.0"
