"""Attacks on classifiers, and the measures of how strong they are."""

from keras_parseval.attacks._apgd import APGD
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._ensemble import Ensemble, quick, standard
from keras_parseval.attacks._fgsm import FGSM
from keras_parseval.attacks._iterated import PGD, IteratedFGSM
from keras_parseval.attacks._levels import epsilon_for_snr, snr
from keras_parseval.attacks._square import Square

__all__ = [
    "APGD",
    "FGSM",
    "PGD",
    "Attack",
    "Ensemble",
    "IteratedFGSM",
    "Square",
    "epsilon_for_snr",
    "quick",
    "snr",
    "standard",
]
