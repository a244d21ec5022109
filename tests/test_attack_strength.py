"""Iterated attacks are as strong as a plain loop, and no weaker than those of another library."""

import os

import keras
import numpy as np
import pytest
from conftest import BACKEND
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_parseval as kp

pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="the loop is TensorFlow's own")
L = keras.layers
MODELS = {
    "convnet": lambda: [
        L.Conv2D(16, 3, padding="same", activation="relu"),
        *(L.MaxPooling2D(2), L.Flatten(), L.Dense(10)),
    ],
    "mlp": lambda: [L.Flatten(), L.Dense(64, "relu"), L.Dense(64, "relu"), L.Dense(10)],
    "softmax": lambda: [L.Flatten(), L.Dense(64, "relu"), L.Dense(10, "softmax")],
}
# For a long run: KERAS_PARSEVAL_ATTACKED=599 python -m pytest -n 0 tests/test_attack_strength.py.
EXAMPLES = int(os.environ.get("KERAS_PARSEVAL_ATTACKED", 100))
SETTINGS = [
    pytest.param(norm, bounds, steps, id=f"{norm}-{'bounded' if bounds else 'free'}-{steps}")
    for norm in (2, "inf")
    for bounds in (None, (0, 1))
    for steps in (1, 5, 20, 100)
    if EXAMPLES > 500 or (steps in (1, 20) and bounds)
]
LEVELS = {2: (0.2, 0.5, 1.0), "inf": (0.02, 0.06, 0.12)}


def digits():
    data = load_digits()
    images = data.images[..., None].astype("float32") / 16
    return train_test_split(images, data.target.astype("int32"), test_size=1 / 3, random_state=0)


@pytest.fixture(scope="module", params=MODELS)
def trained(request):
    keras.utils.set_random_seed(0)
    x_train, x_test, y_train, y_test = digits()
    model = keras.Sequential([keras.Input((8, 8, 1)), *MODELS[request.param]()])
    from_logits = request.param != "softmax"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(x_train, y_train, epochs=8, batch_size=64, verbose=0)
    return model, logits_of(model), x_test[:EXAMPLES], y_test[:EXAMPLES]


def logits_of(model):
    """The model without its softmax, for those who cannot look behind it."""
    last = model.layers[-1]
    if last.activation is not keras.activations.softmax:
        return model
    config = {**last.get_config(), "activation": "linear"}
    layers = [*model.layers[:-1], L.Dense.from_config(config)]
    logits = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    logits.layers[-1].set_weights(last.get_weights())
    return logits


def right_after(logits, points, y):
    return (np.argmax(logits.predict(points, batch_size=1024, verbose=0), axis=-1) == y).sum()


def plain_loop(logits, x, y, epsilon, norm, steps, bounds):
    """Projected gradient ascent, written down as it is in the papers."""
    import tensorflow as tf

    @tf.function
    def gradient(point):
        with tf.GradientTape() as tape:
            tape.watch(point)
            # The log-odds against the label: the direction of the cross-entropy's gradient.
            z = logits(point, training=False)
            others = tf.where(tf.one_hot(y, 10, True, False), -1e30, z)
            loss = tf.reduce_logsumexp(others, -1) - tf.gather(z, y, batch_dims=1)
        return tape.gradient(loss, point)

    def length(each):
        return tf.sqrt(tf.reduce_sum(each**2, axis=(1, 2, 3), keepdims=True))

    point, step = tf.constant(x), 2.5 * epsilon / steps if steps > 1 else epsilon
    for _ in range(steps):
        g = gradient(point)
        delta = point + step * (tf.sign(g) if norm == "inf" else g / length(g)) - x
        if norm == "inf":
            delta = tf.clip_by_value(delta, -epsilon, epsilon)
        else:
            delta = delta * tf.minimum(1.0, epsilon / length(delta))
        point = x + delta
        point = point if bounds is None else tf.clip_by_value(point, *bounds)
    return point.numpy()


@pytest.mark.parametrize("norm, bounds, steps", SETTINGS)
def test_accuracies_are_those_of_a_plain_loop(trained, norm, bounds, steps):
    model, logits, x, y = trained
    attack = kp.FGSM(norm=norm, bounds=bounds)
    if steps > 1:
        attack = kp.IteratedFGSM(steps=steps, norm=norm, bounds=bounds)
    result = kp.robust_accuracy(
        model, x, y, epsilon=LEVELS[norm], attack=attack, batch_size=len(x), verbose=0
    )
    for epsilon, accuracy in zip(LEVELS[norm], result.accuracies):
        point = plain_loop(logits, x, y, epsilon, norm, steps, bounds)
        assert abs(accuracy * len(x) - right_after(logits, point, y)) <= 1.5
    assert result.accuracies[-1] < result.clean - 0.1


@pytest.mark.parametrize("norm, bounds, steps", SETTINGS)
def test_no_weaker_than_foolbox(trained, norm, bounds, steps, monkeypatch):
    import tensorflow as tf

    foolbox = pytest.importorskip("foolbox")
    # Its dependency asks for a function that NumPy 2 has no longer.
    monkeypatch.setattr(np, "find_common_type", lambda a, b: np.result_type(*a, *b), raising=False)
    model, logits, x, y = trained
    kinds = {
        "inf": foolbox.attacks.LinfProjectedGradientDescentAttack,
        2: foolbox.attacks.L2ProjectedGradientDescentAttack,
    }
    network = foolbox.TensorFlowModel(logits, bounds=bounds or (-100, 101))
    size = None if steps > 1 else max(LEVELS[norm])
    attack = kp.IteratedFGSM(steps=steps, step_size=size, norm=norm, bounds=bounds)
    ours = kp.robust_accuracy(
        model, x, y, epsilon=LEVELS[norm], attack=attack, batch_size=len(x), verbose=0
    )
    for epsilon, accuracy in zip(LEVELS[norm], ours.accuracies):
        step = 2.5 * epsilon / steps if steps > 1 else epsilon
        theirs = kinds[norm](steps=steps, abs_stepsize=step, random_start=False)
        _, _, broken = theirs(network, tf.constant(x), tf.constant(y), epsilons=epsilon)
        assert accuracy * len(x) <= len(x) - broken.numpy().sum() + 1.5
