import os

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, to_numpy
from networks import ACTIVATIONS, BLOCKS, ENDS, random_network, steepest

import keras_parseval as kp
from keras_parseval._backend import input_gradient
from keras_parseval.analysis import _kernel_rules

L = keras.layers
# More for a long run: KERAS_PARSEVAL_EXAMPLES=500 python -m pytest -k steeper.
EXAMPLES = int(os.environ.get("KERAS_PARSEVAL_EXAMPLES", 12 if BACKEND == "torch" else 4))
several = hypothesis.settings(
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def assert_no_steeper_than_its_bounds(model, seed):
    for norm in (2, "inf"):
        slope = steepest(model, norm, seed)
        paper = kp.lipschitz_bound(model, norm=norm, method="paper").bound
        operator = kp.lipschitz_bound(model, norm=norm).bound
        assert slope <= operator * (1 + 1e-4) + 1e-6
        assert operator <= paper * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("block", BLOCKS)
def test_no_layer_is_steeper_than_its_bound(block):
    assert_no_steeper_than_its_bounds(random_network([block], "Flatten", seed=1), seed=1)


@pytest.mark.parametrize("block", ["Conv2D", "DepthwiseConv2D", "Conv2DTranspose"])
def test_blocks_have_both_paddings_where_the_image_is_large_enough(block):
    def paddings(size):
        models = [random_network([block], "Flatten", seed, size) for seed in range(12)]
        return {
            model.layers[1].padding for model in models if model.layers[1].kernel_size != (1, 1)
        }

    assert paddings(4) == {"same", "valid"}
    assert paddings(1) == ({"same", "valid"} if block == "Conv2DTranspose" else {"same"})


@hypothesis.given(
    blocks=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4),
    end=st.sampled_from(sorted(ENDS)),
    seed=st.integers(0, 2**16),
)
@several
def test_no_network_is_steeper_than_its_bound(blocks, end, seed):
    try:
        model = random_network(blocks, end, seed)
    except ValueError as error:  # an image that has become too small for a window
        assert "zero or negative" in str(error) or "Cropping" in str(error)
        hypothesis.reject()
    assert_no_steeper_than_its_bounds(model, seed)


def materialized(layer, shape):
    """The matrix of a linear layer, column by column."""
    size = int(np.prod(shape))
    return to_numpy(layer(np.eye(size, dtype="float32").reshape(size, *shape))).reshape(size, -1).T


def convolutions():
    plain, separable = (L.Conv1D, L.Conv2D), (L.SeparableConv1D, L.SeparableConv2D)
    for rank, size in ((1, 8), (2, 5)):
        shape = (size,) * rank
        for kernel_size, strides, dilation, padding in (
            (3, 1, 1, "same"),
            (3, 1, 2, "valid"),
            (2, 1, 2, "same"),
            (3, 2, 1, "same"),
            (4, 2, 1, "valid"),
            (2, 3, 1, "same"),
            (1, 2, 1, "valid"),
        ):
            options = {"strides": strides, "padding": padding, "use_bias": False}
            dilated = {**options, "dilation_rate": dilation}
            yield plain[rank - 1](4, kernel_size, **dilated), (*shape, 2)
            yield plain[rank - 1](4, kernel_size, groups=2, **dilated), (*shape, 4)
            yield separable[rank - 1](3, kernel_size, **dilated), (*shape, 2)
            depthwise = (L.DepthwiseConv1D, L.DepthwiseConv2D)[rank - 1]
            yield depthwise(kernel_size, depth_multiplier=2, **dilated), (*shape, 3)
            transposed = (L.Conv1DTranspose, L.Conv2DTranspose)[rank - 1]
            yield transposed(3, kernel_size, **options), (*shape, 2)
    yield L.Conv1D(3, 3, padding="causal", dilation_rate=2, use_bias=False), (8, 2)
    yield L.Conv3D(2, 2, padding="same", use_bias=False), (3, 3, 3, 2)
    yield L.Conv3DTranspose(2, 2, strides=2, use_bias=False), (2, 2, 2, 1)


CONVOLUTIONS = list(convolutions())


@pytest.mark.parametrize("index", range(len(CONVOLUTIONS)))
def test_operator_norms_are_those_of_the_matrix(index, monkeypatch, rng):
    layer, shape = CONVOLUTIONS[index]
    layer = type(layer).from_config(layer.get_config())
    model = keras.Sequential([keras.Input(shape), layer])
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    try:
        matrix = materialized(layer, shape)
    except ValueError as error:
        # Older versions of Keras have some transposed convolutions on the other backends alone.
        pytest.skip(str(error))
    papers = {
        norm: kp.lipschitz_bound(model, norm=norm, method="paper").bound for norm in (2, "inf")
    }
    for norm, order in ((2, 2), ("inf", np.inf)):
        exact = np.linalg.norm(matrix, order)
        bound = kp.lipschitz_bound(model, norm=norm).bound
        separable = isinstance(layer, (L.SeparableConv1D, L.SeparableConv2D))
        if norm == 2 or not separable:  # absolute values do not pass through a product of two
            assert bound == pytest.approx(exact, rel=1e-3)
        assert exact <= bound * (1 + 1e-5) <= papers[norm] * 1.001
    # The same for a convolution that is too large for a decomposition.
    monkeypatch.setattr(_kernel_rules, "_SMALL", 0)
    result = kp.lipschitz_bound(model, estimate=True)
    exact = np.linalg.norm(matrix, 2)
    assert result.estimate == pytest.approx(exact, rel=1e-3)
    assert exact <= result.bound * (1 + 1e-5) <= papers[2] * 1.001


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_constants_are_the_largest_slopes(name):
    activation = keras.activations.get(name)
    x = np.linspace(-8, 8, 100_001, dtype="float32")
    # Pairs with sum zero: the direction in which a softmax of two classes is the steepest.
    pairs = keras.ops.convert_to_tensor(np.stack([x, -x], axis=-1))
    gradient, _ = input_gradient(lambda x: (keras.ops.sum(activation(x)[:, 0]), ()), pairs)
    slopes = np.abs(to_numpy(gradient)).sum(axis=-1).max()
    constant = kp.lipschitz_bound(image_model(L.Activation(name))).bound
    assert constant * (1 - 1e-3) <= slopes <= constant * (1 + 1e-5)


def parseval_network():
    options = kp.tight_frame()
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(8, 3, padding="same", activation="relu", **options)(inputs)
    x = kp.ConvexAdd()([x, L.Conv2D(8, 3, padding="same", activation="relu", **options)(x)])
    x = kp.MaxMin()(L.Conv2D(8, 3, strides=2, padding="same", **kp.tight_frame(scale=0.5))(x))
    x = L.Dense(32, "relu", **options)(L.Flatten()(L.AveragePooling2D(2)(x)))
    model = keras.Model(inputs, L.Dense(3, name="classifier")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(0.05, 40)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, jit_compile=JIT_COMPILE)
    return model


def test_a_parseval_network_is_1_lipschitz_up_to_its_classifier(rng):
    model = parseval_network()
    x, y = rng.uniform(size=(128, 8, 8, 1)), rng.integers(0, 3, size=128)
    model.fit(x, y, batch_size=32, epochs=10, verbose=0)
    *hidden, classifier = kp.lipschitz_bound(model).entries
    assert classifier.name == "classifier"
    assert max(entry.accumulated for entry in hidden) <= 1.01


def test_constants_multiply_add_and_stack():
    """Four numbers by hand: a sum, a mean, a concatenation and two inputs."""
    first, second = keras.Input((3,)), keras.Input((3,))
    two, three = L.Rescaling(2.0), L.Rescaling(-3.0)

    def bound(inputs, outputs, norm=2):
        return kp.lipschitz_bound(keras.Model(inputs, outputs), norm=norm).bound

    assert bound(first, three(two(first))) == 6
    assert bound(first, two(two(first))) == 4
    assert bound(first, L.Add()([two(first), three(first)])) == 5
    assert bound(first, L.Average()([two(first), three(first)])) == 2.5
    assert bound(first, L.Concatenate()([two(first), three(first)])) == pytest.approx(13**0.5)
    assert bound(first, L.Concatenate()([two(first), three(first)]), "inf") == 3
    assert bound([first, second], L.Add()([two(first), three(second)])) == 5
    assert bound(first, [two(first), three(first)]) == pytest.approx(13**0.5)
    assert bound(first, two(first), np.inf) == 2


def test_entries_tell_the_way():
    inner = keras.Sequential([L.Rescaling(2.0, name="twice")], name="inner")
    outputs = inner(L.Rescaling(3.0, name="first")(inputs := keras.Input((4,))))
    result = kp.lipschitz_bound(keras.Model(inputs, inner(outputs)))
    told = [(entry.name, entry.kind, entry.local, entry.accumulated) for entry in result.entries]
    assert told == [
        ("first", "Rescaling", (3.0,), 3.0),
        ("inner/twice", "Rescaling", (2.0,), 6.0),
        ("inner/twice", "Rescaling", (2.0,), 12.0),
    ]
    assert result.estimate is None and result.bound == 12
    assert [row["name"] for row in result.to_rows()] == ["first", "inner/twice", "inner/twice"]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it refuses such a name")
def test_names_of_layers_are_text_in_the_report(capsys):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="[red]hidden")])
    kp.lipschitz_report(model)
    assert "[red]hidden" in capsys.readouterr().out


def test_the_report_is_a_table(capsys):
    model = random_network(["Conv2D", "ConvexAdd", "BatchNormalization"], "Flatten", seed=0)
    result = kp.lipschitz_report(model)
    printed = capsys.readouterr().out
    for text in (printed, str(result)):
        assert "Lipschitz bound in the 2-norm" in text and f"{result.bound:.4g}" in text
    assert all(entry.name in str(result) for entry in result.entries)


def test_an_estimate_is_never_called_a_bound(monkeypatch):
    monkeypatch.setattr(_kernel_rules, "_SMALL", 0)
    model = random_network(["Conv2D"], "Flatten", seed=0)
    assert kp.lipschitz_bound(model).estimate is None
    result = kp.lipschitz_bound(model, estimate=True)
    assert result.estimate <= result.bound
    assert "estimate, not certain" in " ".join(str(result).split())


class Square(L.Layer):
    def call(self, x):
        return x * x


class Subclassed(keras.Model):
    def call(self, x):
        return x


def image_model(*layers):
    return keras.Sequential([keras.Input((4, 4, 2)), *layers])


def ready(layer):
    return lambda: image_model(layer)


@pytest.mark.parametrize(
    "make, message",
    [
        (ready(Square(name="square")), "product of two tensors.*as 'square/multiply"),
        (ready(L.Activation(lambda x: x * x)), "activation .* is not known"),
        (ready(L.ReLU(threshold=1.0)), "threshold=1"),
        (lambda: keras.Sequential([L.Dense(3)]), "must be built"),
        (Subclassed, "must be functional or Sequential"),
        (lambda: "model", "must be functional or Sequential"),
    ],
)
def test_what_has_no_constant_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        kp.lipschitz_bound(make())


def test_what_depends_on_the_call_is_refused():
    inputs = keras.Input((4,))
    stochastic = keras.Model(inputs, L.Dropout(0.5)(inputs, training=True))
    with pytest.raises(ValueError, match="training=True"):
        kp.lipschitz_bound(stochastic)
    sequence = keras.Input((5, 4))
    summed = keras.Model(sequence, L.EinsumDense("abc,cd->ad", output_shape=3)(sequence))
    with pytest.raises(ValueError, match="every axis of the input"):
        kp.lipschitz_bound(summed)
    unknown = keras.Input((None, 3))
    spread = keras.Model([unknown, small := keras.Input((1, 3))], L.Add()([unknown, small]))
    with pytest.raises(ValueError, match="unknown size"):
        kp.lipschitz_bound(spread)


def test_broken_weights_have_no_bound():
    model = image_model(L.Dense(3))
    model.set_weights([np.full(w.shape, np.nan) for w in model.get_weights()])
    with pytest.raises(ValueError, match="NaN or infinity"):
        kp.lipschitz_bound(model)


def test_rules_of_ones_own():
    class Triple(L.Layer):
        def call(self, x):
            return 3 * x

    class SubTriple(Triple):
        pass

    @kp.analysis.lipschitz_rule(Triple)
    def triple(layer, call):
        assert call.input_shapes == ((4, 4, 2),) and call.output_shape == (4, 4, 2)
        return 3.0

    result = kp.lipschitz_bound(image_model(Triple(), SubTriple()))
    assert result.bound == 9 and result.entries[0].rule == "triple"

    class Broken(Triple):
        pass

    kp.analysis.lipschitz_rule(Broken)(lambda layer, call: [1.0, 2.0])
    with pytest.raises(ValueError, match="for each input of the layer"):
        kp.lipschitz_bound(image_model(Broken()))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda model: kp.lipschitz_bound(model, norm=1), ValueError, '`norm` must be "inf" or 2'),
        (lambda model: kp.lipschitz_bound(model, method="fast"), ValueError, "`method` must be"),
        (lambda model: kp.lipschitz_bound(model, estimate="yes"), TypeError, "`estimate` must be"),
        (lambda model: kp.analysis.lipschitz_rule(), TypeError, "classes of layers"),
        (lambda model: kp.analysis.lipschitz_rule("Dense"), TypeError, "classes of layers"),
        (
            lambda model: kp.analysis.lipschitz_rule(Square, combine="max"),
            ValueError,
            "`combine` must be",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(image_model(L.Dense(3)))
