"""Lipschitz constants of activation functions: the largest slope of each."""

import math

import keras
from keras import ops

from keras_parseval.analysis._rules import Constant, LayerCall, apply_rule

# Where the largest slope has no closed form it is rounded up. Those of gelu, silu and mish are
# taken where their second derivative is zero. The same numbers hold in the 2-norm and the
# inf-norm. For softmax these are the norms of diag(p) - p p^T, at p = (1/2, 1/2, 0, ...).
SLOPES = {
    "linear": 1.0,
    "relu": 1.0,
    "relu6": 1.0,
    "leaky_relu": 1.0,
    "elu": 1.0,
    "celu": 1.0,
    "selu": 1.758100,
    "softplus": 1.0,
    "squareplus": 1.0,
    "sparse_plus": 1.0,
    "softsign": 1.0,
    "sigmoid": 0.25,
    "log_sigmoid": 1.0,
    "hard_sigmoid": 1 / 6,
    "sparse_sigmoid": 0.5,
    "tanh": 1.0,
    "hard_tanh": 1.0,
    "tanh_shrink": 1.0,
    "soft_shrink": 1.0,
    "silu": 1.099840,
    "hard_silu": 1.5,
    "gelu": 1.128994,  # with the approximation by tanh; 1.128905 without
    "mish": 1.088510,
    "softmax": 0.5,
}
# By function, because a function of the same name may be anyone's. Some are missing in
# older versions of Keras.
_FUNCTIONS = {
    getattr(module, name): name
    for name in (*SLOPES, "log_softmax")
    for module in (ops, keras.activations)
    if hasattr(module, name)
}


def log_softmax_constant(norm, classes):
    """The constant of a logarithm of a softmax over so many classes.

    Its Jacobian `I - 1 p^T` is affine in the probabilities `p`. So its norm is convex, and the
    largest at a corner of the simplex, which it comes arbitrarily close to: at `p = (1, 0, ...)`
    it maps the others' changes to themselves, and that of the first to minus it in all others.
    The squared singular values are those of `I + 1 1^T` for `classes - 1` rows: `classes` at most.
    A row has the 1-norm `2 (1 - p_i)`.
    """
    if classes is None and norm == 2:
        raise ValueError(
            "The Lipschitz constant of `log_softmax` in the 2-norm is the root of the number of "
            "classes; give the model's inputs a fixed shape. Received: an unknown number"
        )
    if classes == 1:
        return 0.0
    return 2.0 if norm == "inf" else math.sqrt(classes)


def activation_constant(layer, call):
    """The Lipschitz constant of a layer's `activation`, which acts on the layer's output."""
    activation, shape = layer.activation, call.output_shape
    if activation is None:
        return Constant(1.0, "linear")
    if isinstance(activation, keras.layers.Layer):
        return _of_layer(activation, LayerCall(call.norm, call.method, (shape,), shape))
    name = _FUNCTIONS.get(activation)
    if name is None:
        raise ValueError(
            f"The Lipschitz constant of the activation {activation!r} is not known. Use one "
            "of " + ", ".join(sorted(set(_FUNCTIONS.values()))) + ", or write the activation as a "
            "layer of its own class and register a rule for it with "
            f"`@kp.analysis.lipschitz_rule(LayerClass)`. Received: layer '{layer.name}'"
        )
    if name == "log_softmax":
        return Constant(log_softmax_constant(call.norm, shape[-1]), name)
    return Constant(SLOPES[name], name)


def _of_layer(activation, call):
    try:
        (bound,) = apply_rule(activation, call)[0].bound
    except AttributeError as error:
        if activation.built:
            raise
        # Keras does not build an activation with the layer that has it.
        raise ValueError(
            "A layer that is an activation must have its weights to have a constant: call the "
            f"model once, on data. Received: '{activation.name}', not built"
        ) from error
    return Constant(bound, activation.name)
