"""The conversion of models that others made, and what it says about them."""

import warnings

import keras
import model_table
import numpy as np
import pytest
from conftest import BACKEND, to_numpy
from keras import layers
from model_table import MODELS, constrained_kernels, examine, is_same_function

import keras_parseval as kp
from keras_parseval._nearest_frames import nearest_frames
from keras_parseval.models._bound_factors import bound_factors

# How a graph is converted does not depend on the backend, and JAX takes long to make weights.
APPLICATIONS = ["MobileNet", "MobileNetV2"]
CONVERTED = [
    *("ResNet", "ResNetV2", "EfficientNet", "MobileNetV3", "DenseNet", "VGG", "Xception"),
    *("CSPNet", "HGNetV2", "BERT", "GPT-2", "EfficientNet classifier", "BERT classifier"),
    # Layers of these do not come back from their own configuration, but from their arguments.
    *("ViT", "DeiT", "MiT"),
]
# All kernels of these are inside layers whose configuration has no place for a constraint.
OPAQUE = {"BERT", "GPT-2", "HGNetV2", "ViT", "DeiT", "MiT"}
if BACKEND != "torch":
    APPLICATIONS, CONVERTED = [], ["VGG", "BERT", "ViT"]


def built(name):
    if name not in MODELS:
        pytest.importorskip("keras_hub")
    return MODELS[name]()


@pytest.mark.parametrize("name", [*APPLICATIONS, *(f"hub {each}" for each in CONVERTED)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_is_converted_truthfully(name):
    row = examine(built(name))
    opaque = name.removeprefix("hub ") in OPAQUE
    assert row["converted"] == ("yes, but nothing is constrained" if opaque else "yes")


def test_a_layer_that_cannot_be_cloned_is_named():
    with pytest.raises(
        ValueError, match=r"its own configuration.*Received: the layer '.* of class"
    ):
        kp.parseval(built("hub Swin"))


@keras.saving.register_keras_serializable()
class TellsTooMuch(layers.Layer):
    """As layers of keras-hub do, it gives a configuration that it does not take."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units, name="dense")

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": 4, "derived": 1}


def test_a_layer_comes_back_from_the_arguments_it_was_made_with():
    frozen = TellsTooMuch(units=4, name="own", dtype="mixed_bfloat16")
    frozen.trainable = False
    model = keras.Sequential([keras.Input((3,)), frozen, layers.Dense(8), layers.Dense(2)])
    clone = kp.parseval(model, init=None, verbose=0).get_layer("own")
    assert (clone.dense.units, clone.trainable) == (4, False)
    assert clone.dtype_policy.name == "mixed_bfloat16" and clone is not frozen
    np.testing.assert_array_equal(*(to_numpy(each.dense.kernel) for each in (clone, frozen)))


@keras.saving.register_keras_serializable()
class TellsTooMuchOfALayer(TellsTooMuch):
    def __init__(self, units, inner, **kwargs):
        super().__init__(units, **kwargs)


def test_what_was_made_with_more_than_words_and_numbers_is_refused():
    own = TellsTooMuchOfALayer(4, layers.Dense(3), name="own")
    model = keras.Sequential([keras.Input((3,)), own, layers.Dense(2)])
    with pytest.raises(ValueError, match=r"class TellsTooMuchOfALayer, which raises: .*inner"):
        kp.parseval(model)


class OwnStep(keras.Model):
    def __init__(self, units):
        inputs = keras.Input((3,))
        hidden = layers.Dense(units, name="hidden")(inputs)
        super().__init__(inputs, layers.Dense(2)(hidden), name="own")
        self.units = units

    def train_step(self, *args):
        return super().train_step(*args)

    def generate(self):
        return self.units


class OwnName(keras.Model):
    def __init__(self, units, name=None):
        inputs = keras.Input((3,))
        super().__init__(inputs, layers.Dense(units, name="hidden")(inputs), name=name)


class OwnSequence(keras.Sequential):
    def predict_step(self, *args):
        return super().predict_step(*args)


class KeepsItsClass(keras.Model):
    def train_step(self, *args):
        return super().train_step(*args)


def test_a_class_that_is_lost_is_said(capsys):
    model = OwnStep(4)
    robust = kp.parseval(model, init=None)
    assert type(robust) is type(keras.Model(model.inputs, model.outputs))
    printed = " ".join(capsys.readouterr().out.split())
    assert "'own' is a plain Functional model now" in printed and "class OwnStep" in printed
    assert "Its own `train_step` are Keras's again" in printed and "no `generate`" in printed
    with pytest.warns(UserWarning, match="OwnStep.*`train_step`"):
        robust = kp.parseval(model, init=None, verbose=0)
    assert capsys.readouterr().out == ""
    assert is_same_function(model, robust) and len(constrained_kernels(robust)) == 1


def test_a_lost_sequential_class_is_said():
    hidden, logits = layers.Dense(4), layers.Dense(2)
    model = OwnSequence([keras.Input((3,)), hidden, logits])
    with pytest.warns(UserWarning, match="plain Sequential.*OwnSequence.*`predict_step`"):
        assert type(kp.parseval(model, verbose=0)) is keras.Sequential


def test_a_class_that_is_lost_inside_a_model_is_said_but_no_warning(capsys):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(2)(OwnName(4, name="part")(inputs)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        robust = kp.parseval(model, init=None, verbose=0)
    assert is_same_function(model, robust)
    kp.parseval(model)
    assert "'part' is a plain Functional model now" in capsys.readouterr().out


def test_a_class_that_keras_can_clone_is_kept(capsys):
    inputs = keras.Input((3,))
    model = KeepsItsClass(inputs, layers.Dense(2)(layers.Dense(4)(inputs)))
    assert type(kp.parseval(model)) is KeepsItsClass
    assert "plain" not in capsys.readouterr().out


@keras.saving.register_keras_serializable("tests")
class Doubles(keras.Model):
    def call(self, *args, **kwargs):
        return 2 * super().call(*args, **kwargs)


def test_a_model_inside_with_a_call_of_its_own_keeps_it():
    inner, inputs = keras.Input((3,)), keras.Input((3,))
    doubles = Doubles(inner, layers.Dense(3, name="inside")(inner))
    model = keras.Model(inputs, layers.Dense(2)(layers.Dense(3)(doubles(inputs))))
    robust = kp.parseval(model, init=None, merge=False, verbose=0)
    assert is_same_function(model, robust) and len(constrained_kernels(robust)) == 1


def test_functions_in_lambda_layers_are_kept():
    inputs = keras.Input((3,))
    x = layers.Lambda(lambda x: 3 * x + 1)(layers.Dense(4)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    assert is_same_function(model, kp.parseval(model, init=None, verbose=0))


class Borrows(layers.Layer):
    """Multiplies by the kernel of another layer, which its configuration makes anew."""

    def __init__(self, other=None, **kwargs):
        super().__init__(**kwargs)
        self.other = other or layers.Dense(3)

    def call(self, x):
        return self.other(x)

    def get_config(self):
        return {"name": self.name}


def test_weights_that_are_no_longer_shared_are_said():
    inputs, shared = keras.Input((3,)), layers.Dense(3, name="shared")
    model = keras.Model(inputs, layers.Dense(2)(Borrows(shared)(shared(inputs))))
    with pytest.warns(UserWarning, match="copies of their own now: .*shared"):
        assert is_same_function(model, kp.parseval(model, init=None, verbose=0))


def partly_frozen():
    inputs = keras.Input((6,))
    x = layers.Dense(6, name="layer", trainable=False)(inputs)
    x = layers.Dense(6, name="variable")(x)
    inner = keras.Input((6,))
    part = keras.Model(
        inner, layers.Add(name="sum")([inner, layers.Dense(6, name="dense")(inner)]), name="part"
    )
    part.trainable = False
    x = layers.Add(name="sum")([part(x), x])
    model = keras.Model(inputs, layers.Dense(2)(layers.Dense(6, name="free")(x)))
    model.get_layer("variable").kernel.trainable = False
    return model


@pytest.mark.parametrize("init", ["project", "random"])
def test_what_is_frozen_is_left_alone(init):
    model = partly_frozen()
    notes = {row["layer"]: row["note"] for row in kp.parseval_plan(model)}
    frozen = {name for name, note in notes.items() if note == "frozen"}
    assert frozen == {"layer", "variable", "part/dense", "part/sum"}
    robust = kp.parseval(model, init=init, verbose=0)
    assert [kernel.layer.name for kernel in constrained_kernels(robust)] == ["free"]
    for ours, theirs in (
        (robust.get_layer("layer"), model.get_layer("layer")),
        (robust.get_layer("variable"), model.get_layer("variable")),
        (robust.get_layer("part").get_layer("dense"), model.get_layer("part").get_layer("dense")),
    ):
        np.testing.assert_array_equal(to_numpy(ours.kernel), to_numpy(theirs.kernel))
        assert not ours.kernel.trainable
    names = {variable.path.split("/")[-2] for variable in robust.trainable_variables}
    assert not names & {"layer", "dense"} and "free" in names
    assert robust.get_layer("variable").bias.trainable


def test_nothing_constrained_is_said(capsys):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="a"), layers.Dense(2)])
    model.trainable = False
    with pytest.warns(UserWarning, match=r"Nothing was constrained.*frozen \(1\)"):
        kp.parseval(model, verbose=0)
    kp.parseval(model)
    assert "Nothing was constrained" in capsys.readouterr().out
    model.trainable = True
    kp.parseval(model)
    assert "Nothing" not in capsys.readouterr().out


def with_factors():
    """Two normalisations on one path and one beside it, a concatenation and a plain sum."""
    inputs = keras.Input((4,))
    a = layers.BatchNormalization(name="first")(layers.Dense(4)(inputs))
    a = layers.BatchNormalization(name="second")(a)
    b = layers.BatchNormalization(name="beside")(layers.Dense(4)(inputs))
    x = layers.Dense(4)(layers.Concatenate(name="both")([a, b, b]))
    model = keras.Model(inputs, layers.Dense(2)(x + a))
    for name, gamma, variance in (("first", 6.0, 4.0), ("second", -5.0, 1.0), ("beside", 7.0, 1.0)):
        layer = model.get_layer(name)
        layer.gamma.assign([0.1, 0.2, gamma, 0.3])
        layer.moving_variance.assign([1.0, 1.0, variance, 1.0])
    return model


def test_what_undoes_the_bound_is_said_in_numbers(capsys):
    model = with_factors()
    factors = {factor.kind: factor for factor in bound_factors(model)}
    batch = factors["BatchNormalization"]
    assert (batch.count, batch.where) == (3, "beside")
    assert batch.largest == pytest.approx(7, rel=1e-3)
    # 3 times 5 on one path, 7 on the other.
    assert batch.product == pytest.approx(15, rel=1e-3)
    assert factors["Concatenate"].largest == pytest.approx(3**0.5)
    assert factors["Add"].largest == 2
    kp.parseval(model)
    printed = capsys.readouterr().out
    assert "3 x BatchNormalization" in printed and "by up to 7 each (beside), 15 along" in printed
    assert "by up to 1.73 (both)" in printed


def test_factors_are_found_inside_nested_models():
    inputs = keras.Input((4,))
    inner = with_factors()
    x = layers.BatchNormalization(name="last")(inner(inputs))
    model = keras.Model(inputs, x)
    model.get_layer("last").gamma.assign([2.0, 1.0])
    batch = {factor.kind: factor for factor in bound_factors(model)}["BatchNormalization"]
    assert batch.count == 4 and batch.product == pytest.approx(30, rel=1e-2)


class AVeryLongNameOfALayerWhichIsLongerThanAnyColumn(layers.Dense):
    pass


def test_the_summary_has_columns_and_lines_of_100():
    names = [f"a_layer_with_a_name_that_is_rather_long_{index}" for index in range(3)]
    long = [AVeryLongNameOfALayerWhichIsLongerThanAnyColumn(4, name=name) for name in names]
    model = keras.Sequential([keras.Input((4,)), *long, layers.Dense(4), layers.Dense(2)])
    text = summary(model, skip=AVeryLongNameOfALayerWhichIsLongerThanAnyColumn)
    assert max(map(len, text.splitlines())) <= 100
    assert "AnyColumn kernel\n" in text and "  left alone (a_layer_with" in text
    assert "1 x Dense kernel " in text and "  -> ParsevalTightFrame" in text
    # Where names are short, the second column begins at the same place in every line.
    rows = [line for line in summary(with_factors()).splitlines() if " x " in line[:8]]
    starts = {line.index(line[8:].split("  ", 1)[1].strip()) for line in rows}
    assert len(rows) >= 4 and len(starts) == 1


def summary(model, **options):
    from contextlib import redirect_stdout
    from io import StringIO

    out = StringIO()
    with redirect_stdout(out):
        kp.parseval(model, init=None, **options)
    return out.getvalue()


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (9000, 6), (7, 6), (3, 40, 6)])
@pytest.mark.parametrize("spectrum", ["flat", "steep", "singular", "zero", "huge"])
def test_nearest_frames_by_the_gram_matrix(shape, spectrum, rng):
    left, values, right = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    decay = {"flat": 1.0, "steep": 1e-2, "singular": 1e-4, "zero": 0.0, "huge": 1.0}[spectrum]
    values = values * decay ** np.arange(6) * (1e12 if spectrum == "huge" else 1)
    if spectrum == "zero":
        values[...] = 0.0
    matrices = (left * values[..., None, :]) @ right
    frames = to_numpy(nearest_frames(keras.ops.convert_to_tensor(matrices, "float32"), 0.5))
    found = np.linalg.svd(frames.astype("float64"), compute_uv=False)
    np.testing.assert_allclose(found, 0.5, atol=1e-5)
    if spectrum in ("flat", "huge"):
        np.testing.assert_allclose(frames, 0.5 * left @ right, atol=1e-5)


def test_kernels_without_a_value_stay_without():
    matrix = np.full((40, 6), np.nan, "float32")
    assert np.isnan(to_numpy(nearest_frames(keras.ops.convert_to_tensor(matrix), 1.0))).all()


def test_the_table_is_of_at_least_25_models():
    assert len(model_table.APPLICATIONS) + len(model_table.KERAS_HUB) >= 25
    rows = [{"model": "a", "bound": 1.23456}, {"model": "b", "bound": "no"}]
    lines = model_table.markdown(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1 and "1.23 |" in lines[2]
