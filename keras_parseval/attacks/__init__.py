"""Attacks on classifiers, and the measures of how strong they are."""

from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._fgsm import FGSM
from keras_parseval.attacks._iterated import PGD, IteratedFGSM
from keras_parseval.attacks._levels import epsilon_for_snr, snr

__all__ = ["FGSM", "PGD", "Attack", "IteratedFGSM", "epsilon_for_snr", "snr"]
