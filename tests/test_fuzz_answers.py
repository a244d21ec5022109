"""Random models, kernels and attacks: the answer is the right one, by a plain computation of it."""

import contextlib
import functools
import io
import warnings

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, Probe, linear_model, points
from conftest import BACKEND, compiled, singular_values, to_numpy
from fuzzing import COUNT, REFUSED, answer, several
from keras import ops
from networks import random_network, steepest
from test_attacks import plain_loop, softmax

import keras_parseval as kp

L = keras.layers
SEEDS = st.integers(0, 10**6)
NORMS = st.sampled_from([2, "inf"])


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    print(f"\nfuzzed with {COUNT['examples']} examples")


def randomized(model, seed, size=1.0):
    """The model with random weights."""
    rng = np.random.default_rng(seed)
    model.set_weights([size * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def check_refused(words, function, *args, **kwargs):
    """The call is an error, and the error has these words in it."""
    COUNT["examples"] += 1
    with pytest.raises((TypeError, ValueError), match=words):
        function(*args, **kwargs)


# Attacks


@functools.cache
def classifier():
    return linear_model()


def losses(model, x, y):
    kernel, bias = (w.astype("float64") for w in model.get_weights())
    return -np.log(softmax(x @ kernel + bias)[np.arange(len(y)), y] + 1e-300)


@hypothesis.given(
    norm=NORMS,
    steps=st.sampled_from([2, 5]),
    box=st.sampled_from([(-9.0, 9.0), (-0.5, 0.5)]),
    epsilon=st.floats(0.05, 1.5),
    seed=SEEDS,
)
@several(1.5)
def test_iterated_attacks_are_as_strong_as_a_plain_loop(norm, steps, box, epsilon, seed):
    model, (x, y) = randomized(classifier(), seed), points(20, seed)
    x = np.clip(x, *box)
    attack = kp.IteratedFGSM(steps=steps, norm=norm, bounds=box)
    ours = to_numpy(answer(attack, model, x, y, epsilon=epsilon)).astype("float64")
    theirs = plain_loop(model, x, y, epsilon, norm, steps, *box)
    assert ours.min() >= box[0] and ours.max() <= box[1]
    distances = np.linalg.norm(ours - x, np.inf if norm == "inf" else 2, axis=1)
    assert (distances <= epsilon * (1 + 1e-5) + 1e-6).all()
    # Where a gradient is zero up to rounding, its sign is anyone's.
    weaker = losses(model, ours, y) < losses(model, theirs, y) - 1e-3
    assert weaker.sum() <= 1


@hypothesis.given(
    attack=st.sampled_from([kp.FGSM(norm=2), kp.IteratedFGSM(steps=2, bounds=(-2, 2))]),
    epsilon=st.just(0.0) | st.floats(1e-3, 1),
    seed=SEEDS,
)
@several(1)
def test_compiled_loops_of_the_users_own_craft_what_a_call_does(attack, epsilon, seed):
    model, (x, y) = randomized(classifier(), seed), points(8, seed)
    x = np.clip(x, -2, 2)
    called = to_numpy(answer(attack, model, x, y, epsilon=epsilon))
    crafted = crafting(attack)(ops.convert_to_tensor(x), ops.convert_to_tensor(y), epsilon)
    np.testing.assert_allclose(to_numpy(crafted), called, atol=1e-4)


@functools.cache
def crafting(attack):
    """A function of tensors, compiled once: weights are read when it is called."""
    if BACKEND == "jax":
        # The weights of the model are no arguments, so compiled code would hold the first ones.
        return lambda x, y, epsilon: attack.craft(classifier(), x, y, epsilon=epsilon)
    function = compiled(lambda x, y, epsilon: attack.craft(classifier(), x, y, epsilon=epsilon))
    return lambda x, y, epsilon: function(x, y, ops.convert_to_tensor(epsilon, "float32"))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-35])
def test_a_size_that_is_lost_in_rounding_is_no_missing_gradient(epsilon):
    (x, y), attack = points(8), kp.FGSM(norm=2)
    assert answer(attack, classifier(), x, y, epsilon=epsilon) is not REFUSED


@functools.cache
def without_from_logits():
    return linear_model(None, loss="sparse_categorical_crossentropy")


@hypothesis.given(
    size=st.sampled_from([0.001, 0.01, 1.0, 100.0]),
    centred=st.booleans(),
    offset=st.sampled_from([0.0, 0.0, 0.5, -1.0]),
    seed=SEEDS,
)
@several(1)
def test_outputs_that_are_no_probabilities_are_refused(size, centred, offset, seed):
    model, (x, y) = without_from_logits(), points(10, seed)
    rng = np.random.default_rng(seed)
    kernel = size * rng.normal(size=(FEATURES, CLASSES))
    if centred:
        kernel -= kernel.mean(axis=1, keepdims=True)  # then outputs sum to what the bias sums to
    model.set_weights([kernel, rng.dirichlet(np.full(CLASSES, 50.0)) + offset])
    outputs = to_numpy(model(x)).astype("float64")
    error = max(-outputs.min(), outputs.max() - 1, abs(outputs.sum(axis=1) - 1).max())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a softmax that cannot be reached
        result = answer(kp.robust_accuracy, model, x, y, epsilon=0.1, verbose=0)
    if error > 0.1:
        assert result is REFUSED
    elif error < 1e-5:
        assert result.clean == np.mean(outputs.argmax(axis=1) == y)


class OwnUpdates(keras.Model):
    """A model with a step of its own, which leaves the model's optimizer at zero."""

    def train_step(self, *args):
        *state, data = args
        if not state:
            self(data[0], training=True)
            for variable in self.trainable_variables:
                variable.assign(0.9 * variable)
            return {"loss": 0.0}
        trainable, non_trainable, *others = state[0]
        _, non_trainable = self.stateless_call(trainable, non_trainable, data[0], training=True)
        return {"loss": 0.0}, ([0.9 * each for each in trainable], non_trainable, *others)


@hypothesis.given(batches=st.integers(2, 6), stddev=st.floats(0.01, 10), seed=st.integers(0, 9))
@several(0.3)
def test_steps_without_the_optimizer_draw_magnitudes_of_their_own(batches, stddev, seed):
    inputs = keras.Input((FEATURES,))
    model = OwnUpdates(inputs, L.Dense(CLASSES)((probe := Probe(4))(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    (x, y), sizes = points(4 * batches, seed), []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            sizes.append(abs(to_numpy(probe.seen) - x[4 * batch : 4 * batch + 4]).max())

    callbacks = [kp.AdversarialTraining(stddev=stddev, seed=seed), Record()]
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
    COUNT["examples"] += 1
    assert len(set(np.round(np.array(sizes) / stddev, 4))) == batches
    assert max(sizes) <= 2 * stddev * (1 + 1e-4) + 1e-5


# Kernels


def logical_matrices(kernel, roles, groups=1):
    """The matrices of a kernel, with a row for each output, by plain slicing."""
    kernel = np.asarray(kernel, "float64")
    sizes = {
        role: [size if each in role else 1 for size, each in zip(kernel.shape, roles)]
        for role in ("g", "o")
    }

    def part(*places):
        return tuple(
            place[axis] if role in "og" else slice(None)
            for axis, role in enumerate(roles)
            for place in [places["og".index(role)] if role in "og" else None]
        )

    for group in np.ndindex(*sizes["g"]):
        rows = [kernel[part(output, group)].ravel() for output in np.ndindex(*sizes["o"])]
        yield from np.split(np.stack(rows), groups)


@st.composite
def readings(draw):
    """The shape of a kernel, the role of each axis, and arguments that say so."""
    roles = draw(st.permutations("io" + draw(st.sampled_from(["", "i", "o", "g", "oi", "gi"]))))
    roles = "".join(roles)
    taps = draw(st.integers(0, 2))
    shape = draw(st.lists(st.integers(1, 4), min_size=len(roles), max_size=len(roles)))
    spatial = draw(st.lists(st.integers(1, 3), min_size=taps, max_size=taps))
    arguments = {"axes": f"...{roles}" if taps else roles}
    outputs = np.prod([size for size, role in zip(shape, roles) if role == "o"])
    divisors = [each for each in (1, 2, 3, 4) if outputs % each == 0]
    arguments["groups"] = draw(st.sampled_from(divisors))
    if draw(st.booleans()):
        arguments["scale"] = draw(st.sampled_from([0.5, 2.0]))
    return (*spatial, *shape), "." * taps + roles, arguments


def assert_frames(kernel, roles, groups, target):
    for matrix in logical_matrices(kernel, roles, groups):
        np.testing.assert_allclose(singular_values(matrix), target, rtol=2e-3)


@hypothesis.given(reading=readings(), seed=SEEDS)
@several(2)
def test_every_logical_matrix_becomes_a_frame(reading, seed):
    shape, roles, arguments = reading
    kernel = np.random.default_rng(seed).normal(size=shape).astype("float32")
    target = np.prod([size for size, role in zip(shape, roles) if role == "."]) ** -0.5
    target = arguments.get("scale", target)
    hypothesis.assume(all(conditioned(m) for m in logical_matrices(kernel, roles, 1)))
    constraint = kp.ParsevalTightFrame(0.5, steps=60, **arguments)
    assert_frames(to_numpy(answer(constraint, kernel)), roles, arguments["groups"], target)
    start = to_numpy(kp.TightFrame(seed=seed, **arguments)(shape))
    assert_frames(start, roles, arguments["groups"], target)
    regularizer = kp.TightFrameRegularizer(1.0, **arguments)
    assert float(to_numpy(regularizer(start))) < 1e-6 < float(to_numpy(regularizer(2 * start)))


@hypothesis.given(reading=readings(), size=st.floats(0, 0.6), seed=SEEDS)
@several(1)
def test_the_default_holds_frames_whatever_moved_them(reading, size, seed):
    """Within the 5% that it promises."""
    shape, roles, arguments = reading
    groups = arguments["groups"]
    frame = to_numpy(kp.TightFrame(seed=seed, **arguments)(shape))
    target = singular_values(next(logical_matrices(frame, roles, groups))).max()
    update = np.random.default_rng(seed).normal(size=shape)
    norms = [singular_values(each).max() for each in logical_matrices(update, roles, groups)]
    moved = (frame + size * target / max(norms) * update).astype("float32")
    held = to_numpy(answer(kp.ParsevalTightFrame(**arguments), moved))
    for matrix in logical_matrices(held, roles, groups):
        np.testing.assert_allclose(singular_values(matrix), target, rtol=0.05)


def conditioned(matrix):
    return singular_values(matrix).min() > 1e-4


@hypothesis.given(
    heads=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    other=st.integers(1, 6),
    into=st.booleans(),
    seed=SEEDS,
)
@several(1)
def test_kernels_of_attention_are_read_by_their_heads(heads, other, into, seed):
    shape = (other, *heads) if into else (*heads, other)
    kernel = np.random.default_rng(seed).normal(size=shape).astype("float32")
    moved = answer(kp.ParsevalTightFrame(0.5, steps=60, heads=heads), kernel)
    assert (moved is REFUSED) == (shape[1:] == heads and shape[:2] == heads)
    if moved is not REFUSED:
        assert_frames(to_numpy(moved), "ioo" if into else "iio", 1, 1.0)


SEQUENCE_LAYERS = {
    "LSTM": (lambda units: L.LSTM(units), {"kernel": 4, "recurrent_kernel": 4}),
    "GRU": (lambda units: L.GRU(units), {"kernel": 3, "recurrent_kernel": 3}),
    "SimpleRNN": (lambda units: L.SimpleRNN(units), {"kernel": 1, "recurrent_kernel": 1}),
}


@hypothesis.given(
    name=st.sampled_from([*SEQUENCE_LAYERS, "attention"]), units=st.integers(1, 4), seed=SEEDS
)
@several(0.5)
def test_converted_sequence_layers_are_frames_gate_by_gate(name, units, seed):
    inputs = keras.Input((3, 4))
    if name == "attention":
        layer = L.MultiHeadAttention(2, units, name="layer")
        x = L.Flatten()(layer(inputs, inputs))
    else:
        make, kernels = SEQUENCE_LAYERS[name]
        x = make(units)(inputs)
    model = randomized(keras.Model(inputs, L.Dense(2)(x)), seed)
    robust = answer(kp.parseval, model, verbose=0)
    if name == "attention":
        attention = robust.get_layer("layer")
        for part in (attention.query_dense, attention.key_dense, attention.value_dense):
            assert_frames(to_numpy(part.kernel), "ioo", 1, 1.0)
        assert_frames(to_numpy(attention.output_dense.kernel), "iio", 1, 1.0)
    else:
        cell = robust.layers[1].cell
        for kernel, gates in kernels.items():
            assert_frames(to_numpy(getattr(cell, kernel)), "io", gates, 1.0)


@hypothesis.given(count=st.integers(2, 20), floor=st.floats(0, 0.99), seed=SEEDS)
@several(2)
def test_coefficients_are_the_nearest_above_their_floor(count, floor, seed):
    rng = np.random.default_rng(seed)
    given = (rng.normal(size=count) * 10 ** rng.uniform(-3, 2)).astype("float32")
    ours = to_numpy(answer(kp.Simplex(floor=floor), given)).astype("float64")
    # max(floor / n, a - tau) sums to 1 for one tau alone, which bisection finds.
    low, high = given.min() - 2.0, given.max() + 1.0
    for _ in range(100):
        tau = (low + high) / 2
        above = np.maximum(floor / count, given - tau).sum() > 1
        low, high = (tau, high) if above else (low, tau)
    np.testing.assert_allclose(ours, np.maximum(floor / count, given - low), atol=2e-5)
    assert ours.min() >= floor / count - 1e-6 and abs(ours.sum() - 1) < 1e-5


@functools.cache
def residual_model():
    inputs = keras.Input((4,))
    x = L.Dense(6, name="wide", **kp.tight_frame())(inputs)
    branch = L.Dense(6, name="square", **kp.tight_frame(scale=0.5))(x)
    model = keras.Model(inputs, L.Dense(2)(kp.ConvexAdd(floor=0.3, name="sum")([x, branch])))
    return model


@hypothesis.given(seed=SEEDS, size=st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
@several(1)
def test_weights_from_anywhere_are_brought_to_their_sets(seed, size):
    model = randomized(residual_model(), seed, size)
    before = {name: model.get_layer(name).get_weights()[0] for name in ("wide", "square", "sum")}
    moved = answer(kp.tighten, model)
    for name, target in (("wide", 1.0), ("square", 0.5)):
        left, values, right = np.linalg.svd(before[name].astype("float64"), full_matrices=False)
        kernel = model.get_layer(name).get_weights()[0]
        np.testing.assert_allclose(singular_values(kernel), target, rtol=1e-3)
        if values.min() > 0.05 * values.max():  # the nearest frame is well defined
            np.testing.assert_allclose(kernel, target * left @ right, atol=1e-3)
    coefficients = model.get_layer("sum").get_weights()[0]
    assert coefficients.min() >= 0.15 - 1e-3 and abs(coefficients.sum() - 1) < 2e-3
    assert all(distance > 1e-3 for distance in moved.values()) and kp.tighten(model) == {}


MISPLACED = [
    ("kernel_regularizer", kp.ParsevalTightFrame),
    ("kernel_regularizer", kp.Simplex),
    ("bias_regularizer", kp.Simplex),
    ("kernel_constraint", lambda: kp.TightFrameRegularizer(0.1)),
    ("kernel_constraint", kp.TightFrame),
    ("kernel_initializer", kp.ParsevalTightFrame),
    ("kernel_initializer", lambda: kp.TightFrameRegularizer(0.1)),
    pytest.param(
        "activity_regularizer",
        kp.ParsevalTightFrame,
        marks=pytest.mark.xfail(strict=True, reason="it sees a tensor, and cannot tell from where"),
    ),
]


@pytest.mark.parametrize("slot, make", MISPLACED)
def test_objects_in_the_place_of_another_are_refused(slot, make):
    def build_and_train(layer):
        model = keras.Sequential([keras.Input((5, 3)), layer, L.Flatten()])
        model.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
        model.fit(np.ones((2, 5, 3)), np.ones((2, model.output_shape[-1])), verbose=0)

    assert answer(build_and_train, L.Dense(4, **{slot: make()})) is REFUSED
    assert answer(build_and_train, L.Conv1D(4, 2, **{slot: make()})) is REFUSED


# Bounds


@functools.cache
def quantized(seed):
    model = randomized(keras.Sequential([keras.Input((4,)), L.Dense(4), L.Dense(3)]), seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    model.quantize("int8")
    return model


@hypothesis.given(seed=st.integers(0, 1), norm=NORMS)
@several(0.3)
def test_quantized_models_have_no_bound(seed, norm):
    model, x = quantized(seed), np.ones((2, 4), "float32")
    check_refused("rounds", kp.lipschitz_bound, model, norm=norm)
    check_refused("rounds", kp.certified_radius, model, x, verbose=0, norm=norm)


OPERATIONS = {
    "divided": lambda x, rng: x / float(rng.uniform(0.5, 5)),
    "moved": lambda x, rng: x + float(rng.normal()),
    "mirrored": lambda x, rng: 1 - 2 * x,
    "slice": lambda x, rng: x[:, :-1] if x.shape[1] > 1 else x,
    "relu": lambda x, rng: ops.relu(x),
    "clip": lambda x, rng: ops.clip(x, -0.5, 1.0),
    "pad": lambda x, rng: ops.pad(x, ((0, 0), (0, 1), (1, 0), (0, 0))),
    "beside itself": lambda x, rng: ops.concatenate([x, ops.tanh(2 * x)], axis=-1),
    "with itself": lambda x, rng: x + ops.sin(x),
    "mean": lambda x, rng: ops.mean(x, axis=1, keepdims=True),
    "transpose": lambda x, rng: ops.transpose(x, (0, 2, 1, 3)),
    "reshape": lambda x, rng: ops.reshape(x, (-1, x.shape[2], x.shape[1], x.shape[3])),
    "product": lambda x, rng: ops.matmul(x, rng.normal(size=(x.shape[-1], 2)).astype("float32")),
    "maximum": lambda x, rng: ops.maximum(x, ops.roll(x, 1, axis=1)),
    "softmax": lambda x, rng: ops.softmax(3 * x),
    "log_softmax": lambda x, rng: ops.log_softmax(x),
    "flip": lambda x, rng: L.RandomFlip()(x),
    "contrast": lambda x, rng: L.RandomContrast(0.2)(x),
    "layer norm": lambda x, rng: L.LayerNormalization(epsilon=0.1)(x),
    "group norm": lambda x, rng: L.GroupNormalization(1, epsilon=0.1)(x),
    "MaxMin inside": lambda x, rng: L.Dense(4, activation=kp.MaxMin())(x),
    "in time": lambda x, rng: L.TimeDistributed(L.Dense(2))(x),
}


@hypothesis.given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4),
    norm=NORMS,
    seed=st.integers(0, 999),
)
@several(0.4)
def test_no_chain_of_operations_is_steeper_than_its_bound(names, norm, seed):
    rng = np.random.default_rng(seed)
    inputs = x = keras.Input((3, 3, 2))
    for name in names:
        x = OPERATIONS[name](x, rng)
    model = keras.Model(inputs, L.Flatten()(x))
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    bound = answer(kp.lipschitz_bound, model, norm=norm).bound
    # Slopes come from differences of outputs of size 1, which float32 rounds.
    assert steepest(model, norm, seed, points=2, steps=2) <= bound * (1 + 1e-4) + 3e-5


@hypothesis.given(units=st.integers(1, 4), seed=SEEDS, norm=NORMS)
@several(0.5)
def test_an_activation_that_is_a_layer_counts_as_one_beside_it(units, seed, norm):
    inside = keras.Sequential([keras.Input((3,)), L.Dense(2 * units, activation=kp.MaxMin())])
    beside = keras.Sequential([keras.Input((3,)), L.Dense(2 * units), kp.MaxMin()])
    randomized(inside, seed)
    beside.set_weights(inside.get_weights())
    bounds = [answer(kp.lipschitz_bound, model, norm=norm).bound for model in (inside, beside)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


# Conversions


class Lost(keras.Model):
    """A class that Keras cannot clone: its constructor has arguments of its own."""

    def __init__(self, blocks, seed):
        inner = random_network(blocks, "Flatten", seed)
        super().__init__(inner.inputs, inner.outputs)


@hypothesis.given(
    blocks=st.lists(
        st.sampled_from(["Conv2D", "Dense", "Add", "MaxMin", "arithmetic", "nested, shared"]),
        min_size=1,
        max_size=2,
    ),
    seed=st.integers(0, 999),
)
@several(0.3)
def test_classes_that_keras_cannot_clone_are_converted(blocks, seed):
    model, out = Lost(blocks, seed), io.StringIO()
    x = np.random.default_rng(seed).normal(size=(3, 4, 4, 2)).astype("float32")
    with contextlib.redirect_stdout(out):
        robust = answer(kp.parseval, model, init=None, merge=False)
    np.testing.assert_allclose(to_numpy(robust(x)), to_numpy(model(x)), rtol=1e-4, atol=1e-4)
    lines = out.getvalue().splitlines()
    assert "plain Functional model" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 100


@hypothesis.given(
    names=st.lists(
        st.text("abcdefgh_0123", min_size=1, max_size=60).map("layer{}".format),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    frozen=st.integers(0, 4),
)
@several(0.5)
def test_the_summary_says_what_was_done_and_leaves_what_is_frozen(names, frozen):
    hidden = [L.Dense(4, name=name) for name in names]
    for layer in hidden[:frozen]:
        layer.trainable = False
    model = keras.Sequential([keras.Input((4,)), *hidden, L.Dense(2)])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        robust = answer(kp.parseval, model, init=None)
    held = [name for name in names if robust.get_layer(name).kernel_constraint is not None]
    assert held == names[frozen:]
    text = out.getvalue()
    assert ("Nothing was constrained" in text) == (not held)
    assert max(map(len, text.splitlines())) <= 100
    assert ("frozen" in text) == (frozen > 0)


# Errors


@functools.cache
def embedding_model():
    layers = [L.Embedding(5, 4), L.Flatten(), L.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    return model


@hypothesis.given(count=st.integers(1, 9), seed=SEEDS)
@several(0.5)
def test_mistakes_are_told_by_their_name(count, seed):
    model, (x, y) = classifier(), points(count, seed)
    evaluate, attack = functools.partial(kp.robust_accuracy, model, verbose=0), kp.FGSM()
    check_refused("comes first", attack, x, model, epsilon=0.1)
    check_refused("batch its examples", evaluate, list(zip(x, y)))
    check_refused("the targets of a regression have none", evaluate, x, y + 0.5)
    tokens = np.random.default_rng(seed).integers(0, 5, size=(count, FEATURES))
    check_refused("Tokens and categories", attack, embedding_model(), tokens, epsilon=0.1)
    assert answer(evaluate, x, y.tolist(), epsilon=0.1) == evaluate(x, y, epsilon=0.1)
    check_refused("Labels", kp.AdversarialEvaluation, x)
    check_refused("same number", kp.AdversarialEvaluation, x, y[:-1])
