"""Callbacks for `model.fit`."""

from keras_parseval.callbacks._adversarial_evaluation import AdversarialEvaluation
from keras_parseval.callbacks._adversarial_training import AdversarialTraining
from keras_parseval.callbacks._spectrum_logger import SpectrumLogger

__all__ = ["AdversarialEvaluation", "AdversarialTraining", "SpectrumLogger"]
