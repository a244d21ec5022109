"""What an attack and its data must be, checked before anything is computed."""

import math

import keras
import numpy as np
from keras import ops

from keras_parseval._validation import check_choice, check_integer, check_norm
from keras_parseval.classifier import label_encoding
from keras_parseval.noise import is_size


def check_attack(attack):
    # Frozen for its users: what it holds is a copy of what they gave.
    object.__setattr__(attack, "epsilon", _check_epsilon(attack.epsilon))
    object.__setattr__(attack, "norm", check_norm(attack.norm))
    check_choice("labels", attack.labels, ("predicted", "true", "least_likely"))
    object.__setattr__(attack, "bounds", _check_bounds(attack.bounds))
    if attack.mask is not None:
        object.__setattr__(attack, "mask", _frozen(attack.mask))
    perturb = attack.perturb
    if not (perturb is None or isinstance(perturb, str)):
        rule = "None, the name of an input or its index, 0 or more"
        check_integer("perturb", perturb, rule, lambda value: value >= 0)


def _check_epsilon(epsilon):
    array = np.asarray(epsilon)
    if array.dtype.kind not in "fiu":
        raise TypeError(
            "`epsilon` must be a number or an array of numbers, in the units of the model's "
            f"input. Received: epsilon={epsilon!r}"
        )
    if not is_size(array):
        raise ValueError(
            "`epsilon` must be finite and not negative; it is in the units of the model's input. "
            f"Received: epsilon={epsilon!r}"
        )
    return _frozen(array) if array.ndim else float(array)


def _frozen(array):
    array = np.array(array)
    array.setflags(write=False)
    return array


def _check_bounds(bounds):
    if bounds is None:
        return None
    pair = np.asarray(bounds)
    if pair.shape != (2,) or pair.dtype.kind not in "fiu":
        raise TypeError(
            "`bounds` must be None or a pair of numbers (low, high), the smallest and the "
            f"largest value of the model's input. Received: bounds={bounds!r}"
        )
    if not pair[0] < pair[1]:
        raise ValueError(
            f"`bounds` must be (low, high), with low < high. Received: bounds={bounds!r}"
        )
    return float(pair[0]), float(pair[1])


def check_labels_given(attack, y):
    """Raise if the attack needs labels that are not there."""
    if attack.labels == "true" and y is None:
        raise ValueError(
            'An attack with labels="true" must be given the labels; pass `y`, or use '
            'labels="predicted". Received: y=None'
        )


def check_labels(model, loss, y, examples):
    """Raise unless these can be the labels of so many examples, in the encoding of the loss."""
    labels, by_number = np.asarray(y), label_encoding(model, loss) in ("integer", None)
    output = _output_shape(model, labels, by_number)
    shape = (examples, *(output[1:-1] if by_number else output[1:]))
    if labels.dtype.kind not in "biuf" or not _same_shape(labels.shape, shape):
        raise ValueError(
            "Labels must be numbers, in the shape that the loss takes for this model and these "
            f"inputs, {shape}. Received: labels of shape {labels.shape} and dtype {labels.dtype}"
        )
    # What is wrong with a single unit, the classifier itself says better.
    unknown = output[-1] in (None, 1)
    largest = 1 if not by_number else math.inf if unknown else output[-1] - 1
    whole = not by_number or (labels == np.floor(labels)).all()
    if labels.size and not (whole and labels.min() >= 0 and labels.max() <= largest):
        rule = f"the numbers of classes, from 0 to {largest}" if by_number else "between 0 and 1"
        raise ValueError(
            f"Labels must be {rule}. Received: labels from {labels.min()} to {labels.max()}"
        )


def _output_shape(model, labels, by_number):
    """The shape of the model's output; where only data would tell, of one that fits the labels."""
    outputs = getattr(model, "outputs", None)
    if outputs:
        return tuple(outputs[0].shape)
    return (None, *labels.shape[1:], None) if by_number else labels.shape


def _same_shape(shape, other):
    shape, other = _without_last_one(shape), _without_last_one(other)
    return len(shape) == len(other) and all(a == b or b is None for a, b in zip(shape, other))


def _without_last_one(shape):
    # Keras takes labels of shape (n, 1) for (n,), and the reverse.
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def check_inputs(attack, inputs):
    """Raise unless the input to perturb is there and can be moved; return it."""
    x = _check_perturb(attack, inputs)
    dtype = keras.backend.standardize_dtype(x.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise TypeError(
            "An input must consist of floating-point numbers to be perturbed: an attack moves it "
            'by less than 1. Convert images, as in `x.astype("float32") / 255`, and let the '
            f"model take pixels in [0, 1]. Received: dtype={dtype}"
        )
    if attack.mask is not None:
        shape, mask = tuple(x.shape), attack.mask.shape
        aligned = zip(reversed(mask), reversed(shape))
        if len(mask) > len(shape) or any(m not in (1, n) and n is not None for m, n in aligned):
            raise ValueError(
                "`mask` must broadcast to the input that is perturbed. "
                f"Received: mask of shape {mask}, for an input of shape {shape}"
            )
    return x


def _check_perturb(attack, inputs):
    several = isinstance(inputs, (list, tuple, dict))
    if not several and not hasattr(inputs, "dtype"):
        raise TypeError(f"Inputs must be arrays or tensors. Received: {type(inputs).__name__}")
    if several != (attack.perturb is not None):
        raise ValueError(
            "`perturb` must name the input to perturb, by its key or index, if the model has "
            "several inputs (a list or a dictionary), and be None if it has one. "
            f"Received: perturb={attack.perturb!r}, for "
            + (f"{len(inputs)} inputs" if several else "one input")
        )
    try:
        return attack.select(inputs)
    except (KeyError, IndexError, TypeError) as error:
        names = list(inputs) if isinstance(inputs, dict) else f"0 to {len(inputs) - 1}"
        raise ValueError(
            "`perturb` must be the key or index of one of the model's inputs. "
            f"Received: perturb={attack.perturb!r}, for inputs {names}"
        ) from error


def check_finite(inputs):
    """Raise if an input holds NaN or infinity, which spread to whatever is computed from it."""
    for array in map(ops.convert_to_numpy, keras.tree.flatten(inputs)):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                "The inputs must be finite; look for NaN in the data. "
                "Received: inputs with NaN or infinity"
            )


def not_a_number(model):
    """The error for a model that makes NaN of finite inputs."""
    return ValueError(
        "The outputs and gradients of the model must be numbers; look for NaN and infinity in its "
        f"weights, and for an epsilon out of all proportion. Received: NaN from '{model.name}'"
    )


def check_data(attack, inputs):
    """Raise unless the data is such that the attack means something; return what it moves."""
    x = ops.convert_to_numpy(check_inputs(attack, inputs))
    if not x.size:
        raise ValueError(f"There must be at least one example. Received: shape={x.shape}")
    check_finite(inputs)
    if attack.bounds is not None:
        low, high = attack.bounds
        if x.min() < low or x.max() > high:
            raise ValueError(
                "The inputs must lie in `bounds`, which are in the units of the model's input. "
                f"Received: bounds={attack.bounds!r}, inputs from {x.min()} to {x.max()}"
            )
    return x


def align_epsilon(epsilon, shape, norm):
    """Epsilon with the rank of the input: one value, or one for each example or channel."""
    epsilon, rank = np.asarray(epsilon, dtype="float32"), len(shape)
    if epsilon.ndim == 0:
        aligned = epsilon.reshape((1,) * rank)
    elif epsilon.ndim == rank:
        aligned = epsilon
    else:
        aligned = _align_vector(epsilon, shape)
    fits = all(size in (1, axis) for size, axis in zip(aligned.shape, shape))
    if not fits or (norm == 2 and math.prod(aligned.shape[1:]) != 1):
        raise ValueError(
            "`epsilon` must be a number, one for each example, or (with norm='inf') one for each "
            f"channel. Received: epsilon of shape {epsilon.shape}, norm={norm!r}, for inputs of "
            f"shape {shape}"
        )
    return aligned


def _align_vector(epsilon, shape):
    examples, channels, rank = shape[0], shape[-1], len(shape)
    if epsilon.ndim == 1 and examples == channels == len(epsilon):
        raise ValueError(
            f"`epsilon` has {len(epsilon)} values for as many examples as channels; say which is "
            "meant by its shape: (n, 1, ..., 1) for examples, (1, ..., 1, n) for channels. "
            f"Received: epsilon of shape {epsilon.shape}, for inputs of shape {shape}"
        )
    if epsilon.shape == (channels,):
        return epsilon.reshape((1,) * (rank - 1) + (-1,))
    if epsilon.shape == (examples,):
        return epsilon.reshape((-1,) + (1,) * (rank - 1))
    return epsilon.reshape(epsilon.shape + (1,) * max(0, rank - epsilon.ndim))
