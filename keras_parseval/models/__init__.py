"""The networks of the paper, and the Parseval counterpart of any other model."""

from keras_parseval.models._builders import VARIANTS, fully_connected, wide_resnet
from keras_parseval.models._conversion import parseval, parseval_plan
from keras_parseval.models._lipschitz_convnet import lipschitz_convnet
from keras_parseval.models._tighten import tighten

__all__ = [
    "VARIANTS",
    "fully_connected",
    "lipschitz_convnet",
    "parseval",
    "parseval_plan",
    "tighten",
    "wide_resnet",
]
