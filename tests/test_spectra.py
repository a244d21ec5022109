import csv
import dataclasses

import keras
import numpy as np
import pytest
from conftest import JIT_COMPILE, to_numpy
from conftest import singular_values as svd
from keras import layers
from kernels_by_hand import CASES

import keras_parseval as kp
from keras_parseval import SpectrumLogger, singular_values, tightness


def without_constraint(case):
    """The same, but a transposed convolution is read as the convolution that it transposes."""
    if case.name != "conv2d_transposed":
        return case
    return dataclasses.replace(case, arguments={}, target=0.5)  # prod(ceil(3 / 2))**-0.5


def definition(matrices, target):
    """`||W W^T / s^2 - I||_F / sqrt(n)`, mean square over the matrices."""
    squares = []
    for matrix in matrices:
        wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        gram = wide @ wide.T / target**2
        squares.append(np.linalg.norm(gram - np.eye(len(wide))) ** 2 / len(wide))
    return np.sqrt(np.mean(squares))


def of_kernel(case, values):
    """The values of the kernel that a case is about, in a layer that may have two."""
    if isinstance(values, dict) and len(values) == 1:
        (values,) = values.values()
    elif isinstance(values, dict):
        (values,) = (each for key, each in values.items() if key.endswith(f"{case.prefix}_kernel"))
    return values


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_has_the_spectrum_of_its_matrices(case, constrained, rng):
    constraint = kp.ParsevalTightFrame(**case.arguments) if constrained else None
    case = case if constrained else without_constraint(case)
    layer = case.build(initializer="zeros", constraint=constraint)
    case.kernel(layer).assign(rng.normal(size=case.kernel(layer).shape))
    matrices = case.matrices(case.kernel(layer))
    by_hand = np.concatenate([svd(matrix) for matrix in matrices])
    values = of_kernel(case, singular_values(layer))
    assert values.dtype == "float64"
    np.testing.assert_allclose(values, by_hand, atol=1e-12)
    relative = of_kernel(case, singular_values(layer, relative=True))
    np.testing.assert_allclose(relative, by_hand / case.target, atol=1e-12)
    measured = of_kernel(case, tightness(layer, per_layer=True))
    np.testing.assert_allclose(measured, definition(matrices, case.target), rtol=1e-9)
    np.testing.assert_allclose(measured, np.sqrt(np.mean((relative**2 - 1) ** 2)), rtol=1e-6)


@pytest.mark.parametrize("name", ["dense_tall", "conv2d_strided"])
def test_tight_frames_are_tight(name):
    (case,) = (case for case in CASES if case.name == name)
    layer = case.build(
        initializer=kp.TightFrame(**case.arguments),
        constraint=kp.ParsevalTightFrame(**case.arguments),
    )
    np.testing.assert_allclose(of_kernel(case, singular_values(layer, relative=True)), 1, atol=1e-5)
    assert tightness(layer) < 1e-5


def test_the_scale_of_the_constraint_is_the_target():
    options = {"kernel_initializer": kp.TightFrame(scale=0.7), "name": "scaled"}
    layer = layers.Dense(8, kernel_constraint=kp.ParsevalTightFrame(scale=0.7), **options)
    layer.build((None, 12))
    np.testing.assert_allclose(singular_values(layer), 0.7, rtol=1e-5)
    np.testing.assert_allclose(singular_values(layer, relative=True), 1, rtol=1e-5)
    assert tightness(layer) < 1e-5


def nested_model():
    inner = keras.Sequential([keras.Input((4, 4, 3)), layers.Conv2D(3, 3, padding="same")])
    inner.layers[0].name = "conv"
    block = keras.Sequential([inner, layers.ReLU()], name="block")
    inner.name = "inner"
    inputs = keras.Input((4, 4, 3))
    x = block(block(inputs))  # twice the same
    x = layers.SeparableConv2D(4, 2, name="separable")(x)
    x = layers.TimeDistributed(layers.Dense(5, name="each"), name="wrapper")(x)
    x = layers.BatchNormalization()(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(2, name="classifier")(x))


def test_a_model_has_every_kernel_once_by_name():
    model = nested_model()
    values = singular_values(model)
    separable = ["separable/depthwise_kernel", "separable/pointwise_kernel"]
    assert sorted(values) == sorted(["block/inner/conv", *separable, "wrapper/each", "classifier"])
    np.testing.assert_array_equal(values["classifier"], singular_values(model.layers[-1]))
    assert list(singular_values(model.get_layer("separable"))) == separable
    assert tightness(model, per_layer=True).keys() == values.keys() - {"classifier"}
    one_layer = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="dense")])
    assert list(singular_values(one_layer)) == ["dense"]


def test_a_layer_in_two_models_counts_once():
    shared = layers.Dense(3, name="shared")
    blocks = [keras.Sequential([keras.Input((3,)), shared], name=name) for name in "ab"]
    model = keras.Sequential([keras.Input((3,)), *blocks])
    assert list(singular_values(model)) == ["a/shared"]


def test_subclassed_models_and_half_precision_are_read():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [layers.Dense(4, name=f"block_{index}") for index in range(2)]
            self.small = layers.Dense(3, dtype="bfloat16", name="half")

        def call(self, x):
            return self.small(self.blocks[1](self.blocks[0](x)))

    model = Subclassed()
    with pytest.raises(ValueError, match="call the model on data first"):
        singular_values(model)
    model(np.ones((2, 5), "float32"))
    values = singular_values(model)
    assert sorted(values) == ["block_0", "block_1", "half"]
    kernel = to_numpy(keras.ops.cast(model.small.kernel, "float32"))
    np.testing.assert_allclose(values["half"], svd(kernel))


def test_a_kernel_that_is_not_finite_has_no_spectrum():
    layer = layers.Conv2D(6, 3, groups=2)
    layer.build((None, 5, 5, 4))
    layer.kernel.assign(keras.ops.full(layer.kernel.shape, np.inf))
    values = singular_values(layer)
    assert np.isnan(values).all() and len(values) == 6
    assert np.isnan(tightness(layer))


def twins():
    """A model in which two layers have one name."""

    class Twins(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.Dense(2, name="same"), layers.Dense(2, name="same")

        def call(self, x):
            return self.second(self.first(x))

    model = Twins()
    model(np.ones((1, 2), "float32"))
    return model


def quantized():
    layer = layers.Dense(4)
    layer.build((None, 4))
    layer.quantize("int8")
    return layer


@pytest.mark.parametrize("measure", [singular_values, tightness])
@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: np.eye(3), TypeError, "a Keras layer or model"),
        (layers.ReLU, ValueError, "has no kernel that is read as a matrix"),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.ReLU()]),
            ValueError,
            "has no kernel that is read as a matrix",
        ),
        (lambda: layers.Dense(3, name="new"), ValueError, "layer 'new', which is not built"),
        (twins, ValueError, "two layers named 'same'"),
        (quantized, ValueError, "before it is quantized"),
    ],
    ids=["array", "layer", "model", "unbuilt", "twins", "quantized"],
)
def test_what_has_no_spectrum_is_an_error(measure, make, error, message):
    with pytest.raises(error, match=message):
        measure(make())


def test_relative_is_a_flag():
    with pytest.raises(TypeError, match="`relative` must be"):
        singular_values(quantized(), relative="yes")


def trained_model(constrained=True):
    constraint = kp.ParsevalTightFrame(0.1, scale=0.7) if constrained else None
    hidden = [layers.Dense(8, "relu", name=name, kernel_constraint=constraint) for name in "ab"]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(2, name="classifier")])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=JIT_COMPILE)
    return model


def fit(model, epochs=1, **options):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype("float32"), rng.normal(size=(32, 2))
    return model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, **options)


@pytest.mark.parametrize("constrained", [True, False])
def test_the_logs_are_those_of_the_model_after_fit(constrained):
    model = trained_model(constrained)
    logger = SpectrumLogger(prefix="w_", per_layer=True)
    history = fit(model, epochs=2, callbacks=[logger]).history
    values, distances = singular_values(model, relative=True), tightness(model, per_layer=True)
    del values["classifier"]
    assert values.keys() == distances.keys() and tightness(model) == max(distances.values())
    last = {key: each[-1] for key, each in history.items() if key != "loss"}
    expected = {
        "w_spectrum_min": min(each.min() for each in values.values()),
        "w_spectrum_max": max(each.max() for each in values.values()),
        "w_tightness": max(distances.values()),
    }
    for name, each in values.items():
        expected[f"w_spectrum_min_{name}"] = each.min()
        expected[f"w_spectrum_max_{name}"] = each.max()
        expected[f"w_tightness_{name}"] = distances[name]
    assert last == pytest.approx(expected)
    assert history["w_tightness"][0] != history["w_tightness"][1]


def test_the_logs_are_three_numbers_by_default():
    history = fit(trained_model(), callbacks=[SpectrumLogger()]).history
    assert sorted(history) == ["loss", "spectrum_max", "spectrum_min", "tightness"]


def measured(*args, **options):
    return sorted(tightness(*args, per_layer=True, **options))


def test_the_classifier_is_measured_where_it_is_asked_for():
    for constrained in (True, False):
        model = trained_model(constrained)
        assert measured(model) == ["a", "b"]
        classifier = model.get_layer("classifier")
        for chosen in ("classifier", classifier, ["classifier"]):
            assert measured(model, layers=chosen) == ["classifier"]
        assert measured(classifier) == ["classifier"]
        assert tightness(model, layers="classifier") == tightness(classifier)
    softmax = keras.Sequential([trained_model(False), layers.Softmax()], name="outer")
    assert all(name.endswith(("/a", "/b")) for name in measured(softmax))
    alone = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="alone")])
    assert measured(alone) == ["alone"]


def test_a_classifier_that_is_constrained_is_measured():
    options = {"name": "last", "kernel_constraint": kp.ParsevalTightFrame()}
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.Dense(2, **options)])
    assert measured(model) == ["last"]


def test_any_weight_that_is_constrained_is_measured():
    class Own(layers.Layer):
        def build(self, shape):
            frame = {"constraint": kp.ParsevalTightFrame(groups=2), "initializer": kp.TightFrame()}
            self.basis = self.add_weight(shape=(shape[-1], 4), name="basis", **frame)

        def call(self, x):
            return x @ self.basis

    model = keras.Sequential([keras.Input((3,)), layers.Dense(6), Own(name="own"), layers.Dense(2)])
    assert measured(model) == ["own/basis"]
    basis = to_numpy(model.get_layer("own").basis)
    expected = np.concatenate([svd(basis[:, :2]), svd(basis[:, 2:])])
    np.testing.assert_allclose(singular_values(model)["own/basis"], expected, atol=1e-6)


def test_layers_are_chosen_by_name_or_as_objects():
    model = trained_model()
    for chosen in ("b", ["b"], model.get_layer("b"), [model.get_layer("b")]):
        history = fit(model, callbacks=[SpectrumLogger(chosen, per_layer=True)]).history
        assert [key for key in history if key.startswith("tightness_")] == ["tightness_b"]
        assert history["tightness"] == history["tightness_b"]
    both = fit(model, callbacks=[SpectrumLogger(["classifier", "a"], per_layer=True)]).history
    assert both["tightness"] == [max(both["tightness_classifier"][0], both["tightness_a"][0])]


@pytest.mark.parametrize("chosen", [["c"], "c", ["a", "c"], [], layers.Dense(2), 3], ids=str)
def test_unknown_layers_are_refused_before_the_training(chosen):
    model = trained_model()
    before = model.get_weights()
    with pytest.raises(ValueError, match="`layers` must name"):
        fit(model, callbacks=[SpectrumLogger(chosen)])
    for weights, same in zip(before, model.get_weights()):
        np.testing.assert_array_equal(weights, same)


def test_skipped_epochs_are_nan_and_reach_the_other_callbacks(tmp_path):
    callbacks = [
        SpectrumLogger(every=3, per_layer=True),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor="tightness", mode="min", save_best_only=True
        ),
    ]
    model = trained_model()
    fit(model, epochs=1)
    history = fit(model, epochs=6, initial_epoch=1, callbacks=callbacks).history
    for key in ("spectrum_min", "spectrum_max_a", "tightness"):
        np.testing.assert_array_equal(np.isnan(history[key]), [False, True, True, False, True])
    with open(tmp_path / "log.csv") as file:
        logged = [float(row["tightness"]) for row in csv.DictReader(file)]
    np.testing.assert_array_equal(logged, history["tightness"])
    best = keras.models.load_model(tmp_path / "best.keras")
    assert tightness(best) == pytest.approx(np.nanmin(history["tightness"]))


def test_a_training_that_diverges_goes_on():
    model = trained_model(constrained=False)
    model.layers[0].kernel.assign(np.full((6, 8), np.nan))
    history = fit(model, epochs=2, callbacks=[SpectrumLogger()]).history
    assert np.isnan(history["spectrum_max"]).all() and np.isnan(history["tightness"]).all()


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"every": 0}, ValueError, "`every` must be"),
        ({"every": 1.5}, TypeError, "`every` must be"),
        ({"prefix": None}, TypeError, "`prefix` must be"),
        ({"per_layer": 1}, TypeError, "`per_layer` must be"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        SpectrumLogger(**arguments)


def test_a_constraint_of_activities_is_refused():
    layer = keras.layers.Dense(4, activity_regularizer=kp.ParsevalTightFrame())
    model = keras.Sequential([keras.Input((4,)), layer])
    with pytest.raises(TypeError, match="activity_regularizer"):
        kp.tightness(model)
