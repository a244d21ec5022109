"""Whatever comes in: a right answer, or an error that says what to do. Nothing in between."""

import functools
import inspect
import io
import json
import re
import tempfile
import zipfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from conftest import to_numpy
from fuzzing import COUNT, REFUSED, answer, is_finite, several

import keras_parseval as kp


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    print(f"\nfuzzed with {COUNT['examples']} examples")


# What is put in place of any argument.
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from([np.float32(0.1), np.int64(2), np.ones(3), np.nan, 1j, b"x", object, [], {}]),
    st.sampled_from([(0, 1), (1, 0), [0.5, "x"], {"a": 1}, keras.layers.Dense, 10**30, "auto"]),
)
# What is right for it, at least in some combination.
FITTING = {
    **{"beta": [0.1, 0.5, 3e-4], "rows": [0.3, 1.0, 2], "scale": ["auto", 0.5, 2], "steps": [1, 2]},
    **{"groups": [1, 2, "depthwise"], "axis": [-1, 0], "every": [1, 3]},
    **{"axes": ["...io", "...oi", "iio", "gio"], "heads": [None, (2, 3), [(2, 3), (4, 1)]]},
    **{"epsilon": [0.1, 0, [0.1, 0.2, 0.3]], "norm": [2, "inf", np.inf], "seed": [0, 1, None]},
    **{"labels": ["true", "predicted", "least_likely"], "bounds": [(0, 1), (-9, 9), None]},
    **{"step_size": [0.1, None], "perturb": [None], "mask": [None], "loss": [None]},
    **{"ratio": [0.5, 1], "stddev": [0.1], "start_from_epoch": [0, 2], "snr": [20, (30, 10), None]},
    **{
        "attack": [None, kp.FGSM(), kp.IteratedFGSM(steps=2)],
        "prefix": ["adv_"],
        "batch_size": [1, 64],
    },
    **{"method": ["paper", "operator"], "variance": [0.5, 0.99], "layers": [None, "hidden"]},
    **{"init": ["project", "random", None], "skip": [(), "hidden"], "verbose": [0]},
    **{"merge": [True, False], "count": [2, 3], "restarts": [1, 2]},
    **{"unbiased": [True], "random_start": [True], "relative": [True], "per_class": [False]},
}


@st.composite
def arguments_of(draw, function):
    """Arguments by name: most of them fit, and some do not."""
    names = [name for name in inspect.signature(function).parameters if name in FITTING]
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names else []
    return {name: draw(st.sampled_from(FITTING[name]) | HOSTILE) for name in chosen}


def spoiled(kind, value):
    """A classifier that has diverged."""
    model = keras.models.clone_model(classifier(kind))
    model.compile("sgd", classifier(kind).loss, jit_compile=False)
    kernel = model.layers[-1].kernel
    kernel.assign(np.full(kernel.shape, value))
    return model


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["dense", "convolutional"])
def test_a_model_that_has_diverged_is_refused(kind, value):
    model, x, y = spoiled(kind, value), np.full((3, *SHAPES[kind]), 0.5, "float32"), np.arange(3)
    for attack in ATTACKS:
        assert answer(attack, model, x, y, epsilon=0.1) is REFUSED
        assert answer(kp.robust_accuracy, model, x, y, attack=attack, verbose=0) is REFUSED
    assert answer(kp.certified_radius, model, x, verbose=0) is REFUSED
    assert answer(kp.certified_accuracy, model, x, y, epsilon=0.1, verbose=0) is REFUSED
    for method in ("paper", "operator"):
        assert answer(kp.lipschitz_bound, model, method=method) is REFUSED


POINTS = (np.linspace(0, 1, 40, dtype="float32").reshape(10, 4), np.arange(10) % 3)
CONSTRUCTORS = {
    **{"ParsevalTightFrame": kp.ParsevalTightFrame, "Simplex": kp.Simplex},
    **{"TightFrame": kp.TightFrame, "ConvexAdd": kp.ConvexAdd, "MaxMin": kp.MaxMin},
    **{"FGSM": kp.FGSM, "IteratedFGSM": kp.IteratedFGSM},
    "TightFrameRegularizer": lambda **kwargs: kp.TightFrameRegularizer(**{"beta": 1, **kwargs}),
    **{"AdversarialTraining": kp.AdversarialTraining, "SpectrumLogger": kp.SpectrumLogger},
    "AdversarialEvaluation": lambda **kwargs: kp.AdversarialEvaluation(*POINTS, **kwargs),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
@hypothesis.given(data=st.data())
@several(3)
def test_an_object_that_was_made_can_be_made_again(name, data):
    made = answer(CONSTRUCTORS[name], **data.draw(arguments_of(getattr(kp, name))))
    if made is REFUSED or not hasattr(made, "get_config"):
        return
    config = made.get_config()
    assert type(made).from_config(json.loads(json.dumps(config))).get_config() == config


DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "uint8", "bool"]
# The third power of the largest is a number in float32, as the retraction needs it.
EXTREMES = [0.0, 1.0, -1.0, 1e-30, 1e4, 1e8, np.nan, np.inf, -np.inf]


@st.composite
def tensors(draw, smallest=0, values=EXTREMES, dtypes=DTYPES):
    """Random numbers of a random shape, times one extreme value, with another one in some place."""
    shape = draw(st.lists(st.integers(smallest, 5), max_size=4).map(tuple))
    array = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    with np.errstate(all="ignore"):
        array = array * draw(st.sampled_from(values))
        if array.size and draw(st.booleans()):
            array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from(values))
        return keras.ops.cast(array.astype("float32"), draw(st.sampled_from(dtypes)))


KERNEL_FUNCTIONS = {
    "constraint": lambda kernel, beta=0.1, rows=1.0, unbiased=False, steps=1, groups=1: (
        kp.ParsevalTightFrame(beta, rows=rows, unbiased=unbiased, steps=steps, groups=groups)(
            kernel
        )
    ),
    "axes": lambda kernel, beta=0.1, scale="auto", axes="...oi": kp.ParsevalTightFrame(
        beta, scale=scale, axes=axes
    )(kernel),
    "heads": lambda kernel, beta=0.1, heads=(2, 3): kp.ParsevalTightFrame(beta, heads=heads)(
        kernel
    ),
    "simplex": lambda kernel, axis=-1: kp.Simplex(axis=axis)(kernel),
    "step": kp.constraints.tight_frame_step,
    "sampled step": kp.constraints.sampled_tight_frame_step,
    "projection": kp.constraints.project_tight_frame,
}


@pytest.mark.parametrize("name", KERNEL_FUNCTIONS)
@hypothesis.given(data=st.data())
@several(2)
def test_finite_kernels_stay_finite(name, data):
    kernel = data.draw(tensors(smallest=1))
    required = {"step": {"beta": 0.1}, "sampled step": {"beta": 0.1, "count": 2}}.get(name, {})
    arguments = {**required, **data.draw(arguments_of(KERNEL_FUNCTIONS[name]))}
    moved = answer(KERNEL_FUNCTIONS[name], kernel, **arguments)
    if moved is REFUSED:
        return
    assert tuple(moved.shape) == tuple(kernel.shape) and moved.dtype == kernel.dtype
    assert is_finite(moved) or not is_finite(kernel)


@functools.cache
def classifier(kind):
    """A softmax over dense layers, or logits over convolutions; three classes."""
    keras.utils.set_random_seed(0)
    if kind == "dense":
        layers = [keras.Input((4,)), keras.layers.Dense(4, "relu", name="hidden")]
    else:
        convolution = keras.layers.Conv2D(4, 2, name="hidden")
        layers = [keras.Input((3, 3, 2)), convolution, keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(3, {"dense": "softmax"}.get(kind))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=kind != "dense")
    model.compile("sgd", loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


SHAPES = {"dense": (4,), "convolutional": (3, 3, 2)}
DATA_DTYPES = ["float32", "float32", "float32", "float64", "float16", "uint8", "int64", "bool"]
LABELS = {
    "right": lambda n: np.arange(n) % 3,
    "one class": lambda n: np.zeros(n, "int64"),
    "a column": lambda n: np.arange(n)[:, None] % 3,
    "floats": lambda n: np.arange(n) % 3 + 0.0,
    "unknown class": lambda n: np.arange(n) + 3,
    "negative": lambda n: -1 - np.arange(n),
    "between classes": lambda n: np.arange(n) % 3 + 0.5,
    "nan": lambda n: np.full(n, np.nan),
    "too many": lambda n: np.zeros(n + 1, "int64"),
    "a matrix": lambda n: np.zeros((n, 2), "int64"),
    "text": lambda n: np.array(["cat"] * n),
    "none": lambda n: None,
}
GOOD_LABELS = ("right", "one class", "a column", "floats")


@st.composite
def datasets(draw):
    """A model, data for it, and whether the data is as it should be."""
    kind = draw(st.sampled_from(sorted(SHAPES)))
    wrong = [(5,), (), (3, 3, 1), (2, 2)]
    shape = draw(st.sampled_from([SHAPES[kind]] * len(wrong) + wrong))
    count = draw(st.sampled_from([0, 1, 3, 3]))
    dtype, labels = draw(st.sampled_from(DATA_DTYPES)), draw(st.sampled_from(sorted(LABELS)))
    x = np.random.default_rng(count).uniform(0.1, 0.9, size=(count, *shape))
    if x.size and draw(st.booleans()):
        x.flat[0] = draw(st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf]))
    with np.errstate(invalid="ignore"):
        x = x.astype(dtype)
    good = shape == SHAPES[kind] and np.isfinite(x).all()
    return classifier(kind), x, LABELS[labels](count), bool(good), labels in GOOD_LABELS


def can_move(x):
    """Attacks move floating-point numbers; what is only measured can be anything."""
    return len(x) > 0 and x.dtype.kind == "f"


class unchanged:
    """Checks that what is done within leaves a model as it is, whether it fails or not."""

    def __init__(self, model):
        self.model = model

    def state(self):
        variables = [*self.model.variables, *self.model.optimizer.variables]
        activations = [getattr(layer, "activation", None) for layer in self.model.layers]
        return [to_numpy(each).copy() for each in variables], activations, vars(self.model).keys()

    def __enter__(self):
        self.before = self.state()

    def __exit__(self, *exception):
        weights, *others = self.state()
        assert others == list(self.before[1:])
        for ours, theirs in zip(weights, self.before[0], strict=True):
            np.testing.assert_array_equal(ours, theirs)


ATTACKS = [
    kp.FGSM(),
    kp.FGSM(norm=2, labels="true", bounds=(0, 1)),
    kp.IteratedFGSM(steps=2, random_start=True, labels="predicted"),
    kp.IteratedFGSM(steps=2, norm=2, labels="least_likely"),
    kp.attacks.PGD(steps=2, restarts=2),
]


def needs_labels(attack, y):
    """Whether a call attacks the true labels: where they are asked for, or given."""
    return attack.labels == "true" or (attack.labels is None and y is not None)


@hypothesis.given(case=datasets(), attack=st.sampled_from(ATTACKS))
@several(2)
def test_attacks(case, attack):
    model, x, y, good_inputs, good_labels = case
    with unchanged(model):
        crafted = answer(attack, model, x, y, epsilon=0.1)
    good = good_inputs and can_move(x) and (good_labels or not needs_labels(attack, y))
    assert (crafted is not REFUSED) == good
    if good:
        moved = to_numpy(crafted).astype("float64") - x
        assert moved.shape == x.shape
        order = np.inf if attack.norm == "inf" else 2
        sizes = np.linalg.norm(moved.reshape(len(x), -1), order, axis=1)
        assert (sizes <= 0.1 * (1 + 1e-2)).all()


@hypothesis.given(data=st.data(), attack=st.sampled_from(ATTACKS))
@several(1)
def test_levels_of_attacks(data, attack):
    levels = data.draw(arguments_of(type(attack).__call__))
    model = classifier("dense")
    with unchanged(model):
        crafted = answer(attack, model, *POINTS, **levels)
    if sum(level is not None for level in levels.values()) != 1:
        assert crafted is REFUSED
    assert crafted is REFUSED or is_finite(crafted)


def accuracy(model, x, y):
    return np.mean(to_numpy(model(x)).argmax(-1) == np.ravel(y))


@hypothesis.given(case=datasets(), attack=st.sampled_from(ATTACKS))
@several(1)
def test_robust_accuracy(case, attack):
    model, x, y, good_inputs, good_labels = case
    with unchanged(model):
        result = answer(kp.robust_accuracy, model, x, y, epsilon=(0, 0.1), attack=attack, verbose=0)
    good = good_inputs and can_move(x) and good_labels
    assert (result is not REFUSED) == good
    if good:
        assert result.clean == result.accuracies[0] == pytest.approx(accuracy(model, x, y))
        assert 0 <= result.accuracies[1] <= 1


@hypothesis.given(case=datasets(), norm=st.sampled_from([2, "inf"]))
@several(1)
def test_certificates(case, norm):
    model, x, y, good_inputs, good_labels = case
    good = good_inputs and good_labels and len(x) > 0
    with unchanged(model):
        options = {"norm": norm, "verbose": 0}
        radii = answer(kp.certified_radius, model, x, y, **options)
        result = answer(kp.certified_accuracy, model, x, y, epsilon=(0.0, 0.1), **options)
        bound = answer(kp.analysis.adversarial_loss_bound, model, x, y, epsilon=0.1, **options)
    assert [each is not REFUSED for each in (result, bound)] == [good, good]
    if len(x):
        assert (radii is not REFUSED) == (good_inputs and (good_labels or y is None))
    if good:
        assert radii.shape == (len(x),) and (radii >= 0).all() and np.isfinite(bound)
        assert result.clean <= accuracy(model, x, y)  # a tie is no certain decision
        assert result.accuracies[1] == np.mean(radii > 0.1)


@hypothesis.given(case=datasets(), per_class=st.booleans())
@several(1)
def test_covariance_dimensions(case, per_class):
    model, x, y, good_inputs, good_labels = case
    with unchanged(model):
        result = answer(
            kp.analysis.covariance_dimension, model, x, y, per_class=per_class, verbose=0
        )
    if result is not REFUSED:
        assert result.examples == len(x) and np.isfinite(x).all()
        assert 0 <= result.overall[0] <= result.features[0]
    elif good_inputs and len(x):
        # Labels of another number are refused whether they are used or not.
        assert not good_labels and (per_class or (y is not None and len(y) != len(x)))


NUMBERS = tensors(dtypes=["float32", "float64", "int32"])


@hypothesis.given(x=NUMBERS, y=NUMBERS, level=HOSTILE, norm=st.sampled_from([2, "inf", 3]))
@several(3)
def test_noise_ratios(x, y, level, norm):
    x, y = to_numpy(x), to_numpy(y)
    epsilon = answer(kp.attacks.epsilon_for_snr, x, level, norm=norm)
    for result in (answer(kp.attacks.snr, x, y), epsilon):
        if result is not REFUSED:
            assert len(result) == len(x) and not np.isnan(result).any()


FUNCTIONS = {
    "lipschitz_bound": kp.lipschitz_bound,
    "singular_values": kp.singular_values,
    "robust_accuracy": lambda model, **arguments: kp.robust_accuracy(
        model, *POINTS, **{"verbose": 0, **arguments}
    ),
    "covariance_dimension": lambda model, **arguments: kp.analysis.covariance_dimension(
        model, *POINTS, **{"verbose": 0, **arguments}
    ),
    "certified_accuracy": lambda model, **arguments: kp.certified_accuracy(
        model, *POINTS, **{"epsilon": 0.1, "verbose": 0, **arguments}
    ),
    "certified_radius": lambda model, **arguments: kp.certified_radius(
        model, POINTS[0], **{"verbose": 0, **arguments}
    ),
    "parseval_plan": kp.parseval_plan,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@hypothesis.given(data=st.data(), what=st.sampled_from([None, None, None, 1, "model", object()]))
@several(1)
def test_measurements_take_any_arguments(name, data, what):
    arguments = data.draw(arguments_of(getattr(kp, name, None) or getattr(kp.analysis, name)))
    model = classifier("dense")
    with unchanged(model):
        result = answer(FUNCTIONS[name], model if what is None else what, **arguments)
    assert result is REFUSED or what is None


@hypothesis.given(arguments=arguments_of(kp.parseval), kind=st.sampled_from(sorted(SHAPES)))
@several(0.2)
def test_conversion_leaves_the_model_as_it_is(arguments, kind):
    model, x = classifier(kind), np.full((2, *SHAPES[kind]), 0.5, "float32")
    config, outputs = json.dumps(model.get_config()), to_numpy(model(x))
    with unchanged(model):
        converted = answer(kp.parseval, model, **{"verbose": 0, **arguments})
    assert json.dumps(model.get_config()) == config
    np.testing.assert_array_equal(to_numpy(model(x)), outputs)
    assert converted is REFUSED or is_finite(converted(x))


@hypothesis.given(case=datasets(), attack=st.sampled_from([None, *ATTACKS]))
@several(0.2)
def test_a_training_that_fails_leaves_the_model_as_it_was(case, attack):
    model, x, y, good_inputs, good_labels = case
    twin = keras.models.clone_model(model)
    twin.compile("sgd", model.loss, run_eagerly=True, jit_compile=False)
    twin.optimizer.build(twin.trainable_variables)
    before = [weights.copy() for weights in twin.get_weights()]
    good = good_inputs and good_labels and can_move(x)
    try:
        twin.fit(x, y, verbose=0, callbacks=[kp.AdversarialTraining(attack)])
    except Exception:  # what Keras makes of data that it cannot read is its own affair
        assert not good
        for ours, theirs in zip(twin.get_weights(), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    else:
        assert is_finite(twin.get_weights()) or not (good_inputs and good_labels)
    COUNT["examples"] += 1
    assert "train_step" not in vars(twin)


@functools.cache
def saved_model():
    """The bytes of a file with every object of ours that Keras saves."""
    inputs = keras.Input((4,), name="inputs")
    x = keras.layers.Dense(
        4,
        kernel_constraint=kp.ParsevalTightFrame(0.1),
        kernel_initializer=kp.TightFrame(),
        kernel_regularizer=kp.TightFrameRegularizer(0.1),
    )(inputs)
    model = keras.Model(inputs, kp.MaxMin()(kp.ConvexAdd()([x, inputs])))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        content = Path(f"{folder}/model.keras").read_bytes()
    return content, load(content)


def load(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        return keras.models.load_model(path)


@hypothesis.given(start=st.floats(0, 1), length=st.integers(1, 40), filling=st.binary(max_size=40))
@several(0.5)
def test_a_damaged_file_is_not_loaded_as_another_model(start, length, filling):
    content, model = saved_model()
    start = int(start * len(content))
    damaged = content[:start] + filling + content[start + length :]
    COUNT["examples"] += 1
    try:
        loaded = load(damaged)
    except Exception:  # Keras's own errors, of whatever part of the file it noticed first
        return
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())


def edited(content, key, value):
    """The file with another value for an argument of one of our objects, wherever it stands."""
    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    replacement = f'"{key}": {json.dumps(value)}'
    with zipfile.ZipFile(target, "w") as archive:
        for name in source.namelist():
            text = source.read(name)
            if name == "config.json":
                text = re.sub(rf'"{key}": [^,}}]+', lambda _: replacement, text.decode())
            archive.writestr(name, text)
    return target.getvalue()


ARGUMENTS_SAVED = ["beta", "rows", "unbiased", "steps", "scale", "groups", "axes", "heads", "axis"]


@hypothesis.given(
    key=st.sampled_from(ARGUMENTS_SAVED),
    value=st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
)
@several(1)
def test_a_file_with_impossible_arguments_is_refused_with_the_rule(key, value):
    content, _ = saved_model()
    loaded = answer(load, edited(content, key, value))
    assert loaded is REFUSED or is_finite(loaded(np.ones((2, 4))))
