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
    one = to_numpy(kp.FGSM(norm=norm, labels=labels)(model, x, y, epsilon=0.3))
    expected = attack_by_hand(model, x, chosen, 0.3, norm, 1, 0.3, sign)
    np.testing.assert_allclose(one, expected, atol=2e-6)
    iterated = kp.IteratedFGSM(steps=7, step_size=0.1, norm=norm, labels=labels)
    many = to_numpy(iterated(model, x, y, epsilon=0.3))
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
    attack = kp.FGSM(labels=labels)
    ours = attack(model, x, np.eye(CLASSES, dtype="float32")[y], epsilon=0.2)
    theirs = attack(sparse, x, y, epsilon=0.2)
    np.testing.assert_allclose(to_numpy(ours), to_numpy(theirs), atol=1e-6)


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
    attack = kp.FGSM(labels=labels)
    crafted = attack(model, x, y[:, None] if column else y, epsilon=0.1)
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
    crafted = to_numpy(kp.FGSM()(model, x, epsilon=0.01))
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
        crafted = to_numpy(kp.FGSM()(model, x, epsilon=0.1))
    assert abs(crafted - x).max() == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize(
    "make",
    [
        kp.FGSM,
        kp.IteratedFGSM,
        kp.attacks.PGD,
        lambda **options: kp.attacks.PGD(steps=5, restarts=3, **options),
    ],
    ids=["fgsm", "iterated", "random start", "restarts"],
)
def test_ball_and_bounds_are_respected(make, norm):
    model, (x, _) = trained_network(), points(200, seed=3)
    x = np.clip(x, -1, 1)
    for epsilon in (0.0, 0.01, 0.3, 5.0):
        crafted = to_numpy(make(norm=norm, bounds=(-1, 1))(model, x, epsilon=epsilon))
        assert crafted.min() >= -1 and crafted.max() <= 1
        delta = crafted - x
        size = abs(delta).max() if norm == "inf" else np.linalg.norm(delta, axis=-1).max()
        assert size <= epsilon * (1 + 1e-6) + 1e-7
        if epsilon == 0:
            np.testing.assert_array_equal(crafted, x)


def plain_loop(model, x, labels, epsilon, norm, steps, low, high):
    """Projected gradient ascent of a linear classifier, on points that are kept in the box."""
    start, point = x.astype("float64"), x.astype("float64")
    for _ in range(steps):
        direction = direction_by_hand(gradient_by_hand(model, point, labels), norm)
        delta = point + 2.5 * epsilon / steps * direction - start
        if norm == "inf":
            delta = np.clip(delta, -epsilon, epsilon)
        else:
            delta *= np.minimum(1, epsilon / np.linalg.norm(delta, axis=-1, keepdims=True))
        point = np.clip(start + delta, low, high)
    return point


@pytest.mark.parametrize("norm, epsilon", [("inf", 0.3), (2, 0.8)])
def test_what_is_carried_from_step_to_step_is_what_the_model_sees(norm, epsilon):
    model, (x, y) = linear_model(), points(200)
    x = np.clip(x, -0.5, 0.5)  # many features are at their bounds from the start
    attack = kp.IteratedFGSM(steps=20, norm=norm, bounds=(-0.5, 0.5))
    ours = to_numpy(attack(model, x, y, epsilon=epsilon))
    expected = plain_loop(model, x, y, epsilon, norm, 20, -0.5, 0.5)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


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
    one = loss(to_numpy(kp.FGSM(norm=norm)(model, x, y, epsilon=epsilon)))
    many = loss(to_numpy(kp.IteratedFGSM(steps=20, norm=norm)(model, x, y, epsilon=epsilon)))
    assert one > 1.2 * clean
    assert many >= one


def test_random_starts_differ_by_seed_alone():
    model, (x, _) = trained_network(), points()

    def craft(seed):
        attack = kp.attacks.PGD(steps=1, step_size=0.01, seed=seed)
        return to_numpy(attack(model, x, epsilon=0.1))

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
        for attack in (kp.FGSM(), kp.attacks.PGD(steps=3, restarts=2, norm=2)):
            attack(model, x, epsilon=0.1)
        kp.robust_accuracy(model, x, y)

    np.testing.assert_array_equal(draw_globally(attack_all), expected)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(to_numpy(variable), value)


def test_epsilon_for_each_example_and_each_channel():
    x, _ = points(10)
    model, attack = linear_model(), kp.FGSM()
    sizes = np.linspace(0.1, 1, 10)
    moved = abs(to_numpy(attack(model, x, epsilon=sizes)) - x)
    np.testing.assert_allclose(moved, np.repeat(sizes[:, None], FEATURES, axis=1), atol=1e-6)
    channels = np.linspace(0, 0.5, FEATURES)
    moved = abs(to_numpy(attack(model, x, epsilon=channels)) - x)
    np.testing.assert_allclose(moved, np.repeat(channels[None], 10, axis=0), atol=1e-6)
    euclidean = kp.FGSM(norm=2)
    lengths = np.linalg.norm(to_numpy(euclidean(model, x, epsilon=sizes)) - x, axis=-1)
    np.testing.assert_allclose(lengths, sizes, rtol=1e-5)
    with pytest.raises(ValueError, match="say which is meant by its shape"):
        attack(model, x[:FEATURES], epsilon=channels)
    explicit = attack(model, x[:FEATURES], epsilon=channels[None])
    np.testing.assert_allclose(abs(to_numpy(explicit) - x[:FEATURES])[0], channels, atol=1e-6)
    for wrong, epsilon in ((attack, np.ones(4)), (euclidean, channels)):
        with pytest.raises(ValueError, match="`epsilon` must be a number, one for each example"):
            wrong(model, x, epsilon=epsilon)


@pytest.mark.parametrize("norm", ["inf", 2])
def test_masked_features_stay_to_the_bit(norm):
    model, (x, _) = trained_network(), points()
    mask = np.array([1, 0, 1, 0, 1, 1])
    for attack in (
        kp.FGSM(norm=norm, mask=mask),
        kp.attacks.PGD(steps=5, norm=norm, mask=mask, bounds=(-9, 9)),
    ):
        crafted = to_numpy(attack(model, x, epsilon=0.1))
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
    crafted = kp.FGSM(perturb=key)(model, data, epsilon=0.1)
    np.testing.assert_allclose(abs(to_numpy(crafted[key]) - x), 0.1, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(crafted[second]), z)
    result = kp.robust_accuracy(model, data, y, attack=kp.FGSM(perturb=key))
    assert result.accuracies[-1] <= result.clean
    with pytest.raises(ValueError, match="`perturb` must name the input"):
        kp.FGSM()(model, data, epsilon=0.1)
    with pytest.raises(ValueError, match="`perturb` must be the key or index"):
        kp.FGSM(perturb=7 if kind == "list" else "images")(model, data, epsilon=0.1)


def test_a_given_loss_is_used():
    """A loss of one's own gets integer labels and the output as it is."""
    model, (x, y) = linear_model(), points()

    def negative_logit(y_true, y_pred):
        return -ops.sum(y_pred * ops.one_hot(y_true, CLASSES), axis=-1)

    attack = kp.FGSM(loss=negative_logit)
    crafted = to_numpy(attack(model, x, y, epsilon=0.1))
    kernel = to_numpy(model.layers[-1].kernel)
    np.testing.assert_allclose(crafted, x - 0.1 * np.sign(kernel.T[y]), atol=1e-6)
    # With its own loss, a model needs none.
    bare = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    bare.set_weights(model.get_weights())
    again = attack(bare, x, y, epsilon=0.1)
    np.testing.assert_allclose(to_numpy(again), crafted, atol=1e-6)


def count_passes(model):
    """A list that grows with each pass through the model that is traced, or run eagerly."""
    passes = []
    layer = model.layers[-1]
    call = layer.call
    layer.call = lambda *args, **kwargs: (passes.append(1), call(*args, **kwargs))[1]
    return passes


def test_no_new_compilation_for_another_epsilon():
    model, (x, _) = linear_model(), points()
    passes, attack = count_passes(model), kp.FGSM()
    for epsilon in (0.1, 0.2, np.full(len(x), 0.3)):
        attack(model, x, epsilon=epsilon)
    if BACKEND == "torch":  # eager: one pass for each call, and no more
        assert len(passes) == 3
    else:
        assert len(passes) <= 2  # a number, and one for each example


def by_signature(attack, *arguments, **options):
    with pytest.raises(TypeError, match=r"epsilon \(or snr\) only when it is called") as error:
        attack(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize("attack", [kp.FGSM, kp.IteratedFGSM, kp.attacks.PGD])
def test_epsilon_goes_to_the_call(attack):
    assert f"`attack = {attack.__name__}()`" in by_signature(attack, 0.3)
    assert "Received: epsilon" in by_signature(attack, epsilon=0.3)
    assert "Received: norm, snr" in by_signature(attack, norm=2, snr=30)
    with pytest.raises(TypeError, match="steepness"):
        attack(steepness=1)


@pytest.mark.parametrize(
    "amount, error",
    [
        ({"epsilon": -0.1}, ValueError),
        ({"epsilon": float("nan")}, ValueError),
        ({"epsilon": float("inf")}, ValueError),
        ({"epsilon": "0.1"}, TypeError),
        ({"snr": 400}, ValueError),
        ({"snr": "loud"}, TypeError),
    ],
    ids=str,
)
def test_bad_amounts_are_refused(amount, error):
    (name,) = amount
    with pytest.raises(error, match=f"`{name}` must be .*Received: {name}="):
        kp.FGSM()(linear_model(), points()[0], **amount)


@pytest.mark.parametrize("amount", [{}, {"epsilon": 0.1, "snr": 30}], ids=["neither", "both"])
def test_a_call_needs_one_amount(amount):
    with pytest.raises(ValueError, match=r"pass `epsilon`.*or `snr`.*and not both"):
        kp.FGSM()(linear_model(), points()[0], **amount)


def test_labels_are_the_true_ones_where_they_are_given():
    model, (x, y) = linear_model(), points()
    for given, labels in ((y, "true"), (None, "predicted")):
        default = kp.IteratedFGSM(norm=2)(model, x, given, epsilon=0.3)
        explicit = kp.IteratedFGSM(norm=2, labels=labels)(model, x, given, epsilon=0.3)
        np.testing.assert_array_equal(to_numpy(default), to_numpy(explicit))
    unlabelled = kp.IteratedFGSM(norm=2)(model, x, epsilon=0.3)
    labelled = kp.IteratedFGSM(norm=2)(model, x, y, epsilon=0.3)
    assert (to_numpy(unlabelled) != to_numpy(labelled)).any()


def test_lists_are_taken_for_arrays():
    model, (x, y) = linear_model(), points()
    crafted = kp.FGSM()(model, x.tolist(), y.tolist(), epsilon=0.1)
    np.testing.assert_allclose(to_numpy(crafted), to_numpy(kp.FGSM()(model, x, y, epsilon=0.1)))


@pytest.mark.parametrize(
    "arguments, error",
    [
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
        attack(**arguments)


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
        ({"restarts": 0}, ValueError),
        ({"restarts": 2}, ValueError),
        ({"restarts": 1.5}, TypeError),
    ],
    ids=str,
)
def test_bad_iterations_are_refused_at_once(arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=f"`{name}` must be .*Received: {name}="):
        kp.IteratedFGSM(**arguments)


def test_attacks_cannot_be_changed():
    with pytest.raises(AttributeError):
        kp.FGSM().norm = 2
    mask = np.ones(3)
    attack = kp.FGSM(mask=mask)
    mask[:] = -1
    assert (attack.mask == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        attack.mask[0] = 0


def test_infinity_may_be_a_number():
    assert kp.FGSM(norm=np.inf).norm == "inf"


@pytest.mark.parametrize("labels", ["true", "predicted", "least_likely"])
def test_the_worst_restart_of_each_example_is_kept(labels):
    model, (x, y) = trained_network(), points(200, seed=3)
    options = {"steps": 2, "step_size": 0.02, "norm": 2, "labels": labels}
    restarts = kp.attacks.PGD(restarts=4, seed=1, **options)
    kept = to_numpy(restarts(model, x, y, epsilon=0.8))
    # The seeds of restarts are this far apart.
    each = [
        to_numpy(kp.attacks.PGD(seed=1 + 1_000_003 * number, **options)(model, x, y, epsilon=0.8))
        for number in range(4)
    ]
    clean = model.predict(x, verbose=0)
    chosen = {"true": y, "predicted": clean.argmax(-1), "least_likely": clean.argmin(-1)}[labels]
    margins = np.stack([margins_by_hand(model, inputs, chosen) for inputs in each])
    worst = margins.argmax(axis=0) if labels == "least_likely" else margins.argmin(axis=0)
    assert len(set(worst)) == 4
    expected = np.stack(each)[worst, np.arange(len(x))]
    np.testing.assert_allclose(kept, expected, atol=1e-5)


def margins_by_hand(model, x, labels):
    logits = model.predict(x, verbose=0)
    rows = np.arange(len(x))
    own = logits[rows, labels].copy()
    logits[rows, labels] = -np.inf
    return own - logits.max(axis=-1)


def test_masks_that_do_not_fit_are_refused():
    for mask in (np.ones(5), np.ones((3, 1, FEATURES))):
        with pytest.raises(ValueError, match="`mask` must broadcast"):
            kp.FGSM(mask=mask)(linear_model(), points()[0], epsilon=0.1)


def test_a_single_input_has_no_name():
    with pytest.raises(ValueError, match="`perturb` must name the input"):
        kp.FGSM(perturb=0)(linear_model(), points()[0], epsilon=0.1)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("norm", ["inf", 2])
def test_inputs_keep_their_precision(dtype, norm):
    x, _ = points()
    for attack in (kp.FGSM(norm=norm), kp.attacks.PGD(steps=3, step_size=0.05, norm=norm)):
        crafted = attack(linear_model(), x.astype(dtype), epsilon=0.1)
        # JAX has float64 off by default.
        expected = "float32" if (BACKEND, dtype) == ("jax", "float64") else dtype
        assert keras.backend.standardize_dtype(crafted.dtype) == expected


def test_one_step_of_a_size_of_ones_own():
    model, (x, _) = linear_model(), points()
    attack = kp.IteratedFGSM(steps=1, step_size=0.1)
    moved = abs(to_numpy(attack(model, x, epsilon=0.3)) - x)
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
        kp.FGSM()(make(), points()[0], epsilon=0.1)


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
        kp.FGSM(bounds=(-1, 1))(linear_model(), change(x), epsilon=0.1)


def test_missing_labels_are_refused():
    with pytest.raises(ValueError, match='labels="true" must be given the labels'):
        kp.FGSM(labels="true")(linear_model(), points()[0], epsilon=0.1)


def test_the_model_comes_first():
    x, _ = points()
    with pytest.raises(TypeError, match="must be a Keras model, and comes first"):
        kp.FGSM()(x, linear_model(), epsilon=0.1)


def test_inputs_without_gradient_are_refused():
    layers = [keras.layers.Embedding(5, 4), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    x, y = points()
    with pytest.raises(ValueError, match="cannot be differentiated"):
        kp.FGSM()(model, abs(x), epsilon=0.1)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        kp.robust_accuracy(model, abs(x), y)
