import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE
from keras import layers

import keras_parseval as kp
from keras_parseval.analysis import CovarianceDimension, covariance_dimension

CLASSES, NAMES = 3, ["first", "second"]


def network():
    hidden = [layers.Dense(12, "relu", name="first"), layers.Dense(9, "tanh", name="second")]
    noise = [layers.Dropout(0.5), layers.BatchNormalization()]
    model = keras.Sequential(
        [keras.Input((6,)), hidden[0], *noise, hidden[1], layers.Dense(CLASSES, name="classifier")]
    )
    model.compile("sgd", "mse", jit_compile=JIT_COMPILE)
    return model


def examples(count=50):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 6)) * [3, 2, 1, 0.5, 0.2, 0.1]
    return x.astype("float32"), rng.integers(0, CLASSES, size=count)


def activations(model, name, x):
    """What a layer returns, by a forward pass that is written out."""
    for layer in model.layers:
        x = layer(x, training=False)
        if layer.name == name:
            return keras.ops.convert_to_numpy(x).astype("float64").reshape(len(x), -1)


def by_definition(phi, variance):
    """The smallest p such that the first p eigenvalues hold `variance` of all."""
    eigenvalues = np.sort(np.linalg.eigvalsh(phi.T @ phi / len(phi)))[::-1]
    for p in range(phi.shape[1] + 1):
        if eigenvalues[:p].sum() >= variance * eigenvalues.sum():
            return p


def expected(model, x, y, variance=0.99):
    phis = [activations(model, name, x) for name in NAMES]
    overall = tuple(by_definition(phi, variance) for phi in phis)
    by_class = tuple(
        tuple(by_definition(phi[y == label], variance) for label in np.unique(y)) for phi in phis
    )
    return overall, by_class


@pytest.mark.parametrize("variance", [0.99, 0.9])
def test_the_dimension_is_that_of_the_paper_for_every_split(variance):
    model, (x, y) = network(), examples()
    overall, by_class = expected(model, x, y, variance)
    results = [
        covariance_dimension(model, x, y, variance=variance, batch_size=batch_size)
        for batch_size in (1, 7, 64)
    ]
    uneven = [(x[:3], y[:3]), (x[3:40], y[3:40]), (x[40:], y[40:])]
    results += [
        covariance_dimension(model, data, variance=variance) for data in (uneven, iter(uneven))
    ]
    for result in results:
        assert result.layers == ("first", "second") and result.features == (12, 9)
        assert result.overall == overall
        assert result.classes == (0, 1, 2) and result.by_class == by_class
        assert result.examples == 50 and result.variance == variance
    assert 1 < overall[0] < 12  # numbers that say something


def test_the_second_moments_are_not_centred():
    """A constant direction is a dimension of its own, which centring would take away."""
    model = keras.Sequential([keras.Input((3,)), layers.Identity(name="same"), layers.Dense(1)])
    x = np.zeros((4, 3), "float32")
    x[:, 0], x[:2, 1], x[2:, 1] = 5.0, 1.0, -1.0
    result = covariance_dimension(model, x, layers="same", per_class=False)
    assert result.overall == (2,)
    assert covariance_dimension(model, x, layers="same", variance=0.9, per_class=False).overall == (
        1,
    )
    assert covariance_dimension(model, 0 * x, layers="same", per_class=False).overall == (0,)


def test_fewer_examples_than_features():
    model, (x, y) = network(), examples(4)
    result = covariance_dimension(model, (x, y))
    assert (result.overall, result.by_class) == expected(model, x, y)
    assert max(result.overall) <= 4


def label_encodings(y):
    one_hot = np.eye(CLASSES)[y]
    return {
        "column": y[:, None],
        "one-hot": one_hot,
        "float": y.astype("float32"),
        "tensor": keras.ops.convert_to_tensor(y),
    }


def test_labels_of_every_encoding():
    model, (x, y) = network(), examples()
    plain = covariance_dimension(model, x, y)
    assert covariance_dimension(model, (x, y)) == plain
    for name, labels in label_encodings(y).items():
        assert covariance_dimension(model, (x, labels)) == plain, name
    shifted = covariance_dimension(model, (x, y + 10))
    assert shifted.classes == (10, 11, 12) and shifted.by_class == plain.by_class


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def test_without_classes_the_labels_may_be_missing():
    model, (x, y) = network(), examples()
    overall = covariance_dimension(model, (x, y)).overall
    unlabelled = [(x[:20],), (x[20:],)]
    data = {
        "array": x,
        "tensor": keras.ops.convert_to_tensor(x),
        "pair": (x, None),
        "list": x.tolist(),
        "tuples": unlabelled,
        "generator": (batch for batch in unlabelled),
        "dataset": Batches(unlabelled),
    }
    for name, each in data.items():
        result = covariance_dimension(model, each, per_class=False)
        assert result.overall == overall, name
        assert result.classes == result.by_class == (), name
    assert covariance_dimension(model, Batches([(x, y)])).overall == overall


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no data sets of its own")
def test_data_sets_of_the_backend():
    model, (x, y) = network(), examples()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
    else:
        import torch

        tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        data = torch.utils.data.DataLoader(tensors, batch_size=20)
    result = covariance_dimension(model, data)
    assert (result.overall, result.by_class) == expected(model, x, y)
    assert covariance_dimension(model, data, per_class=False).overall == result.overall


def test_layers_are_chosen_by_name_or_as_objects():
    model, data = network(), examples()
    every = covariance_dimension(model, data)
    for chosen in ("second", ["second"], model.get_layer("second")):
        result = covariance_dimension(model, data, layers=chosen)
        assert result.layers == ("second",) and result.overall == every.overall[1:]
    assert covariance_dimension(model, data, layers=NAMES[::-1]).layers == ("second", "first")


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_functional_models_with_several_inputs_and_maps():
    # Keras goes by the keys, whatever the tensors are called.
    image, extra = keras.Input((5, 4, 2), name="extra"), keras.Input((3,), name="image")
    inputs = {"image": image, "extra": extra}
    x = layers.Conv2D(2, 3, activation="relu", name="conv")(inputs["image"])
    inner = keras.Sequential([keras.Input((12,)), layers.Dense(7)], name="inner")
    x = layers.Concatenate(name="joined")([inner(layers.Flatten()(x)), inputs["extra"]])
    model = keras.Model(inputs, layers.Dense(2, name="classifier")(x))
    rng = np.random.default_rng(0)
    arrays = {"extra": rng.normal(size=(9, 3)), "image": rng.normal(size=(9, 5, 4, 2))}
    data = {name: array.astype("float32") for name, array in arrays.items()}
    result = covariance_dimension(model, data, layers=["conv", "inner", "joined"], per_class=False)
    assert result.features == (12, 7, 10)
    conv = keras.ops.convert_to_numpy(model.get_layer("conv")(data["image"]))
    phi = conv.astype("float64").reshape(9, -1)
    assert result.overall[0] == by_definition(phi, 0.99)
    joined = np.concatenate(
        [keras.ops.convert_to_numpy(inner(phi.astype("float32"))), data["extra"]], axis=1
    )
    assert result.overall[2] == by_definition(joined.astype("float64"), 0.99)
    assert covariance_dimension(model, data, per_class=False).layers == ("conv",)
    labelled = covariance_dimension(model, data, np.arange(9) % 2, layers="conv", batch_size=4)
    assert labelled.overall == result.overall[:1]


def test_the_model_is_left_as_it_is():
    model = network()
    model.add(layers.Softmax())  # layers are called anew: each has had several calls by now
    weights, config = model.get_weights(), model.get_config()
    calls = [len(layer._inbound_nodes) for layer in model.layers]
    covariance_dimension(model, examples(), layers=NAMES)
    assert config == model.get_config()
    assert calls == [len(layer._inbound_nodes) for layer in model.layers]
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)


def test_the_result_is_a_table():
    result = CovarianceDimension(
        ("first", "a_long_name"), (200, 50), (100, 5), (3, 7), ((20, 40), (2, 3)), 0.99, 60
    )
    assert result.to_rows() == [
        {
            "layer": "first",
            "features": 200,
            "all": 100,
            "class": 30.0,
            "all_percent": 50.0,
            "class_percent": 15.0,
        },
        {
            "layer": "a_long_name",
            "features": 50,
            "all": 5,
            "class": 2.5,
            "all_percent": 10.0,
            "class_percent": 5.0,
        },
    ]
    title, *table = str(result).splitlines()
    assert "99%" in title and "60 examples" in title
    assert [line.split() for line in table] == [
        ["layer", "features", "all", "class"],
        ["first", "200", "50.0", "15.0"],
        ["a_long_name", "50", "10.0", "5.0"],
    ]
    assert len({len(line) for line in table}) == 1
    alone = CovarianceDimension(("first",), (200,), (100,), (), (), 0.5, 60)
    assert alone.to_rows()[0]["class_percent"] is None
    assert str(alone).splitlines()[1].split() == ["layer", "features", "all"]


def shared_layer():
    inputs, dense = keras.Input((6,)), layers.Dense(6, name="shared")
    return keras.Model(inputs, layers.Dense(2)(dense(dense(inputs))))


def two_outputs():
    inputs = keras.Input((4, 6))
    states = layers.LSTM(3, return_state=True, name="lstm")(inputs)
    return keras.Model(inputs, layers.Dense(2)(states[0]))


def large(size):
    """A network whose hidden layer has 9,000 features for each of so many pixels."""
    return keras.Sequential(
        [keras.Input((size, 1)), layers.Dense(9000, name="large"), layers.Dense(2)]
    )


class Subclassed(keras.Model):
    pass


@pytest.mark.parametrize(
    "make, chosen, message",
    [
        (shared_layer, None, "'shared', called 2 times"),
        (two_outputs, ["lstm"], "'lstm', called 1 times, which returns 3 tensors"),
        (lambda: large(1), None, r"at most 8192 features.*'large'.*\(1, 9000\)"),
        (lambda: large(None), None, r"pool them first.*'large'.*\(None, 9000\)"),
        (Subclassed, None, "must be functional or Sequential"),
        (lambda: keras.Sequential([layers.Dense(2)]), None, "must be built"),
        (network, ["third"], "among them first, .*Received: 'third'"),
        (network, layers.Dense(12, name="first"), "must be layers of the model"),
        (network, [], "must name the layers"),
        (lambda: keras.Sequential([keras.Input((6,)), layers.Dense(2)]), None, "a hidden layer"),
    ],
    ids="shared outputs large unknown-size subclassed unbuilt name layer none no-hidden".split(),
)
def test_models_and_layers_without_a_dimension_are_refused(make, chosen, message):
    with pytest.raises(ValueError, match=message):
        covariance_dimension(make(), examples(), layers=chosen)


X, Y = examples(6)


@pytest.mark.parametrize(
    "data, message",
    [
        (X, "Labels are needed"),
        ((X, None), "Labels are needed"),
        ([(X,)], "without labels"),
        ((X, Y[:3]), "same number of examples"),
        ((X[:0], Y[:0]), "an empty data set"),
        (Batches([]), "an empty data set"),
        ((X, Y + 0.5), "Labels must be integers"),
        ((X, np.ones((6, 3))), r"Labels must be integers.*shape \(6, 3\)"),
        ((X, np.eye(3)[Y] * 0.9 + 0.05), "Labels must be integers"),
        ((X, np.eye(3)[Y] * 2), "Labels must be integers"),
        ((X * np.nan, Y), "inputs with NaN"),
    ],
    ids="array none batch lengths no-array no-batch fractions several smoothed twos nan".split(),
)
def test_bad_data_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        covariance_dimension(network(), data)


def test_weights_that_are_not_finite_are_refused():
    model = network()
    model.get_layer("second").kernel.assign(np.full((12, 9), np.nan))
    with pytest.raises(ValueError, match="the layer 'second' with NaN"):
        covariance_dimension(model, (X, Y))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"variance": 1.0}, ValueError, "`variance` must be"),
        ({"variance": 0}, ValueError, "`variance` must be"),
        ({"variance": "most"}, TypeError, "`variance` must be"),
        ({"per_class": 1}, TypeError, "`per_class` must be"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        covariance_dimension(network(), (X, Y), **arguments)


def test_parseval_networks_fill_more_dimensions():
    """A tight layer loses no direction that a narrow spectrum would."""
    x, _ = examples()
    narrow = np.diag([1.0, 0.01, 0.01, 0.01, 0.01, 0.01])

    def dimension(initializer):
        hidden = layers.Dense(6, kernel_initializer=initializer)
        model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(2)])
        return covariance_dimension(model, x, per_class=False).overall[0]

    assert dimension(lambda *args, **kwargs: narrow) == 1
    assert dimension(kp.TightFrame()) == by_definition(x.astype("float64"), 0.99) > 1
