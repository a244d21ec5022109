"""Which layers of a model are its classifiers: after them only activations follow."""

from typing import Any

from keras_parseval._keras_internals import is_graph, last_operations
from keras_parseval._layer_kernels import kernels_inside

# Layers, and operations of `keras.ops`, that may stand between a classifier and the output.
_AFTER_A_CLASSIFIER = frozenset(
    "Activation ReLU Relu LeakyReLU PReLU ELU Elu Softmax LogSoftmax Sigmoid Tanh MaxMin Identity "
    "Dropout Flatten Reshape Permute Transpose Squeeze ExpandDims Cast GlobalAveragePooling1D "
    "GlobalAveragePooling2D GlobalAveragePooling3D".split()
)


def classifiers_of(model: Any) -> set[Any]:
    """The layers with kernels that are met first from the outputs back, in nested models too.

    Args:
        model: A Keras model. One without a graph, or that is not built, has no known classifier.
    """
    if not is_graph(model) or not model.built or not model.inputs:
        return set()
    last = last_operations(model, _may_follow_a_classifier)
    return {operation for operation in last if kernels_inside(operation)}


def _may_follow_a_classifier(operation: Any) -> bool:
    return type(operation).__name__ in _AFTER_A_CLASSIFIER and not kernels_inside(operation)
