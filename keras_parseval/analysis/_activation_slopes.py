"""Lipschitz constants of activation functions: the largest slope of each."""

import keras

_A = keras.activations
# Where the largest slope has no closed form it is rounded up. Those of gelu, silu and mish are
# taken where their second derivative is zero. The same numbers hold in the 2-norm and the
# inf-norm. For softmax these are the norms of diag(p) - p p^T, at p = (1/2, 1/2, 0, ...).
_SLOPES = {
    "linear": 1.0,
    "relu": 1.0,
    "relu6": 1.0,
    "leaky_relu": 1.0,
    "elu": 1.0,
    "celu": 1.0,
    "selu": 1.758100,
    "softplus": 1.0,
    "softsign": 1.0,
    "sigmoid": 0.25,
    "log_sigmoid": 1.0,
    "hard_sigmoid": 1 / 6,
    "tanh": 1.0,
    "hard_tanh": 1.0,
    "tanh_shrink": 1.0,
    "soft_shrink": 1.0,
    "silu": 1.099840,
    "hard_silu": 1.5,
    "gelu": 1.128906,
    "mish": 1.088510,
    "softmax": 0.5,
}
# By function, because a function of the same name may be anyone's. Some are missing in
# older versions of Keras.
CONSTANTS = {getattr(_A, name): slope for name, slope in _SLOPES.items() if hasattr(_A, name)}


def activation_constant(layer):
    """The Lipschitz constant of a layer's `activation`."""
    if layer.activation is None:
        return 1.0
    if layer.activation not in CONSTANTS:
        raise ValueError(
            f"The Lipschitz constant of the activation {layer.activation!r} is not known. Use one "
            "of " + ", ".join(sorted(_SLOPES)) + ", or write the activation as a layer of its own "
            "class and register a rule for it with `@kp.analysis.lipschitz_rule(LayerClass)`. "
            f"Received: layer '{layer.name}'"
        )
    return CONSTANTS[layer.activation]
