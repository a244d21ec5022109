"""Lipschitz rules for operations of `keras.ops` that compute: arithmetic, functions, reductions."""

import inspect
import math

import keras
import numpy as np
from keras import ops

from keras_parseval._precision import finite_float64
from keras_parseval.analysis._activation_slopes import SLOPES, log_softmax_constant
from keras_parseval.analysis._batch_axis import check_axes, check_known, count, mixes_examples
from keras_parseval.analysis._layer_rules import spread
from keras_parseval.analysis._operator_norms import matrix_of, spectral_norm
from keras_parseval.analysis._rules import Constant, operation_rule

# A linear operation with at most so many entries as a matrix is decomposed as a matrix.
_SMALL = 2**22


def is_tensor(argument):
    """Whether an argument is a tensor of the graph. All others are constants."""
    return isinstance(argument, keras.KerasTensor)


def _values(operation, constant):
    return finite_float64(constant, f"a constant of '{operation.name}'")


def _broadcast(operation, call):
    """`spread`, for operations, which broadcast from the last axis, and so may move the batch's."""
    shapes = [argument.shape for argument in call.arguments.values() if is_tensor(argument)]
    if any(len(shape) != len(call.output_shape) + 1 for shape in shapes):
        raise mixes_examples(operation, f"shapes {shapes}, which it broadcasts")
    return spread(call)


@operation_rule("Add", "Subtract")
def _sum(operation, call):
    return Constant(_broadcast(operation, call), "sum")


@operation_rule("Maximum", "Minimum", "Fmax", "Fmin", "Clip", "Logaddexp", combine="stack")
def _extremum(operation, call):
    # The gradient of log(exp(a) + exp(b)) is convex weights for a and b, no more than a choice.
    return Constant(_broadcast(operation, call), "chooses elements")


@operation_rule("Where", combine="stack")
def _where(operation, call):
    if is_tensor(call.arguments["condition"]):
        raise ValueError(
            "A choice by a condition that depends on the input may jump, and has no Lipschitz "
            "constant; write it with `maximum`, `minimum`, `clip` or `relu`. "
            f"Received: '{operation.name}'"
        )
    return Constant(_broadcast(operation, call), "chooses elements")


@operation_rule("Multiply")
def _product(operation, call):
    first, second = call.arguments["x1"], call.arguments["x2"]
    if is_tensor(first) and is_tensor(second):
        raise _product_of_tensors(operation)
    factors = np.abs(_values(operation, first if is_tensor(second) else second))
    return Constant(factors.max() * _broadcast(operation, call)[0], "largest factor")


def _product_of_tensors(operation):
    return ValueError(
        "The product of two tensors that depend on the input is steeper the larger they are, "
        "without limit, and has no Lipschitz constant; add, average or concatenate them instead. "
        f"Received: '{operation.name}' of class {type(operation).__name__}"
    )


@operation_rule("Divide", "TrueDivide")
def _quotient(operation, call):
    divisor = call.arguments["x2"]
    least = 0.0 if is_tensor(divisor) else np.abs(_values(operation, divisor)).min()
    if not least:
        raise ValueError(
            "A divisor must be a constant other than zero. One that depends on the input may be "
            "arbitrarily small, and the quotient has no Lipschitz constant. "
            f"Received: '{operation.name}' by {divisor}"
        )
    return Constant(_broadcast(operation, call)[0] / least, "1 / smallest divisor")


def _operation_class(name):
    return "".join(part.capitalize() for part in name.split("_"))


_FUNCTIONS = {_operation_class(name): slope for name, slope in SLOPES.items()} | {
    **dict.fromkeys(("Absolute", "Abs", "Fabs", "Negative", "Copy", "StopGradient"), 1.0),
    **dict.fromkeys(("Sin", "Cos", "Arctan", "Arcsinh"), 1.0),
    **dict.fromkeys(("Erf", "Erfc"), 2 / math.sqrt(math.pi)),
    **dict.fromkeys(("ZerosLike", "OnesLike"), 0.0),
}


@operation_rule(*_FUNCTIONS)
def _function(operation, call):
    slope = _FUNCTIONS[_known_name(operation)]
    # What ReLU with a leak, or ELU, does to negative numbers.
    parameter = {"LeakyRelu": "negative_slope", "Elu": "alpha"}.get(_known_name(operation))
    if parameter:
        slope = max(slope, abs(float(getattr(operation, parameter))))
    return Constant(slope, "largest slope")


def _known_name(operation):
    return next(each.__name__ for each in type(operation).__mro__ if each.__name__ in _FUNCTIONS)


@operation_rule("Softmax", "LogSoftmax", "Sparsemax", "Logsumexp")
def _softmax(operation, call):
    name = type(operation).__name__
    axes = check_axes(operation, operation.axis, call)
    if name == "LogSoftmax":
        sizes = [call.input_shapes[0][axis - 1] for axis in axes]
        classes = None if None in sizes else math.prod(sizes)
        return Constant(log_softmax_constant(call.norm, classes), "log_softmax")
    # The gradient of a logarithm of a sum of exponentials is probabilities: both norms at most 1.
    # Sparsemax projects, its Jacobian on n classes is I - 1 1^T / n: 1-norms of rows below 2.
    constant = {"Softmax": 0.5, "Logsumexp": 1.0}.get(name, 2.0 if call.norm == "inf" else 1.0)
    return Constant(constant, name.lower())


@operation_rule("Cast", "ConvertToTensor")
def _cast(operation, call):
    if operation.dtype and not keras.backend.is_float_dtype(operation.dtype):
        raise ValueError(
            "A cast to integers rounds, and has no Lipschitz constant. "
            f"Received: '{operation.name}' to {operation.dtype}"
        )
    return Constant(1.0, "cast")


@operation_rule("Sum", "Mean")
def _sum_or_mean(operation, call):
    size = count(operation, check_axes(operation, operation.axis, call), call)
    constant = float(size) if call.norm == "inf" else size**0.5
    if type(operation).__name__ == "Mean":
        return Constant(constant / size, f"mean of {size}")
    return Constant(constant, f"sum of {size}")


@operation_rule("Max", "Min", "Amax", "Amin", "Sort")
def _chooses_or_sorts(operation, call):
    check_axes(operation, operation.axis, call)
    return Constant(1.0, "chooses or sorts elements")


@operation_rule("Matmul", "Dot")
def _matrix_product(operation, call):
    first, second = call.arguments["x1"], call.arguments["x2"]
    # The usual case at any size: every vector along the last axis times a matrix.
    matrix = np.zeros(0) if is_tensor(second) else _values(operation, second)
    if is_tensor(first) and len(first.shape) > 1 and matrix.ndim == 2:
        bound = np.abs(matrix).sum(axis=0).max() if call.norm == "inf" else spectral_norm(matrix)
        return Constant(bound, "norm of the matrix")
    return _linear(operation, call)


@operation_rule(
    *("Einsum", "Tensordot", "Inner", "Cumsum", "Diff", "Trace", "Average"),
    *("Conv", "DepthwiseConv", "SeparableConv", "ConvTranspose", "Unfold", "Fold"),
    *("RGBToGrayscale", "GaussianBlur", "SobelEdges"),
)
def _linear(operation, call):
    if len(call.input_shapes) > 1:
        raise _product_of_tensors(operation)
    (shape,) = call.input_shapes
    check_known(operation, shape, call.output_shape)
    if math.prod(shape) * math.prod(call.output_shape) > _SMALL:
        raise ValueError(
            f"A linear operation must have at most {_SMALL} entries as a matrix to be decomposed; "
            "use a layer, such as `Dense` or `Conv2D`, which have rules for any size. "
            f"Received: '{operation.name}' from {shape} to {call.output_shape}"
        )
    matrix = matrix_of(lambda batch: run(operation, call, [batch.astype("float32")])[0], shape)
    if matrix is None:
        raise mixes_examples(operation, f"input shape {shape}, or is not linear")
    bound = np.abs(matrix).sum(axis=1).max() if call.norm == "inf" else spectral_norm(matrix)
    return Constant(bound, "norm of the matrix")


def run(operation, call, inputs):
    """What the operation returns, as a list of arrays, with other inputs and its own constants."""
    remaining = iter(inputs)

    def fill(argument):
        return ops.convert_to_tensor(next(remaining)) if is_tensor(argument) else argument

    bound = inspect.signature(type(operation).call).bind_partial(operation)
    bound.arguments.update(keras.tree.map_structure(fill, dict(call.arguments)))
    try:
        outputs = type(operation).call(*bound.args, **bound.kwargs)
    except Exception as error:
        raise ValueError(
            "An operation must run on a batch of any size to have a Lipschitz constant. Received: "
            f"'{operation.name}' of class {type(operation).__name__}, which fails: {error}"
        ) from error
    return [ops.convert_to_numpy(each) for each in keras.tree.flatten(outputs)]
