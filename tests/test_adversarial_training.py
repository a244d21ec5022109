import keras
import numpy as np
import pytest
from classifiers import CLASSES, FEATURES, copy_of, points, probed_model
from conftest import BACKEND, JIT_COMPILE, compiled, to_numpy
from test_attacks import BAD_MODELS

import keras_parseval as kp

STEP_KINDS = {
    "compiled": {"jit_compile": JIT_COMPILE},
    "not compiled": {"jit_compile": False},
    "eager": {"run_eagerly": True, "jit_compile": False},
}


def seen_by(model):
    return to_numpy(model.layers[0].seen)


@pytest.mark.parametrize("kind", STEP_KINDS)
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_exactly_the_ratio_of_each_batch_is_replaced(kind, ratio):
    model, (x, y) = probed_model(8, **STEP_KINDS[kind]), points(8)
    attack = kp.FGSM()
    callback = kp.AdversarialTraining(attack, epsilon=0.3, ratio=ratio)
    count = int(8 * ratio)
    expected = to_numpy(attack(model, x[:count], epsilon=0.3))  # from the weights before the step
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[callback])
    np.testing.assert_allclose(seen_by(model)[:count], expected, atol=1e-6)
    np.testing.assert_array_equal(seen_by(model)[count:], x[count:])
    assert (seen_by(model)[:count] != x[:count]).any(axis=-1).all()


@pytest.mark.parametrize("kind", STEP_KINDS)
def test_a_step_is_a_plain_step_on_the_mixed_batch(kind):
    """Replayed by hand, several steps: weights, statistics and logs, all of the mixed batch."""
    model = probed_model(8, normalization=True, **STEP_KINDS[kind])
    twin, (x, y) = copy_of(model), points(24)
    attack = kp.FGSM(labels="true")
    training = kp.AdversarialTraining(attack, epsilon=0.3)
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[training]).history
    losses = []
    for start in range(0, 24, 8):
        part = slice(start, start + 8)
        mixed = x[part].copy()
        mixed[:4] = to_numpy(attack(twin, mixed[:4], y[part][:4], epsilon=0.3))
        twin.reset_metrics()
        losses.append(twin.train_on_batch(mixed, y[part], return_dict=True)["loss"])
    for ours, theirs in zip(model.get_weights(), twin.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert list(history) == ["accuracy", "loss"]
    assert history["loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_default_draws_a_magnitude_for_each_batch():
    model, (x, y) = probed_model(8), points(80)
    sizes = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            moved = abs(seen_by(self.model)[:4] - x[8 * batch : 8 * batch + 4])
            sizes.append(moved.max())
            # one magnitude for the whole batch
            np.testing.assert_allclose(moved[moved > 0], moved.max(), atol=1e-6)

    training = kp.AdversarialTraining(stddev=0.2)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[training, Record()])
    assert len(set(np.round(sizes, 5))) == 10
    assert max(sizes) <= 0.4 + 1e-6
    assert kp.AdversarialTraining().stddev == pytest.approx(2 / 255)


def test_magnitudes_follow_the_truncated_half_normal():
    """Kolmogorov-Smirnov against the distribution function, over 10,000 steps' draws."""
    from math import erf

    from keras_parseval._seed import Seed
    from keras_parseval.callbacks._adversarial_training import draw_magnitude

    def draw_all(steps):
        return keras.ops.map(lambda step: draw_magnitude(2 / 255, Seed(0, step)), steps)

    draws = to_numpy(compiled(draw_all)(keras.ops.arange(10_000)))
    z = np.sort(draws.astype("float64")) / (2 / 255)
    assert 0 <= z[0] and z[-1] <= 2
    cumulative = np.array([erf(value / 2**0.5) for value in z]) / erf(2**0.5)
    steps = np.arange(len(z) + 1) / len(z)
    distance = max(abs(cumulative - steps[1:]).max(), abs(cumulative - steps[:-1]).max())
    print(f"Kolmogorov-Smirnov distance of 10,000 magnitudes: {distance:.4f}")
    assert distance < 1.95 / len(z) ** 0.5  # exceeded once in 1,000 times


def fit_briefly(model, callbacks=(), **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return model.fit(*points(24), callbacks=list(callbacks), **options)


def assert_trains_plainly(model):
    """From here on, the model does what a twin does that was never attacked."""
    assert "train_step" not in vars(model)
    twin = copy_of(model)
    for each in (model, twin):
        each.optimizer.build(each.trainable_variables)
    for ours, theirs in zip(model.optimizer.variables, twin.optimizer.variables):
        theirs.assign(to_numpy(ours))
    fit_briefly(model)
    fit_briefly(twin)
    np.testing.assert_array_equal(seen_by(model), points(24)[0][16:])
    for ours, theirs in zip(model.get_weights(), twin.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def failing_data():
    x, y = points(24)
    yield x[:8], y[:8]
    yield x[8:16], y[8:16]
    raise RuntimeError("the disk is gone")


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyboardInterrupt


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


class InterruptBefore(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "how", ["finished", "data", "callback", "before the step", "stop_training", "compiled anew"]
)
def test_the_model_is_left_as_it_was(how):
    model = probed_model(8)
    training = kp.AdversarialTraining(epsilon=0.3)
    if how == "finished":
        fit_briefly(model, [training])
    elif how == "data":
        with pytest.raises(Exception, match="disk is gone"):
            model.fit(failing_data(), verbose=0, callbacks=[training])
    elif how == "callback":
        with pytest.raises(KeyboardInterrupt):
            fit_briefly(model, [training, Interrupt()])
    elif how == "before the step":
        with pytest.raises(KeyboardInterrupt):
            fit_briefly(model, [training, InterruptBefore()])
    elif how == "stop_training":
        fit_briefly(model, [training, Stop()])
    else:
        fit_briefly(model, [training])
        model.compile_from_config(model.get_compile_config())
    assert_trains_plainly(model)


def test_an_interrupted_model_can_be_attacked_again():
    model, training = probed_model(8), kp.AdversarialTraining(epsilon=0.3)
    with pytest.raises(KeyboardInterrupt):
        fit_briefly(model, [training, Interrupt()])
    fit_briefly(model, [training])
    clean = points(24)[0][16:]
    assert (seen_by(model)[:4] != clean[:4]).any() and (seen_by(model)[4:] == clean[4:]).all()
    assert_trains_plainly(model)


class InterruptIn(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now == self.epoch:
            raise KeyboardInterrupt


def test_a_model_compiled_anew_is_not_trained_by_its_old_function():
    model, training = probed_model(8), kp.AdversarialTraining(epsilon=0.3, start_from_epoch=1)
    with pytest.raises(KeyboardInterrupt):
        fit_briefly(model, [training, InterruptIn(1)], epochs=2)
    model.compile(keras.optimizers.SGD(0.0), model.loss, jit_compile=JIT_COMPILE)
    before = to_numpy(model.trainable_variables[0]).copy()
    fit_briefly(model)
    np.testing.assert_array_equal(to_numpy(model.trainable_variables[0]), before)


def test_other_training_in_between_is_left_alone():
    """A callback that trains on a batch of its own changes neither that batch nor the next."""
    model, (x, y) = probed_model(8), points(24)

    class Extra(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            attacked = (seen_by(self.model) != x[16:]).any(axis=-1)
            np.testing.assert_array_equal(attacked, [True] * 4 + [False] * 4)
            self.model.train_on_batch(x[:8], y[:8])
            np.testing.assert_array_equal(seen_by(self.model), x[:8])

    fit_briefly(model, [Extra(), kp.AdversarialTraining(epsilon=0.3)], epochs=3)
    assert_trains_plainly(model)


def test_a_model_compiled_anew_on_the_way_is_attacked_as_it_is_now():
    model, x = probed_model(8), points(24)[0]

    class Recompile(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                model.compile(keras.optimizers.SGD(0.0), model.loss, jit_compile=JIT_COMPILE)
                model.optimizer.build(model.trainable_variables)
                model.make_train_function()
                self.weights = to_numpy(model.trainable_variables[0]).copy()

    recompile = Recompile()
    fit_briefly(model, [recompile, kp.AdversarialTraining(epsilon=0.3)], epochs=2)
    np.testing.assert_array_equal(to_numpy(model.trainable_variables[0]), recompile.weights)
    assert (seen_by(model)[:4] != x[16:20]).any()


def test_two_at_a_time_are_refused():
    with pytest.raises(ValueError, match="one `AdversarialTraining` at a time"):
        fit_briefly(mlp(), [kp.AdversarialTraining(), kp.AdversarialTraining(epsilon=0.1)])


@pytest.mark.parametrize("attack", [kp.FGSM(norm=2), kp.IteratedFGSM(steps=2)], ids=str)
def test_any_attack_without_epsilon_has_magnitudes_that_are_drawn(attack):
    model, x = probed_model(8), points(24)[0]
    fit_briefly(model, [kp.AdversarialTraining(attack, stddev=0.2, seed=3)])
    moved = seen_by(model)[:4] - x[16:20]
    drawn = np.linalg.norm(moved, axis=-1) if attack.norm == 2 else abs(moved).max(axis=-1)
    np.testing.assert_allclose(drawn, drawn[0], rtol=1e-4)  # the same for the whole batch
    assert 0 < drawn[0] <= 0.4


def test_epsilon_for_each_channel_and_a_mask():
    model, x = probed_model(8), points(24)[0]
    epsilon, mask = np.linspace(0.1, 0.6, FEATURES), np.array([1, 1, 0, 1, 1, 0])
    fit_briefly(model, [kp.AdversarialTraining(kp.FGSM(mask=mask), epsilon=epsilon)])
    moved = abs(seen_by(model)[:4] - x[16:20])
    np.testing.assert_allclose(moved, np.tile(epsilon * mask, (4, 1)), atol=1e-6)


def test_accumulated_minibatches_have_magnitudes_of_their_own():
    model = probed_model(8)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model.compile(optimizer, model.loss, jit_compile=JIT_COMPILE)
    sizes, x = [], points(24)[0]

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            sizes.append(abs(seen_by(self.model) - x[8 * batch : 8 * batch + 8]).max())

    fit_briefly(model, [kp.AdversarialTraining(stddev=0.2), Record()])
    assert len(set(np.round(sizes, 5))) == 3


def test_start_from_epoch_waits():
    model, x = probed_model(8), points(24)[0][16:]
    attacked = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: attacked.append(bool((seen_by(model) != x).any()))
    )
    training = kp.AdversarialTraining(epsilon=0.3, start_from_epoch=2)
    fit_briefly(model, [training, record], epochs=4)
    assert attacked == [False, False, True, True]
    assert_trains_plainly(model)


def test_validation_data_is_not_attacked():
    model, (x, y) = probed_model(8), points(24)
    training = kp.AdversarialTraining(epsilon=0.5)
    history = fit_briefly(model, [training], validation_data=(x, y), validation_batch_size=8)
    loss, accuracy = model.evaluate(x, y, batch_size=8, verbose=0)
    assert history.history["val_loss"][-1] == pytest.approx(loss, abs=1e-6)
    assert history.history["val_accuracy"][-1] == pytest.approx(accuracy)


def counted_model():
    """A model with a constrained kernel, and a list that grows whenever the model is traced."""
    traces = []

    class Count(keras.layers.Layer):
        def call(self, x):
            traces.append(1)
            return x

    hidden = keras.layers.Dense(8, kernel_constraint=kp.ParsevalTightFrame(0.1, rows=0.5))
    layers = [Count(), hidden, keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    traces.clear()
    return model, traces


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch runs eagerly: nothing is compiled")
def test_epochs_after_the_first_compile_nothing_with_both_callbacks():
    model, traces = counted_model()
    at_epoch_end = []
    model.fit(
        *points(36),  # the last batch is smaller
        *(8, 5),
        verbose=0,
        callbacks=[
            kp.AdversarialTraining(),
            kp.AdversarialEvaluation(points(20), batch_size=8),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: at_epoch_end.append(len(traces))
            ),
        ],
    )
    assert len(at_epoch_end) == 5 and len(set(at_epoch_end)) == 1


def test_epochs_and_fits_do_not_compile_again():
    model, traces = counted_model()
    training = kp.AdversarialTraining()
    fit_briefly(model, [training], epochs=1)
    first = len(traces)
    if BACKEND == "torch":
        pytest.skip("PyTorch runs eagerly: nothing is compiled")
    fit_briefly(model, [training], epochs=6)
    fit_briefly(model, [training])
    assert len(traces) == first
    fit_briefly(model)
    plain = len(traces)
    for _ in range(2):
        fit_briefly(model, [training])
        fit_briefly(model)
    assert len(traces) == plain


@pytest.mark.parametrize(
    "attack, epsilon",
    [(None, None), (kp.attacks.PGD(steps=3), 0.2), (kp.attacks.PGD(steps=2, restarts=2), 0.2)],
    ids=["default", "random start", "restarts"],
)
def test_runs_with_the_same_seed_agree(attack, epsilon):
    results = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(0)
        model = probed_model(8)
        training = kp.AdversarialTraining(attack, epsilon=epsilon, seed=seed)
        fit_briefly(model, [training], epochs=2)
        results.append(model.get_weights())
    for first, second in zip(results[0], results[1]):
        np.testing.assert_array_equal(first, second)
    assert any((a != b).any() for a, b in zip(results[0], results[2]))


def input_kinds():
    x, y = points(22)  # the last batch is smaller
    weights = np.linspace(0.5, 1.5, 22).astype("float32")
    yield "arrays", (x, y), {"batch_size": 8}
    yield "sample weights", (x, y), {"batch_size": 8, "sample_weight": weights}
    yield "class weights", (x, y), {"batch_size": 8, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            part = slice(8 * index, 8 * (index + 1))
            return x[part], y[part]

    yield "PyDataset", (Batches(),), {}
    if BACKEND == "tensorflow":
        import tensorflow as tf

        yield "tf.data", (tf.data.Dataset.from_tensor_slices((x, y)).batch(8),), {}


def mlp(**compile_options):
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(CLASSES)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"optimizer": "sgd", "jit_compile": JIT_COMPILE, **compile_options}
    model.compile(loss=loss, **options)
    return model


@pytest.mark.parametrize("name", [name for name, _, _ in input_kinds()])
def test_every_kind_of_data(name):
    ((data, options),) = [(d, o) for n, d, o in input_kinds() if n == name]
    model = mlp()
    twin = copy_of(model)
    for each, callbacks in ((model, [kp.AdversarialTraining(epsilon=0.0)]), (twin, [])):
        # With epsilon 0, a step is a plain step.
        each.fit(*data, verbose=0, shuffle=False, callbacks=callbacks, **options)
    for ours, theirs in zip(model.get_weights(), twin.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    history = model.fit(
        *data, verbose=0, callbacks=[kp.AdversarialTraining(epsilon=0.3)], **options
    )
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
        pytest.param(
            {"steps_per_execution": 2},
            marks=pytest.mark.skipif(BACKEND == "torch", reason="Keras has it not on PyTorch"),
        ),
    ],
    ids=["gradient accumulation", "steps per execution"],
)
def test_options_of_compile(options):
    model = mlp(**options)
    fit_briefly(model, [kp.AdversarialTraining(stddev=0.1), keras.callbacks.TerminateOnNaN()])
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_mixed_precision():
    layers = [keras.layers.Dense(8, "relu", dtype="mixed_float16"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=JIT_COMPILE)
    history = fit_briefly(model, [kp.AdversarialTraining(stddev=0.1)], epochs=2).history
    assert np.isfinite(history["loss"]).all()


def test_a_train_step_of_ones_own():
    if BACKEND == "jax":
        pytest.skip("a stateless step of one's own is covered by the model's own on JAX")
    steps = []

    class Custom(keras.Model):
        def train_step(self, data):
            steps.append(data[0])
            return super().train_step(data)

    inputs = keras.Input((FEATURES,))
    model = Custom(inputs, keras.layers.Dense(CLASSES)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True, jit_compile=False)
    fit_briefly(model, [kp.AdversarialTraining(epsilon=0.3)])
    first = points(24)[0][:8]
    assert (to_numpy(steps[0])[:4] != first[:4]).any()
    np.testing.assert_array_equal(to_numpy(steps[0])[4:], first[4:])


class OwnUpdates(keras.Model):
    """A model whose step updates its weights without the model's optimizer."""

    if BACKEND == "jax":

        def train_step(self, state, data):
            trainable, non_trainable, *others = state
            _, non_trainable = self.stateless_call(trainable, non_trainable, data[0], training=True)
            return {"loss": 0.0}, ([0.9 * each for each in trainable], non_trainable, *others)

    else:

        def train_step(self, data):
            self(data[0], training=True)
            for variable in self.trainable_variables:
                variable.assign(0.9 * variable)
            return {"loss": 0.0}


def sizes_of_steps(weights, batches):
    """The size of the attack on each batch, and the weights after them."""
    inner = probed_model(8)
    model = OwnUpdates(inner.inputs, inner.outputs)
    model.compile("sgd", inner.loss, jit_compile=JIT_COMPILE)
    if weights is not None:
        model.set_weights(weights)
    (probe,) = [layer for layer in model.layers if hasattr(layer, "seen")]
    sizes, x = [], points(48)[0].reshape(6, 8, FEATURES)[batches]

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if BACKEND == "jax":
                self.model.jax_state_sync()
            sizes.append(abs(to_numpy(probe.seen) - x[batch]).max())

    callbacks = [kp.AdversarialTraining(stddev=0.2), Record()]
    labels = np.zeros(8 * len(x), "int32")
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(x.reshape(-1, FEATURES), labels, callbacks=callbacks, **options)
    return sizes, model.get_weights()


def test_steps_without_the_optimizer_have_magnitudes_of_their_own_and_resume():
    start = probed_model(8).get_weights()
    sizes, _ = sizes_of_steps(start, slice(0, 6))
    assert len(set(np.round(sizes, 6))) == 6
    first, weights = sizes_of_steps(start, slice(0, 3))
    second, _ = sizes_of_steps(weights, slice(3, 6))
    assert first + second == sizes


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_one_of_several_inputs(kind):
    image, other = keras.Input((FEATURES,), name="image"), keras.Input((2,), name="other")
    outputs = keras.layers.Dense(CLASSES)(keras.layers.Concatenate()([image, other]))
    structure = {"image": image, "other": other} if kind == "dict" else [image, other]
    model = keras.Model(structure, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT_COMPILE)
    (x, y), z = points(20), np.ones((20, 2), "float32")
    data = {"image": x, "other": z} if kind == "dict" else [x, z]
    key = "image" if kind == "dict" else 0
    training = kp.AdversarialTraining(kp.FGSM(perturb=key), stddev=0.1)
    model.fit(data, y, batch_size=8, verbose=0, callbacks=[training])
    with pytest.raises(ValueError, match="`perturb` must name the input"):
        model.fit(data, y, verbose=0, callbacks=[kp.AdversarialTraining()])


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models_are_refused_before_they_are_trained(name):
    make, message = BAD_MODELS[name]
    model = make()
    training = kp.AdversarialTraining()
    training.set_model(model)
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        training.on_train_begin()
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))


def test_raw_images_are_refused_before_the_first_step():
    model = mlp()
    before = [w.copy() for w in model.get_weights()]
    x, y = points()
    with pytest.raises(TypeError, match="floating-point"):
        model.fit((abs(x) * 20).astype("uint8"), y, verbose=0, callbacks=[kp.AdversarialTraining()])
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"ratio": 0}, ValueError, "`ratio` must be"),
        ({"ratio": 1.5}, ValueError, "`ratio` must be"),
        ({"ratio": float("nan")}, ValueError, "`ratio` must be"),
        ({"ratio": "half"}, TypeError, "`ratio` must be"),
        ({"stddev": -1}, ValueError, "`stddev` must be"),
        ({"start_from_epoch": -1}, ValueError, "`start_from_epoch` must be"),
        ({"seed": 0.5}, TypeError, "`seed` must be"),
        ({"attack": "fgsm"}, TypeError, "`attack` must be None"),
        ({"attack": kp.FGSM}, TypeError, "`attack` must be None"),
        ({"epsilon": 0.1, "stddev": 0.1}, ValueError, "not by both"),
        ({"epsilon": -0.1}, ValueError, "`epsilon` must be finite and not negative"),
        ({"epsilon": "0.1"}, TypeError, "`epsilon` must be a number"),
        ({"epsilon": np.ones((4, 1))}, ValueError, "one for each channel"),
        ({"attack": kp.FGSM(norm=2), "epsilon": np.ones(4)}, ValueError, "one for each channel"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        kp.AdversarialTraining(**arguments)
