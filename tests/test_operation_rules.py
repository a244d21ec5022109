"""Lipschitz rules of operations, image layers, normalisations, wrappers and layers of one's own."""

import math

import keras
import numpy as np
import pytest
from conftest import to_numpy
from keras import ops
from networks import jacobians, steepest

import keras_parseval as kp
from keras_parseval._backend import input_gradient
from keras_parseval._keras_internals import calls_of

L = keras.layers
SHAPE = (4, 4, 2)
RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(2, 3)).astype("float32")
LEFT = RNG.normal(size=(3, 4)).astype("float32")
FACTORS = RNG.normal(size=SHAPE).astype("float32")
KERNEL = RNG.normal(size=(3, 3, 2, 3)).astype("float32")


def model_of(function, shape=SHAPE):
    """A model that does one thing, and returns numbers in a row."""
    inputs = keras.Input(shape)
    return keras.Model(inputs, L.Flatten()(function(inputs)))


def matrix_of(model):
    """The matrix of an affine model, column by column."""
    shape = tuple(model.inputs[0].shape[1:])
    size = math.prod(shape)
    inputs = np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(-1, *shape)
    first, *columns = to_numpy(model(inputs.astype("float32"), training=False))
    return (np.stack(columns) - first).T.astype("float64")


def bounds(model):
    return {norm: kp.lipschitz_bound(model, norm=norm).bound for norm in (2, "inf")}


def assert_exact(model, rel=1e-4):
    matrix = matrix_of(model)
    for norm, bound in bounds(model).items():
        order = np.inf if norm == "inf" else 2
        assert bound == pytest.approx(np.linalg.norm(matrix, order), rel=rel)


EXACT = {
    "x / 255": lambda x: x / 255,
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "2 * x": lambda x: 2 * x,
    "-x": lambda x: -x,
    "factors": lambda x: x * FACTORS,
    "divisors": lambda x: x / FACTORS,
    "x[:, :2]": lambda x: x[:, :2],
    "x[..., 1]": lambda x: x[..., 1],
    "x[:, ::2, None]": lambda x: x[:, ::2, None],
    "take": lambda x: ops.take(x, [0, 0, 3], axis=1),
    "transpose": lambda x: ops.transpose(x, (0, 3, 1, 2)),
    "swapaxes": lambda x: ops.swapaxes(x, 1, 3),
    "moveaxis": lambda x: ops.moveaxis(x, -1, 1),
    "reshape": lambda x: ops.reshape(x, (-1, 8, 4)),
    "squeeze": lambda x: ops.squeeze(x[:, :1], 1),
    "expand_dims": lambda x: ops.expand_dims(x, 1),
    "flip": lambda x: ops.flip(x, 1),
    "roll": lambda x: ops.roll(x, 1, 2),
    "repeat": lambda x: ops.repeat(x, 3, 1),
    "tile": lambda x: ops.tile(x, (1, 2, 1, 3)),
    "zeros around": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0))),
    "constant around": lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=5.0),
    "reflected around": lambda x: ops.pad(x, ((0, 0), (1, 2), (2, 1), (0, 0)), mode="reflect"),
    "mean": lambda x: ops.mean(x, (1, 2)),
    "mean of the last": lambda x: ops.mean(x, -1, keepdims=True),
    "sum": lambda x: ops.sum(x, 1),
    "matmul": lambda x: ops.matmul(x, MATRIX),
    "dot": lambda x: ops.dot(x, MATRIX),
    "matmul from the left": lambda x: ops.matmul(LEFT, x),
    "einsum": lambda x: ops.einsum("bhwc,cd->bhd", x, MATRIX),
    "cumsum": lambda x: ops.cumsum(x, 1),
    "conv": lambda x: ops.conv(x, KERNEL, strides=2, padding="same"),
    "chosen": lambda x: ops.where(FACTORS > 0, x, 0.0),
    "cast": lambda x: ops.cast(x, "float32"),
    "stop_gradient": lambda x: ops.stop_gradient(x),
    "resize": lambda x: ops.image.resize(x, (7, 3)),
    "resize, nearest": lambda x: ops.image.resize(x, (7, 3), interpolation="nearest"),
    "resize, antialias": lambda x: ops.image.resize(x, (2, 3), antialias=True),
    "one output of two": lambda x: ops.split(x, 2, axis=2)[1],
    "unstacked": lambda x: ops.unstack(x, axis=3)[0],
    "Resizing": L.Resizing(3, 9),
    "Resizing, cropped": L.Resizing(5, 3, crop_to_aspect_ratio=True),
    "Resizing, padded": L.Resizing(5, 3, pad_to_aspect_ratio=True, fill_value=2.0),
    "CenterCrop": L.CenterCrop(2, 3),
    "CenterCrop, larger": L.CenterCrop(6, 7),
    "bilinear": L.UpSampling2D((2, 3), interpolation="bilinear"),
    "bicubic": L.UpSampling2D(2, interpolation="bicubic"),
    "TimeDistributed": L.TimeDistributed(L.Dense(3)),
    "TimeDistributed model": L.TimeDistributed(keras.Sequential([L.Dense(3)])),
}
if hasattr(L, "AdaptiveAveragePooling2D"):
    EXACT["adaptive average"] = L.AdaptiveAveragePooling2D((3, 2))


def fresh(layer):
    """A layer of the same settings that is not built; a function as it is."""
    is_layer = isinstance(layer, L.Layer)
    return type(layer).from_config(layer.get_config()) if is_layer else layer


@pytest.mark.parametrize("name", EXACT)
def test_the_bound_of_what_is_linear_is_the_norm_of_its_matrix(name):
    layer = fresh(EXACT[name])
    try:
        model = model_of(layer)
        assert_exact(model)
    except ImportError as error:  # of torchvision, by older versions of Keras
        pytest.skip(str(error))


def test_large_images_are_resized_in_parts():
    model = keras.Sequential([keras.Input((64, 300, 3)), L.Resizing(96, 150)])
    small = keras.Sequential([keras.Input((64, 1, 1)), L.Resizing(96, 1)])
    narrow = keras.Sequential([keras.Input((1, 300, 1)), L.Resizing(1, 150)])
    try:
        separate = [
            np.linalg.norm(matrix_of(each).reshape(-1, size), 2)
            for each, size in ((small, 64), (narrow, 300))
        ]
    except ImportError as error:  # of torchvision, by older versions of Keras
        pytest.skip(str(error))
    assert kp.lipschitz_bound(model).bound == pytest.approx(math.prod(separate), rel=1e-4)


FUNCTIONS = {
    "relu": ops.relu,
    "relu6": ops.relu6,
    "leaky_relu": lambda x: ops.leaky_relu(x, 3.0),
    "elu": lambda x: ops.elu(x, 2.0),
    "celu": lambda x: ops.celu(x, 2.0),
    "selu": ops.selu,
    "sigmoid": ops.sigmoid,
    "hard_sigmoid": ops.hard_sigmoid,
    "log_sigmoid": ops.log_sigmoid,
    "tanh": ops.tanh,
    "softplus": ops.softplus,
    "softsign": ops.softsign,
    "gelu": ops.gelu,
    "exact gelu": lambda x: ops.gelu(x, approximate=False),
    "silu": ops.silu,
    "hard_silu": ops.hard_silu,
    "abs": ops.abs,
    "sin": ops.sin,
    "arctan": ops.arctan,
    "erf": ops.erf,
    "clip": lambda x: ops.clip(x, -1, 2),
    "maximum": lambda x: ops.maximum(x, 0.5),
    "minimum": lambda x: ops.minimum(0.5, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bound_of_a_function_is_its_largest_slope(name):
    function = FUNCTIONS[name]
    x = ops.convert_to_tensor(np.linspace(-8, 8, 100_000, dtype="float32"))
    gradient, _ = input_gradient(lambda x: (ops.sum(function(x)), ()), x)
    slope = np.abs(to_numpy(gradient)).max()
    for bound in bounds(model_of(function)).values():
        assert slope <= bound * (1 + 1e-5)
        assert bound <= slope * (1 + 1e-3)


def conv(x):
    return L.Conv2D(2, 3, padding="same")(x)


NOT_EXACT = {
    "x + y": lambda x: x + conv(x),
    "x - y": lambda x: x - conv(x),
    "broadcast": lambda x: x[..., :1] + conv(x),
    "broadcast factor": lambda x: x[..., :1] * np.array([2.0, -3.0, 1.0], "float32"),
    "maximum": lambda x: ops.maximum(x, conv(x)),
    "minimum": lambda x: ops.minimum(x, conv(x)),
    "concatenate": lambda x: ops.concatenate([x, conv(x), np.ones((2, 4, 4, 1), "float32")][:2], 3),
    "stack": lambda x: ops.stack([x, conv(x), x], axis=1),
    "halves": lambda x: ops.add(*ops.split(x, 2, axis=1)),
    "max": lambda x: ops.max(x, axis=(1, 2)),
    "min": lambda x: ops.min(x, axis=-1, keepdims=True),
    "sort": lambda x: ops.sort(x, axis=1),
    "softmax": lambda x: ops.softmax(x),
    "softmax of two axes": lambda x: ops.softmax(ops.reshape(x, (-1, 32))),
    "log_softmax": lambda x: ops.log_softmax(x),
    "logsumexp": lambda x: ops.logsumexp(x, axis=(1,)),
    "max_pool": lambda x: ops.max_pool(x, 3, 2, padding="same"),
    "average_pool": lambda x: ops.average_pool(x, 3, 1, padding="same"),
    "LayerNormalization": L.LayerNormalization(),
    "of the image": L.LayerNormalization(axis=(1, 2, 3), epsilon=0.1),
    "GroupNormalization": L.GroupNormalization(2, epsilon=0.01),
    "activation": L.Conv2D(4, 3, activation=kp.MaxMin()),
    "log_softmax of a layer": L.Dense(3, activation="log_softmax"),
    "masking": lambda x: L.Masking()(ops.reshape(x, (-1, 8, 4))),
}
if hasattr(L, "RMSNormalization"):
    NOT_EXACT["RMSNormalization"] = L.RMSNormalization(epsilon=0.1)
if hasattr(L, "AdaptiveMaxPooling2D"):
    NOT_EXACT["adaptive maximum"] = L.AdaptiveMaxPooling2D((3, 2))


@pytest.mark.parametrize("name", NOT_EXACT)
def test_nothing_is_steeper_than_its_bound(name):
    layer = fresh(NOT_EXACT[name])
    model = model_of(layer)
    for variable in model.variables:
        variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    for norm, bound in bounds(model).items():
        slope = steepest(model, norm, seed=1)
        assert slope <= bound * (1 + 1e-4)
        assert bound <= 100 * slope  # and is no number from nowhere


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_the_constant_of_log_softmax_is_reached_where_one_class_is_sure(classes):
    model = model_of(ops.log_softmax, (classes,))
    x = np.zeros((1, classes), "float32")
    x[0, 0] = 30.0
    (jacobian,) = jacobians(model, x)
    for norm, order in ((2, 2), ("inf", np.inf)):
        expected = np.linalg.norm(jacobian, order)
        assert kp.lipschitz_bound(model, norm=norm).bound == pytest.approx(expected, abs=1e-4)


def normalized(centred, size, epsilon):
    """Jacobians of normalisation by hand, at inputs with one element unlike all others."""
    identity = np.eye(size)
    centring = identity - 1 / size if centred else identity
    rest = (-1.0) ** np.arange(size) if centred else np.ones(size)
    for length in np.linspace(0, 3 * math.sqrt(size), 60):
        for angle in np.linspace(0, math.pi / 2, 60):
            x = math.sin(angle) * rest / math.sqrt(size)
            x[0] = math.cos(angle)
            z = centring @ (length * math.sqrt(epsilon) * x)
            square = (z**2).mean() + epsilon
            yield (identity - np.outer(z, z) / (size * square)) @ centring / math.sqrt(square)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("size", [2, 7, 40])
def test_constants_of_normalisation_are_those_of_its_jacobian(centred, size):
    if not centred and not hasattr(L, "RMSNormalization"):
        pytest.skip("this version of Keras has no RMSNormalization")
    layer = (L.LayerNormalization if centred else L.RMSNormalization)(epsilon=0.04)
    found = {2: 0.0, "inf": 0.0}
    for jacobian in normalized(centred, size, 0.04):
        found[2] = max(found[2], np.linalg.norm(jacobian, 2))
        found["inf"] = max(found["inf"], np.linalg.norm(jacobian, np.inf))
    computed = bounds(model_of(layer, (size,)))
    assert computed[2] == pytest.approx(found[2], rel=1e-6) == pytest.approx(5.0)
    assert found["inf"] <= computed["inf"] * (1 + 1e-9)
    # Exact without centring, up to the grid. With it, the signs of elements cannot be free.
    assert computed["inf"] <= found["inf"] * (1.6 if centred else 1.01)
    # And the layer's own Jacobian, where inputs do not vary.
    (jacobian,) = jacobians(model_of(layer, (size,)), np.zeros((1, size), "float32"))
    assert np.linalg.norm(jacobian, 2) == pytest.approx(computed[2], rel=1e-3)


def test_normalisation_scales_by_its_weights():
    model = model_of(layer := L.GroupNormalization(2, epsilon=0.25))
    layer.gamma.assign([0.5, -3.0])
    assert kp.lipschitz_bound(model).bound == pytest.approx(6.0)
    assert "large" in kp.lipschitz_bound(model).entries[0].rule
    alone = model_of(L.LayerNormalization(), (4, 1))
    assert bounds(alone) == {2: 0.0, "inf": 0.0}


AUGMENTATION = {
    **dict.fromkeys(("RandomFlip", "RandomPerspective", "RandomElasticTransform"), ()),
    **dict.fromkeys(("RandomRotation", "RandomZoom", "RandomContrast", "RandomBrightness"), (0.2,)),
    **dict.fromkeys(("RandomColorDegeneration", "RandomHue", "RandomSaturation"), (0.2,)),
    **dict.fromkeys(("RandomShear", "RandomColorJitter", "RandomGrayscale", "RandomErasing"), ()),
    **dict.fromkeys(("RandomGaussianBlur", "RandomInvert", "RandAugment", "AugMix", "MixUp"), ()),
    **dict.fromkeys(("CutMix", "Solarization"), ()),
    **{"RandomTranslation": (0.2, 0.2), "RandomSharpness": (0.2,), "RandomPosterization": (4,)},
    **{"RandomCrop": (8, 8), "MaxNumBoundingBoxes": (3,)},
}


@pytest.mark.parametrize("name", AUGMENTATION)
def test_augmentation_rests_at_inference(name, rng):
    if not hasattr(L, name):
        pytest.skip(f"this version of Keras has no {name}")
    layer = getattr(L, name)(*AUGMENTATION[name])
    if layer(inputs := keras.Input((8, 8, 3))) is inputs:
        pytest.skip(f"graphs of this version of Keras leave {name} out")
    model = keras.Sequential([keras.Input((8, 8, 3)), layer])
    x = rng.uniform(size=(2, 8, 8, 3)).astype("float32")
    assert np.array_equal(to_numpy(model(x, training=False)), x)
    assert bounds(model) == {2: 1.0, "inf": 1.0}


def test_several_outputs_each_have_a_bound():
    inputs = keras.Input((6,))
    first, second = ops.split(3 * inputs, 2, axis=1)
    both = keras.Model(inputs, [first, second])
    assert kp.lipschitz_bound(both, norm="inf").bound == 3
    assert kp.lipschitz_bound(keras.Model(inputs, second)).bound == 3
    joined = keras.Model(inputs, ops.concatenate([second, first], axis=1))
    assert 3 <= kp.lipschitz_bound(joined).bound <= 3 * math.sqrt(2) + 1e-9


def test_a_batch_of_known_size():
    inputs = keras.Input(batch_shape=(3, 4))
    model = keras.Model(inputs, ops.reshape(inputs, (3, 2, 2)))
    assert kp.lipschitz_bound(model).bound == 1


@pytest.mark.parametrize(
    "activation", [kp.MaxMin(), L.LeakyReLU(negative_slope=2.0), "log_softmax", ops.relu]
)
def test_activations_may_be_layers(activation):
    def copy():
        return type(activation).from_config(activation.get_config())

    apart = copy() if isinstance(activation, L.Layer) else L.Activation(activation)
    within = copy() if isinstance(activation, L.Layer) else activation
    plain, dense = L.Conv2D(4, 3), L.Conv2D(4, 3, activation=within)
    two = keras.Sequential([keras.Input(SHAPE), plain, apart])
    one = keras.Sequential([keras.Input(SHAPE), dense])
    one.set_weights(two.get_weights())
    also = keras.Sequential([keras.Input((2, 2, 4)), L.Activation(activation)])
    for method in ("paper", "operator"):
        options = {"norm": 2, "method": method}
        expected = kp.lipschitz_bound(two, **options).bound
        assert kp.lipschitz_bound(one, **options).bound == pytest.approx(expected, rel=1e-6)
    assert kp.lipschitz_bound(also).bound == kp.lipschitz_bound(two).entries[-1].local[0]


def test_an_activation_must_be_built_if_it_has_weights():
    model = model_of(L.Dense(4, activation=L.PReLU()))
    if not model.layers[1].activation.built:
        with pytest.raises(ValueError, match="call the model once"):
            kp.lipschitz_bound(model)
    model(np.zeros((1, *SHAPE), "float32"))
    assert kp.lipschitz_bound(model).bound > 0


class Mixed(L.Layer):
    """A layer of others, of operations and of a weight of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(4)

    def build(self, shape):
        self.dense.build(shape)
        self.scale = self.add_weight(shape=(4,), initializer="random_normal")

    def call(self, x, training=True):
        if training:
            return 1000 * x
        return x + ops.tanh(self.dense(x) * self.scale)


class Louder(L.Dense):
    def call(self, x):
        return 100 * super().call(x)


class Noise(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed = keras.random.SeedGenerator(0)

    def call(self, x):
        return x * keras.random.uniform((4,), seed=self.seed)


class Values(L.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return x * float(ops.convert_to_numpy(x).max())


def middle(x):
    """An operation that no rule is for."""
    return ops.median(x, axis=-1, keepdims=True)


class Middle(L.Layer):
    def call(self, x):
        return middle(x)


def test_layers_of_ones_own_are_looked_into(rng):
    mixed = Mixed()
    model = keras.Sequential([keras.Input((4,)), mixed, L.Lambda(lambda x: 2 * x)])
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    x = rng.normal(size=(3, 4)).astype("float32")
    before, calls = to_numpy(model(x)), len(calls_of(mixed.dense))
    kernel, scale = to_numpy(mixed.dense.kernel), to_numpy(mixed.scale)
    expected = 2 * (1 + np.linalg.norm(kernel, 2) * np.abs(scale).max())
    assert kp.lipschitz_bound(model).bound == pytest.approx(expected, rel=1e-5)
    names = [entry.name for entry in kp.lipschitz_bound(model).entries]
    assert names[0] == f"{mixed.name}/{mixed.dense.name}"
    # And are left as they were.
    assert len(calls_of(mixed.dense)) == calls
    assert np.array_equal(to_numpy(model(x)), before)
    louder = keras.Sequential([keras.Input((4,)), Louder(3)])
    expected = 100 * np.linalg.norm(to_numpy(louder.layers[0].kernel), 2)
    assert kp.lipschitz_bound(louder).bound == pytest.approx(expected, rel=1e-5)


def sequence(layer):
    return lambda: keras.Sequential([keras.Input((5, 4)), layer])


def operation(function, shape=(4,)):
    return lambda: keras.Model(x := keras.Input(shape), function(x))


PRODUCT = "product of t"
REFUSED = {
    "x * y": (operation(lambda x: x * ops.tanh(x)), PRODUCT),
    "x / y": (operation(lambda x: 1 / x), "divisor must be a constant"),
    "x / 0": (operation(lambda x: x / 0), "divisor must be a constant"),
    "matmul": (operation(lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))), (3, 4)), PRODUCT),
    "Multiply": (operation(lambda x: L.Multiply()([x, x])), PRODUCT),
    "nan": (operation(lambda x: x * np.nan), "finite"),
    "x ** 2": (operation(lambda x: x**2), "slope has no limit"),
    "exp": (operation(ops.exp), "slope has no limit"),
    "round": (operation(ops.round), "jumps"),
    "sign": (operation(ops.sign), "jumps"),
    "integers": (operation(lambda x: ops.cast(x, "int32")), "rounds"),
    "where": (operation(lambda x: ops.where(x > 0, x, 1.0)), "jumps"),
    "normalize": (operation(ops.normalize), "norm of the input"),
    "UnitNormalization": (operation(L.UnitNormalization()), "norm of the input"),
    "mean of all": (operation(ops.mean), "batch axis.*axis=None"),
    "sum over examples": (operation(lambda x: ops.sum(x, 0)), "batch axis"),
    "first example": (operation(lambda x: x[0]), "batch axis"),
    "turned batch": (operation(lambda x: ops.transpose(x)), "batch axis"),
    "joined batches": (operation(lambda x: ops.concatenate([x, x], axis=0)), "batch axis"),
    "split batch": (operation(lambda x: ops.reshape(x, (-1, 2))), "batch axis"),
    "reversed batch": (operation(lambda x: ops.flip(x, 0)), "batch axis"),
    "sum of examples": (operation(lambda x: x + ops.reshape(x, (-1, 1, 4))), "batch axis"),
    "cumsum of examples": (operation(lambda x: ops.cumsum(x, 0)), "batch axis"),
    "softmax of examples": (operation(lambda x: ops.softmax(x, 0)), "batch axis"),
    "einsum of examples": (operation(lambda x: ops.einsum("bi,ij->j", x, LEFT.T)), "atch"),
    "large": (operation(lambda x: ops.cumsum(x, 1), (3000,)), "at most"),
    "unknown size": (operation(lambda x: x[:, 2:], (None,)), "fixed shape"),
    "LSTM": (sequence(L.LSTM(3)), "recurrence"),
    "Bidirectional": (sequence(L.Bidirectional(L.GRU(3))), "recurrence"),
    "attention": (operation(lambda x: L.MultiHeadAttention(2, 2)(x, x), (3, 4)), "attention"),
    "dot attention": (operation(lambda x: L.Attention()([x, x]), (3, 4)), "attention"),
    "Embedding": (operation(L.Embedding(5, 3)), "jumps"),
    "AutoContrast": (
        operation(L.AutoContrast(), SHAPE) if hasattr(L, "AutoContrast") else None,
        "contrast",
    ),
    "RandomCrop": (operation(L.RandomCrop(2, 2), SHAPE), "leaves the image as it is"),
    "Masking": (sequence(L.Masking(mask_value=1.0)), "mask_value=1.0"),
    "mask": (
        lambda: keras.Sequential([keras.Input((5, 4)), L.Masking(), L.GlobalAveragePooling1D()]),
        "takes a mask",
    ),
    "rms_scaling": (
        lambda: keras.Sequential([keras.Input((4,)), L.LayerNormalization(rms_scaling=True)]),
        "rms_scaling=True",
    ),
    "rounding resize": (
        lambda: keras.Model(x := keras.Input(SHAPE, dtype="uint8"), ops.image.resize(x, (2, 2))),
        "rounds",
    ),
    "random": (operation(Noise()), "class Noise.*random, or assigns"),
    "values": (operation(Values()), "class Values.*without values"),
    "Softmax(0)": (operation(L.Softmax(axis=0)), "batch axis"),
    "activation": (operation(L.Dense(4, activation=Values())), "class Values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_constant_is_refused_with_the_reason(name):
    make, message = REFUSED[name]
    if make is None:
        pytest.skip("not in this version of Keras")
    model = make()
    for norm in (2, "inf"):
        with pytest.raises(ValueError, match=message):
            kp.lipschitz_bound(model, norm=norm)


def test_everything_that_is_missing_is_listed_at_once():
    inputs = keras.Input((4,))
    inner = keras.Model(x := keras.Input((4,)), middle(x), name="inner")
    x = Values(name="first")(L.Dense(4)(ops.exp2(inputs) if hasattr(ops, "exp2") else inputs))
    x = L.Multiply()([Values()(x), inputs])
    with pytest.raises(ValueError) as error:
        kp.lipschitz_bound(keras.Model(inputs, inner(x)))
    message = str(error.value)
    assert "the layer 'first' of class Values" in message and "the same for 1 more" in message
    assert "`@kp.analysis.lipschitz_rule(Values)`" in message
    assert "of class Multiply: the product" in message
    assert "lipschitz_rule(type(model.get_layer('inner').operations[1]))" in message
    with pytest.raises(ValueError, match=r"in the layer .*lipschitz_rule\(Middle\)"):
        kp.lipschitz_bound(keras.Model(inputs, Middle()(inputs)))


def test_rules_for_operations_of_ones_own():
    from keras_parseval.analysis import _rules

    inputs = keras.Input((4,))
    model = keras.Model(inputs, middle(inputs))
    before = dict(_rules._rules)
    try:

        @kp.analysis.lipschitz_rule(type(model.operations[-1]))
        def median_rule(operation, call):
            assert isinstance(call.arguments["x"], keras.KerasTensor)
            return 1.0

        assert kp.lipschitz_bound(model).bound == 1.0
        assert kp.lipschitz_bound(keras.Model(inputs, Middle()(inputs))).bound == 1.0
    finally:
        _rules._rules.clear()
        _rules._rules.update(before)


def test_an_operation_is_known_by_where_it_comes_from():
    class Relu(keras.Operation):
        def call(self, x):
            return x * x

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="operation 'mine' of class Relu: no rule"):
        kp.lipschitz_bound(keras.Model(inputs, Relu(name="mine")(inputs)))


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
@pytest.mark.parametrize("nested", [False, True])
def test_quantized_models_are_refused(mode, nested):
    dense = L.Dense(4)
    layer = keras.Sequential([dense]) if nested else dense
    model = keras.Sequential([keras.Input((4,)), layer])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    assert kp.lipschitz_bound(model).bound > 0
    try:
        dense.quantize(mode)
    except (ValueError, NotImplementedError) as error:  # in older versions of Keras
        pytest.skip(str(error))
    for measure in (
        lambda: kp.lipschitz_bound(model),
        lambda: kp.analysis.certified_radius(model, np.zeros((2, 4))),
    ):
        with pytest.raises(ValueError, match=f"quantized.*before `quantize`.*{mode}"):
            measure()
