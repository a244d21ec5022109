"""Constraints on weights, applied by Keras after every update."""

from keras_parseval._convolution_frames import project_tight_convolution, tight_convolution_step
from keras_parseval._simplex import project_simplex
from keras_parseval._subspace_steps import subspace_tight_frame_step
from keras_parseval._tight_frames import (
    project_tight_frame,
    sampled_tight_frame_step,
    tight_frame_step,
)
from keras_parseval.constraints._parseval_convolution import ParsevalConvolution
from keras_parseval.constraints._parseval_tight_frame import ParsevalTightFrame
from keras_parseval.constraints._simplex_constraint import Simplex
from keras_parseval.constraints._with_initializer import tight_convolution, tight_frame

__all__ = [
    "ParsevalConvolution",
    "ParsevalTightFrame",
    "Simplex",
    "project_simplex",
    "project_tight_convolution",
    "project_tight_frame",
    "sampled_tight_frame_step",
    "subspace_tight_frame_step",
    "tight_convolution",
    "tight_convolution_step",
    "tight_frame",
    "tight_frame_step",
]
