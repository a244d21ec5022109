import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, linear_model, points
from conftest import BACKEND, JIT_COMPILE, to_numpy
from keras import ops

import keras_parseval as kp


def softmax(z):
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


def gradient_by_hand(model, x, labels):
    """d/dx of the cross-entropy of a linear softmax classifier: W (p - onehot(label))."""
    kernel, bias = (to_numpy(v).astype("float64") for v in model.layers[-1].weights)
    return (softmax(x @ kernel + bias) - np.eye(CLASSES)[labels]) @ kernel.T


def logits_by_hand(model, x):
    kernel, bias = (to_numpy(v).astype("float64") for v in model.layers[-1].weights)
    return x @ kernel + bias


def direction_by_hand(gradient, norm):
    if norm == "inf":
        return np.sign(gradient)
    return gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)


def attack_by_hand(model, x, labels, epsilon, norm, steps, step_size, sign=1):
    start = x.astype("float64")
    delta = np.zeros_like(start)
    for _ in range(steps):
        gradient = sign * gradient_by_hand(model, start + delta, labels)
        delta = delta + step_size * direction_by_hand(gradient, norm)
        if norm == "inf":
            delta = np.clip(delta, -epsilon, epsilon)
        else:
            length = np.linalg.norm(delta, axis=-1, keepdims=True)
            delta = delta * np.minimum(1, epsilon / length)
    return start + delta


@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize("labels", ["predicted", "true", "least_likely"])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_attacks_equal_the_computation_by_hand(norm, labels, activation):
    model, (x, y) = linear_model(activation), points()
    logits = logits_by_hand(model, x)
    chosen = {
        "predicted": logits.argmax(axis=-1),
        "true": y,
        "least_likely": logits.argmin(axis=-1),
    }[labels]
    sign = -1 if labels == "least_likely" else 1
    one = to_numpy(kp.FGSM(0.3, norm, labels)(model, x, y))
    expected = attack_by_hand(model, x, chosen, 0.3, norm, 1, 0.3, sign)
    np.testing.assert_allclose(one, expected, atol=2e-6)
    many = to_numpy(kp.IteratedFGSM(0.3, 7, 0.1, norm, labels=labels)(model, x, y))
    expected = attack_by_hand(model, x, chosen, 0.3, norm, 7, 0.1, sign)
    np.testing.assert_allclose(many, expected, atol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        "categorical_crossentropy",
        keras.losses.CategoricalCrossentropy(from_logits=False),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        keras.losses.categorical_crossentropy,
        "CategoricalCrossentropy",
        ["categorical_crossentropy"],
    ],
)
@pytest.mark.parametrize("labels", ["predicted", "true"])
def test_one_hot_losses_give_the_same_attack(loss, labels):
    from_logits = getattr(loss, "get_config", dict)().get("from_logits", False)
    model = linear_model(None if from_logits else "softmax", loss=loss)
    x, y = points()
    sparse = linear_model()
    sparse.set_weights(model.get_weights())
    ours = kp.FGSM(0.2, labels=labels)(model, x, np.eye(CLASSES, dtype="float32")[y])
    np.testing.assert_allclose(
        to_numpy(ours), to_numpy(kp.FGSM(0.2, labels=labels)(sparse, x, y)), atol=1e-6
    )


@pytest.mark.parametrize("activation", [None, "sigmoid"])
@pytest.mark.parametrize("labels", ["predicted", "true", "least_likely"])
@pytest.mark.parametrize("column", [False, True])
def test_binary_classifiers(activation, labels, column):
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    model, (x, y) = linear_model(activation, 1, loss), points()
    y = (y > 0).astype("int32")
    kernel, bias = (to_numpy(v) for v in model.layers[-1].weights)
    positive = (x @ kernel + bias)[:, 0] > 0
    # The loss grows where the logit moves away from the label; the kernel is the gradient.
    up = {"predicted": ~positive, "true": y == 0, "least_likely": ~positive}[labels]
    expected = x + 0.1 * np.where(up, 1, -1)[:, None] * np.sign(kernel[:, 0])
    crafted = kp.FGSM(0.1, labels=labels)(model, x, y[:, None] if column else y)
    np.testing.assert_allclose(to_numpy(crafted), expected, atol=1e-6)


def deep_model(end):
    """A nearly certain classifier, with a softmax in one of the places it can be in."""
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    if end == "nested":
        head = keras.Sequential([keras.Input((8,)), keras.layers.Dense(CLASSES, "softmax")])
        outputs = head(hidden)
    elif end == "nested functional":
        middle = keras.Input((8,))
        outputs = keras.Model(middle, keras.layers.Dense(CLASSES, "softmax")(middle))(hidden)
    elif end == "dense":
        outputs = keras.layers.Dense(CLASSES, "softmax")(hidden)
    else:
        layer = {"layer": keras.layers.Softmax(), "activation": keras.layers.Activation("softmax")}
        outputs = layer[end](keras.layers.Dense(CLASSES)(hidden))
    model = keras.Model(inputs, outputs)
    model.compile(loss="sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
    # Logits so large that the gradient of the probabilities is zero in float32.
    model.set_weights([200 * w for w in model.get_weights()])
    return model


@pytest.mark.parametrize("end", ["dense", "activation", "layer", "nested", "nested functional"])
def test_a_softmax_at_the_end_does_not_hide_the_gradient(end):
    model, x = deep_model(end), points(8)[0] / 50
    outputs = to_numpy(model(x))
    crafted = to_numpy(kp.FGSM(0.01, labels="predicted")(model, x))
    assert (abs(crafted - x) > 0.009).mean() > 0.9
    # and the model still ends with its softmax
    np.testing.assert_array_equal(to_numpy(model(x)), outputs)
    np.testing.assert_allclose(outputs.sum(axis=-1), 1, rtol=1e-5)


def test_a_softmax_that_is_used_twice_stays():
    inputs = keras.Input((FEATURES,))
    softmax = keras.layers.Activation("softmax")
    gate = softmax(keras.layers.Dense(FEATURES)(inputs))
    gated = keras.layers.Dense(CLASSES)(keras.layers.Multiply()([inputs, gate]))
    model, (x, y) = keras.Model(inputs, softmax(gated)), points()
    model.compile(loss="sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
    decided = model.predict(x, verbose=0).argmax(-1)
    with pytest.warns(UserWarning, match="cannot be reached"):
        assert kp.robust_accuracy(model, x, y).clean == pytest.approx((decided == y).mean())


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(CLASSES)

    def call(self, x):
        return ops.softmax(self.dense(x))


def test_out_of_reach_logits_are_said_to_be():
    model, (x, _) = Subclassed(), points()
    model.compile(loss="sparse_categorical_crossentropy", jit_compile=JIT_COMPILE)
    with pytest.warns(UserWarning, match="cannot be reached"):
        crafted = to_numpy(kp.FGSM(0.1)(model, x))
    assert abs(crafted - x).max() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize(
    "make",
    [
        kp.FGSM,
        lambda *args, **options: kp.IteratedFGSM(*args, 10, **options),
        lambda *args, **options: kp.IteratedFGSM(*args, 10, random_start=True, **options),
    ],
    ids=["fgsm", "iterated", "random start"],
)
def test_ball_and_bounds_are_respected(make, norm):
    model, (x, _) = trained_network(), points(200, seed=3)
    x = np.clip(x, -1, 1)
    for epsilon in (0.0, 0.01, 0.3, 5.0):
        crafted = to_numpy(make(epsilon, norm=norm, bounds=(-1, 1))(model, x))
        assert crafted.min() >= -1 and crafted.max() <= 1
        delta = crafted - x
        size = abs(delta).max() if norm == "inf" else np.linalg.norm(delta, axis=-1).max()
        assert size <= epsilon * (1 + 1e-6) + 1e-7
        if epsilon == 0:
            np.testing.assert_array_equal(crafted, x)


_cache = {}


def trained_network():
    if "model" not in _cache:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(32, "relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, jit_compile=JIT_COMPILE)
        model.fit(*points(400), epochs=15, verbose=0)
        _cache["model"] = model
    return _cache["model"]


@pytest.mark.parametrize("norm, epsilon", [("inf", 0.2), (2, 0.5)])
def test_the_loss_rises_and_iterating_is_no_weaker(norm, epsilon):
    model, (x, y) = trained_network(), points(400, seed=5)

    def loss(inputs):
        return float(model.evaluate(inputs, y, verbose=0))

    clean = loss(x)
    one = loss(to_numpy(kp.FGSM(epsilon, norm, "true")(model, x, y)))
    many = loss(to_numpy(kp.IteratedFGSM(epsilon, 20, norm=norm, labels="true")(model, x, y)))
    assert one > 1.2 * clean
    assert many >= one


def test_random_starts_differ_by_seed_alone():
    model, (x, _) = trained_network(), points()

    def craft(seed):
        attack = kp.IteratedFGSM(0.1, 1, 0.01, random_start=True, seed=seed)
        return to_numpy(attack(model, x))

    np.testing.assert_array_equal(craft(1), craft(1))
    assert (craft(1) != craft(2)).any()


def draw_globally(between):
    """What the global random state gives after it was seeded and `between` was called."""
    # In older versions of Keras, seeding alone does not take the global generator back.
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    between()
    return to_numpy(keras.random.normal((4,)))


def test_nothing_is_touched():
    """Weights, statistics, metrics, losses and the global random state stay as they are."""
    layers = [
        keras.layers.Dense(8, activity_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=JIT_COMPILE)
    x, y = points()
    model.fit(x, y, verbose=0)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [to_numpy(v).copy() for v in variables]
    expected = draw_globally(lambda: None)

    def attack_all():
        for attack in (kp.FGSM(0.1), kp.IteratedFGSM(0.1, 3, random_start=True, norm=2)):
            attack(model, x)
        kp.robust_accuracy(model, x, y)

    np.testing.assert_array_equal(draw_globally(attack_all), expected)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(to_numpy(variable), value)


def test_epsilon_for_each_example_and_each_channel():
    x, _ = points(10)
    model = linear_model()
    sizes = np.linspace(0.1, 1, 10)
    moved = abs(to_numpy(kp.FGSM(sizes)(model, x)) - x)
    np.testing.assert_allclose(moved, np.repeat(sizes[:, None], FEATURES, axis=1), atol=1e-6)
    channels = np.linspace(0, 0.5, FEATURES)
    moved = abs(to_numpy(kp.FGSM(channels)(model, x)) - x)
    np.testing.assert_allclose(moved, np.repeat(channels[None], 10, axis=0), atol=1e-6)
    lengths = np.linalg.norm(to_numpy(kp.FGSM(sizes, norm=2)(model, x)) - x, axis=-1)
    np.testing.assert_allclose(lengths, sizes, rtol=1e-5)
    with pytest.raises(ValueError, match="say which is meant by its shape"):
        kp.FGSM(channels)(model, x[:FEATURES])
    explicit = kp.FGSM(channels[None])(model, x[:FEATURES])
    np.testing.assert_allclose(abs(to_numpy(explicit) - x[:FEATURES])[0], channels, atol=1e-6)
    for wrong in (kp.FGSM(np.ones(4)), kp.FGSM(channels, norm=2)):
        with pytest.raises(ValueError, match="`epsilon` must be a number, one for each example"):
            wrong(model, x)


@pytest.mark.parametrize("norm", ["inf", 2])
def test_masked_features_stay_to_the_bit(norm):
    model, (x, _) = trained_network(), points()
    mask = np.array([1, 0, 1, 0, 1, 1])
    for attack in (
        kp.FGSM(0.1, norm, mask=mask),
        kp.IteratedFGSM(0.1, 5, norm=norm, random_start=True, mask=mask, bounds=(-9, 9)),
    ):
        crafted = to_numpy(attack(model, x))
        np.testing.assert_array_equal(crafted[:, mask == 0], x[:, mask == 0])
        assert (crafted[:, mask == 1] != x[:, mask == 1]).mean() > 0.9


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_one_of_several_inputs(kind):
    image, other = keras.Input((FEATURES,), name="image"), keras.Input((2,), name="other")
    joined = keras.layers.Concatenate()([image, other])
    outputs = keras.layers.Dense(CLASSES)(joined)
    structure = {"image": image, "other": other} if kind == "dict" else [image, other]
    model = keras.Model(structure, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    (x, y), z = points(), np.ones((40, 2), "float32")
    data = {"image": x, "other": z} if kind == "dict" else [x, z]
    key, second = ("image", "other") if kind == "dict" else (0, 1)
    crafted = kp.FGSM(0.1, perturb=key)(model, data)
    np.testing.assert_allclose(abs(to_numpy(crafted[key]) - x), 0.1, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(crafted[second]), z)
    result = kp.robust_accuracy(model, data, y, attack=kp.FGSM(0, perturb=key, labels="true"))
    assert result.accuracies[-1] <= result.clean
    with pytest.raises(ValueError, match="`perturb` must name the input"):
        kp.FGSM(0.1)(model, data)
    with pytest.raises(ValueError, match="`perturb` must be the key or index"):
        kp.FGSM(0.1, perturb=7 if kind == "list" else "images")(model, data)


def test_a_given_loss_is_used():
    """A loss of one's own gets integer labels and the output as it is."""
    model, (x, y) = linear_model(), points()

    def negative_logit(y_true, y_pred):
        return -ops.sum(y_pred * ops.one_hot(y_true, CLASSES), axis=-1)

    crafted = to_numpy(kp.FGSM(0.1, labels="true", loss=negative_logit)(model, x, y))
    kernel = to_numpy(model.layers[-1].kernel)
    np.testing.assert_allclose(crafted, x - 0.1 * np.sign(kernel.T[y]), atol=1e-6)
    # With its own loss, a model needs none.
    bare = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    bare.set_weights(model.get_weights())
    again = kp.FGSM(0.1, labels="true", loss=negative_logit)(bare, x, y)
    np.testing.assert_allclose(to_numpy(again), crafted, atol=1e-6)


def test_no_new_compilation_for_another_epsilon():
    model, (x, _) = linear_model(), points()
    traces = []
    layer = model.layers[-1]
    call = layer.call
    layer.call = lambda *args, **kwargs: (traces.append(1), call(*args, **kwargs))[1]
    for epsilon in (0.1, 0.2, np.full(len(x), 0.3)):
        kp.FGSM(epsilon)(model, x)
    if JIT_COMPILE:
        assert len(traces) <= 2  # a number, and one for each example


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"epsilon": -0.1}, ValueError),
        ({"epsilon": float("nan")}, ValueError),
        ({"epsilon": float("inf")}, ValueError),
        ({"epsilon": "0.1"}, TypeError),
        ({"epsilon": None}, TypeError),
        ({"norm": 1}, ValueError),
        ({"norm": True}, ValueError),
        ({"labels": "guess"}, ValueError),
        ({"bounds": (1, 0)}, ValueError),
        ({"bounds": (0, 0)}, ValueError),
        ({"bounds": 1}, TypeError),
        ({"bounds": (0, 1, 2)}, TypeError),
        ({"perturb": -1}, ValueError),
        ({"perturb": 0.5}, TypeError),
    ],
    ids=str,
)
@pytest.mark.parametrize("attack", [kp.FGSM, kp.IteratedFGSM])
def test_bad_arguments_are_refused_at_once(attack, arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=f"`{name}` must be .*Received: {name}="):
        attack(**{"epsilon": 0.1, **arguments})


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"steps": 0}, ValueError),
        ({"steps": 2.5}, TypeError),
        ({"step_size": 0}, ValueError),
        ({"step_size": "big"}, TypeError),
        ({"random_start": 1}, TypeError),
        ({"seed": 0.5}, TypeError),
        ({"seed": -1}, ValueError),
    ],
    ids=str,
)
def test_bad_iterations_are_refused_at_once(arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=f"`{name}` must be .*Received: {name}="):
        kp.IteratedFGSM(0.1, **arguments)


def test_attacks_cannot_be_changed():
    with pytest.raises(AttributeError):
        kp.FGSM(0.1).epsilon = 0.2
    sizes = np.ones(3)
    attack = kp.FGSM(sizes, mask=sizes)
    sizes[:] = -1
    assert (attack.epsilon == 1).all() and (attack.mask == 1).all()


def test_infinity_may_be_a_number():
    assert kp.FGSM(0.1, norm=np.inf).norm == "inf"


def test_masks_that_do_not_fit_are_refused():
    for mask in (np.ones(5), np.ones((3, 1, FEATURES))):
        with pytest.raises(ValueError, match="`mask` must broadcast"):
            kp.FGSM(0.1, mask=mask)(linear_model(), points()[0])


def test_a_single_input_has_no_name():
    with pytest.raises(ValueError, match="`perturb` must name the input"):
        kp.FGSM(0.1, perturb=0)(linear_model(), points()[0])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("norm", ["inf", 2])
def test_inputs_keep_their_precision(dtype, norm):
    x, _ = points()
    for attack in (kp.FGSM(0.1, norm), kp.IteratedFGSM(0.1, 3, 0.05, norm, random_start=True)):
        crafted = attack(linear_model(), x.astype(dtype))
        # JAX has float64 off by default.
        expected = "float32" if (BACKEND, dtype) == ("jax", "float64") else dtype
        assert keras.backend.standardize_dtype(crafted.dtype) == expected


def test_one_step_of_a_size_of_ones_own():
    model, (x, _) = linear_model(), points()
    moved = abs(to_numpy(kp.IteratedFGSM(0.3, 1, 0.1)(model, x)) - x)
    np.testing.assert_allclose(moved, 0.1, atol=1e-6)


def uncompiled():
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])


def without_loss():
    model = uncompiled()
    model.compile("sgd")
    return model


def two_outputs():
    inputs = keras.Input((FEATURES,))
    model = keras.Model(inputs, [keras.layers.Dense(CLASSES)(inputs) for _ in range(2)])
    model.compile("sgd", ["sparse_categorical_crossentropy"] * 2)
    return model


def dictionary_output():
    inputs = keras.Input((FEATURES,))
    model = keras.Model(inputs, {"out": keras.layers.Dense(CLASSES)(inputs)})
    model.compile("sgd", {"out": "sparse_categorical_crossentropy"})
    return model


BAD_MODELS = {
    "uncompiled": (uncompiled, "must be compiled with a loss"),
    "without loss": (without_loss, "must be compiled with a loss"),
    "regression": (lambda: linear_model(loss="mse"), "Attacks need a classifier"),
    "two outputs": (two_outputs, "must have one output"),
    "dictionary": (dictionary_output, "not a dictionary"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_models_that_are_no_classifiers_are_refused(name):
    make, message = BAD_MODELS[name]
    with pytest.raises(ValueError, match=message):
        kp.FGSM(0.1)(make(), points()[0])


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda x: (x * 0).astype("uint8"), TypeError, "floating-point.*dtype=uint8"),
        (lambda x: x[:0], ValueError, "at least one example"),
        (lambda x: x * np.nan, ValueError, "must be finite"),
        (lambda x: x + 5, ValueError, "must lie in `bounds`"),
        (lambda x: [x], ValueError, "`perturb` must name the input"),
        (lambda x: "images", TypeError, "must be arrays or tensors"),
    ],
)
def test_bad_data_is_refused(change, error, message):
    x = np.clip(points()[0], -1, 1)
    with pytest.raises(error, match=message):
        kp.FGSM(0.1, bounds=(-1, 1))(linear_model(), change(x))


def test_missing_labels_are_refused():
    with pytest.raises(ValueError, match='labels="true" must be given the labels'):
        kp.FGSM(0.1, labels="true")(linear_model(), points()[0])


def test_inputs_without_gradient_are_refused():
    layers = [keras.layers.Embedding(5, 4), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    x, y = points()
    with pytest.raises(ValueError, match="cannot be differentiated"):
        kp.FGSM(0.1)(model, abs(x))
    with pytest.raises(ValueError, match="cannot be differentiated"):
        kp.robust_accuracy(model, abs(x), y)
