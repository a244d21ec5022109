"""Random small networks of every layer that has a Lipschitz rule, and how steep they really are."""

import functools

import keras
import numpy as np
from conftest import to_numpy
from keras import ops

import keras_parseval as kp
from keras_parseval._backend import call_compiled, input_gradient

L = keras.layers
ACTIVATIONS = (
    *("relu", "elu", "selu", "sigmoid", "tanh", "softplus", "softmax", "gelu", "silu", "linear"),
    *("leaky_relu", "relu6", "softsign", "hard_sigmoid", "hard_silu", "mish"),
)


def _layer(make):
    """A block of one layer."""
    return lambda x, rng: make(rng)(x)


def _pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def _convolution(kind, **options):
    def block(x, rng):
        stride = int(rng.integers(1, 3))
        dilation = 1 if stride > 1 else int(rng.integers(1, 3))
        settings = {"strides": stride, "dilation_rate": dilation}
        settings = {**settings, "kernel_size": int(rng.integers(1, 4)), **options}
        window = settings["dilation_rate"] * (settings["kernel_size"] - 1) + 1
        # A transposed convolution makes images larger, so any of them will do.
        fits = kind is L.Conv2DTranspose or window <= min(x.shape[1:3])
        return kind(padding=_pick(rng, *["same", "valid"][: 1 + fits]), **settings)(x)

    return block


def _merge(make):
    """Two branches that meet, one of them a convolution of the other."""
    return lambda x, rng: make()([x, L.Conv2D(x.shape[-1], 3, padding="same")(x)])


def _broadcast(x, rng):
    return L.Add()([x, L.Conv2D(1, 1)(x)])


def _nested_and_shared(x, rng):
    channels = x.shape[-1]
    inner = keras.Sequential([L.Conv2D(channels, 3, padding="same"), L.ReLU()])
    return inner(L.Rescaling(0.7)(inner(x)))


def _nested_functional(x, rng):
    inputs = keras.Input(x.shape[1:])
    both = [L.Conv2D(2, 2)(inputs), L.Conv2D(3, 2)(inputs)]
    return keras.Model(inputs, L.Concatenate()(both))(x)


def _sequence(x, rng):
    """Layers for sequences, on the image row by row."""
    height, width, channels = x.shape[1:]
    x = L.Reshape((height * width, channels))(x)
    x = L.Conv1D(4, 3, padding=_pick(rng, "same", "causal"), strides=2)(x)
    x = _pick(rng, L.AveragePooling1D, L.MaxPooling1D)(2, 1, padding="same")(x)
    x = L.UpSampling1D(2)(x)
    x = L.EinsumDense("abc,cd->abd", output_shape=(x.shape[1], 6))(x)
    return L.Reshape((x.shape[1], 2, 3))(x)


def _normalization(x, rng):
    channels = x.shape[-1]
    mean, variance = rng.normal(size=channels), rng.uniform(0.2, 2, size=channels)
    return L.Normalization(mean=mean.tolist(), variance=variance.tolist(), invert=_flag(rng))(x)


def _flag(rng):
    return bool(rng.integers(2))


class Residual(L.Layer):
    """A layer of one's own, without a rule, that calls another."""

    def build(self, shape):
        self.convolution = L.Conv2D(shape[-1], 3, padding="same")
        self.convolution.build(shape)

    def call(self, x):
        return x + ops.relu(self.convolution(x)) / 2


def _arithmetic(x, rng):
    """Operations in place of layers."""
    y = ops.tanh(2 * x - 1) / 3
    y = ops.maximum(y, x * rng.normal(size=x.shape[-1]).astype("float32"))
    return ops.concatenate([y - x, ops.mean(x, axis=1, keepdims=True)], axis=1)


def _movement(x, rng):
    """Slices and shapes."""
    first, *_ = ops.unstack(x, axis=1)
    x = ops.pad(x, ((0, 0), (1, 0), (1, 1), (0, 0)), mode=_pick(rng, "constant", "symmetric"))
    x = ops.stack([x[:, 0, 1:-1], first], axis=3)
    return ops.swapaxes(ops.repeat(x, 2, axis=1), 2, 3)


BLOCKS = {
    "arithmetic": _arithmetic,
    "movement": _movement,
    "layer of one's own": _layer(lambda rng: Residual()),
    "layer normalisation": _layer(lambda rng: L.LayerNormalization(axis=_pick(rng, -1, [1, 2, 3]))),
    "group normalisation": _layer(lambda rng: L.GroupNormalization(1, epsilon=0.1)),
    "each row": _layer(lambda rng: L.TimeDistributed(L.Conv1D(3, 2, padding="same"))),
    "Resizing": _layer(lambda rng: L.Resizing(5, 3, antialias=_flag(rng))),
    "CenterCrop": _layer(lambda rng: L.CenterCrop(3, 3)),
    "bilinear": _layer(lambda rng: L.UpSampling2D(2, interpolation="bilinear")),
    "augmentation": _layer(lambda rng: L.RandomRotation(0.2)),
    "activation of a layer": _layer(lambda rng: L.Dense(4, activation=kp.MaxMin())),
    "Conv2D": _convolution(L.Conv2D, filters=4),
    "grouped": lambda x, rng: _convolution(L.Conv2D, filters=4, groups=2)(L.Conv2D(4, 1)(x), rng),
    "DepthwiseConv2D": _convolution(L.DepthwiseConv2D, depth_multiplier=2),
    "SeparableConv2D": _convolution(L.SeparableConv2D, filters=3),
    "Conv2DTranspose": _convolution(L.Conv2DTranspose, filters=3, dilation_rate=1),
    "valid transpose": _layer(lambda rng: L.Conv2DTranspose(2, 3, 2)),
    "channel mixing": lambda x, rng: L.EinsumDense("abcd,de->abce", (*x.shape[1:3], 5))(x),
    "block diagonal": lambda x, rng: L.EinsumDense("abcd,cde->abce", (*x.shape[1:3], 2))(x),
    "Dense": _layer(lambda rng: L.Dense(3, _pick(rng, *ACTIVATIONS))),
    "max pooling": _layer(lambda rng: L.MaxPooling2D(int(rng.integers(1, 4)), 1, padding="same")),
    "max pooling, strides": _layer(lambda rng: L.MaxPooling2D(3, 2, padding="same")),
    "average pooling": _layer(lambda rng: L.AveragePooling2D(3, 2, padding="same")),
    "average pooling, valid": _layer(lambda rng: L.AveragePooling2D(2, 1)),
    "Add": _merge(L.Add),
    "Subtract": _merge(L.Subtract),
    "Average": _merge(L.Average),
    "Maximum": _merge(L.Maximum),
    "Minimum": _merge(L.Minimum),
    "Concatenate": _merge(L.Concatenate),
    "ConvexAdd": _merge(kp.ConvexAdd),
    "broadcast": _broadcast,
    "nested, shared": _nested_and_shared,
    "nested functional": _nested_functional,
    "sequence": _sequence,
    "Permute": _layer(lambda rng: L.Permute((2, 1, 3))),
    "Cropping2D": _layer(lambda rng: L.Cropping2D(((1, 0), (0, 1)))),
    "ZeroPadding2D": _layer(lambda rng: L.ZeroPadding2D(1)),
    "UpSampling2D": _layer(lambda rng: L.UpSampling2D((2, 1))),
    "Dropout": _layer(lambda rng: L.Dropout(0.5)),
    "BatchNormalization": _layer(lambda rng: L.BatchNormalization(scale=_flag(rng))),
    "Normalization": _normalization,
    "Rescaling": _layer(lambda rng: L.Rescaling(rng.normal(), offset=1.0)),
    "Activation": _layer(lambda rng: L.Activation(_pick(rng, *ACTIVATIONS))),
    "LeakyReLU": _layer(lambda rng: L.LeakyReLU(negative_slope=rng.uniform(0, 2))),
    "ReLU": _layer(lambda rng: L.ReLU(negative_slope=rng.uniform(0, 2))),
    "PReLU": _layer(lambda rng: L.PReLU(shared_axes=[1, 2])),
    "ELU": _layer(lambda rng: L.ELU(alpha=rng.uniform(0, 2))),
    "Softmax": _layer(lambda rng: L.Softmax()),
    "MaxMin": lambda x, rng: kp.MaxMin()(L.Conv2D(4, 1)(x)),
    "SpectralNormalization": _layer(lambda rng: L.SpectralNormalization(L.Conv2D(3, 2))),
    "Identity": _layer(lambda rng: L.Identity()),
}
for _name in ("Resizing", "bilinear"):
    try:
        BLOCKS[_name](np.zeros((1, 4, 4, 2), "float32"), np.random.default_rng(0))
    except (ImportError, ValueError):
        # Older versions of Keras ask for torchvision, or do not know `antialias`.
        del BLOCKS[_name]
ENDS = {
    "Flatten": lambda: L.Flatten(),
    "global average": lambda: L.GlobalAveragePooling2D(),
    "global max": lambda: L.GlobalMaxPooling2D(),
}


def random_network(blocks, end, seed, size=4):
    """A network of the given blocks with random weights, from images to five numbers."""
    rng = np.random.default_rng(seed)
    inputs = x = keras.Input((size, size, 2))
    for block in blocks:
        x = BLOCKS[block](x, rng)
    model = keras.Model(inputs, L.Dense(5)(ENDS[end]()(x)))
    for variable in model.variables:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue  # the state of a random number generator
        values = rng.normal(size=variable.shape)
        if "variance" in variable.path:
            values = rng.uniform(0.1, 2.0, size=variable.shape)
        elif "coefficients" in variable.path:
            values = rng.dirichlet(np.ones(variable.shape[0]))
        variable.assign(values)
    return model


def steepest(model, norm, seed=0, points=4, steps=5):
    """The largest slope that is found: norms of Jacobians, and ascent over pairs of inputs."""
    rng = np.random.default_rng(seed)
    shape = tuple(model.inputs[0].shape[1:])
    x = rng.normal(size=(points, *shape)).astype("float32")
    local = jacobians(model, x)
    order = np.inf if norm == "inf" else 2
    found = max(np.linalg.norm(jacobian, order) for jacobian in local)
    # From the steepest direction of each point, go on with two inputs that are apart.
    directions = np.stack([_steepest_direction(jacobian, norm) for jacobian in local])
    pairs = np.concatenate([x, x + 0.1 * directions.reshape(x.shape).astype("float32")])
    for _ in range(steps):
        climb = functools.partial(_climb, norm)
        gradient, ratios = call_compiled(model, ("climb", norm), climb, pairs)
        found = max(found, np.exp(to_numpy(ratios).max()))
        gradient = np.nan_to_num(to_numpy(gradient))
        scale = np.abs(gradient).max(axis=(1, 2, 3), keepdims=True)
        pairs = pairs + 0.03 * gradient / np.maximum(scale, 1e-12)
    return float(found)


def jacobians(model, x):
    """The Jacobian at each point. All rows at once: a copy of the point for each output."""
    outputs = model.outputs[0].shape[-1]
    batch = np.repeat(x, outputs, axis=0)
    weights = np.tile(np.eye(outputs, dtype="float32"), (len(x), 1))
    rows = call_compiled(model, "rows", _weighted_gradient, batch, weights)
    return to_numpy(rows).reshape(len(x), outputs, -1).astype("float64")


def _weighted_gradient(model, batch, weights):
    def weighted(x):
        return ops.sum(model(x, training=False) * weights), ()

    return input_gradient(weighted, batch)[0]


def _climb(norm, model, pairs):
    return input_gradient(lambda both: _log_ratios(model, both, norm), pairs)


def _steepest_direction(jacobian, norm):
    if norm == "inf":
        return np.where(jacobian[np.abs(jacobian).sum(axis=1).argmax()] < 0, -1.0, 1.0)
    return np.linalg.svd(jacobian)[2][0]


def _log_ratios(model, both, norm):
    half = both.shape[0] // 2
    outputs = model(both, training=False)
    above, below = (
        _length(each[:half] - each[half:], norm)
        for each in (outputs, ops.reshape(both, (2 * half, -1)))
    )
    # A pair that a constant network maps to one point has slope zero.
    ratios = ops.log(above + 1e-30) - ops.log(below)
    return ops.sum(ratios), ratios


def _length(difference, norm):
    if norm == "inf":
        return ops.max(ops.abs(difference), axis=-1)
    return ops.sqrt(ops.sum(ops.square(difference), axis=-1) + 1e-30)
