"""Callbacks for `model.fit`."""

from keras_parseval.callbacks.adversarial_evaluation import (
    AdversarialEvaluation as AdversarialEvaluation,
)
from keras_parseval.callbacks.adversarial_training import (
    AdversarialTraining as AdversarialTraining,
)
from keras_parseval.callbacks.spectrum import SpectrumLogger as SpectrumLogger
