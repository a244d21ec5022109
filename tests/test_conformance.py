"""Every public object that is part of a model, put through every check that its kind must pass."""

import dataclasses
import inspect
import json
from collections.abc import Callable

import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, to_numpy

import keras_parseval as kp


@dataclasses.dataclass
class Instance:
    """A configured object, and a function that puts it to use in a model."""

    make: Callable
    use: Callable
    arguments: dict

    def model(self, policy="float32"):
        inputs, made = keras.Input((6,), name="inputs"), self.make(**self.arguments)
        hidden = self.use(made, policy)(inputs)
        outputs = keras.layers.Dense(3, dtype=policy)(hidden)
        model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(outputs))
        own = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loss = made if isinstance(made, keras.losses.Loss) else own
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=JIT_COMPILE)
        return model


def in_dense(argument):
    return lambda instance, policy: keras.layers.Dense(8, dtype=policy, **{argument: instance})


def in_convolution(argument, **options):
    def use(instance, policy):
        convolution = keras.layers.Conv1D(
            8, 3, padding="same", dtype=policy, **{argument: instance}, **options
        )
        spread = [keras.layers.Dense(24, dtype=policy), keras.layers.Reshape((6, 4), dtype=policy)]
        return keras.Sequential([*spread, convolution, keras.layers.Flatten(dtype=policy)])

    return use


def in_sequence(make):
    """A layer for sequences of 3 vectors of 8 numbers."""

    def use(instance, policy):
        def layer(x):
            x = keras.layers.Dense(24, dtype=policy)(x)
            x = keras.layers.Reshape((3, 8), dtype=policy)(x)
            return keras.layers.Flatten(dtype=policy)(make(instance, policy)(x))

        return layer

    return use


def in_lstm(argument):
    return in_sequence(
        lambda instance, policy: keras.layers.LSTM(4, dtype=policy, **{argument: instance})
    )


def in_einsum(argument):
    return in_sequence(
        lambda instance, policy: keras.layers.EinsumDense(
            "abc,bcd->abd", (3, 5), dtype=policy, **{argument: instance}
        )
    )


def in_attention(argument):
    def make(instance, policy):
        if BACKEND == "jax":
            # Its attention has no float16 on a CPU, with or without a constraint.
            policy = policy.replace("mixed_float16", "mixed_bfloat16")
        layer = keras.layers.GroupQueryAttention(3, 4, 2, dtype=policy, **{argument: instance})
        return lambda x: layer(x, x)

    return in_sequence(make)


def after_dense(instance, policy):
    return lambda x: instance(keras.layers.Dense(8, dtype=policy)(x))


def as_loss(instance, policy):
    return keras.layers.Dense(8, dtype=policy)


def between_branches(instance, policy):
    return lambda x: instance([keras.layers.Dense(8, dtype=policy)(x) for _ in range(2)])


CONSTRAINT, INITIALIZER, REGULARIZER = (
    f"kernel_{kind}" for kind in ("constraint", "initializer", "regularizer")
)
INSTANCES = {
    "ParsevalTightFrame": Instance(kp.ParsevalTightFrame, in_dense(CONSTRAINT), {}),
    "ParsevalTightFrame sampled": Instance(
        kp.ParsevalTightFrame,
        in_dense(CONSTRAINT),
        {"beta": 0.1, "rows": 0.5, "unbiased": True, "steps": 2, "scale": 0.9},
    ),
    "ParsevalTightFrame grouped": Instance(
        kp.ParsevalTightFrame,
        in_convolution(CONSTRAINT, groups=2),
        {"beta": 0.1, "rows": 3, "groups": 2},
    ),
    "ParsevalTightFrame gates": Instance(
        kp.ParsevalTightFrame, in_lstm("recurrent_constraint"), {"beta": 0.5, "groups": 4}
    ),
    "ParsevalTightFrame axes": Instance(
        kp.ParsevalTightFrame, in_einsum(CONSTRAINT), {"beta": 0.5, "axes": "gio", "rows": 0.5}
    ),
    "ParsevalTightFrame heads": Instance(
        kp.ParsevalTightFrame, in_attention(CONSTRAINT), {"heads": [[2, 3], [4, 3]]}
    ),
    "ParsevalConvolution": Instance(
        kp.ParsevalConvolution,
        in_convolution(CONSTRAINT, groups=2),
        {"beta": 0.4, "groups": 2, "steps": 1},
    ),
    "Simplex": Instance(kp.Simplex, in_dense(CONSTRAINT), {"axis": 0}),
    "TightFrame": Instance(kp.TightFrame, in_dense(INITIALIZER), {"seed": 4}),
    "TightFrame grouped": Instance(
        kp.TightFrame, in_convolution(INITIALIZER, groups=4), {"scale": 0.5, "groups": 4}
    ),
    "TightConvolution": Instance(
        kp.TightConvolution, in_convolution(INITIALIZER), {"strides": [1], "seed": 4}
    ),
    "TightFrame heads": Instance(
        kp.TightFrame, in_attention(INITIALIZER), {"heads": [[2, 3], [4, 3]]}
    ),
    "TightFrameRegularizer": Instance(
        kp.TightFrameRegularizer, in_dense(REGULARIZER), {"beta": 0.1}
    ),
    "ConvexAdd": Instance(kp.ConvexAdd, between_branches, {}),
    "ConvexAdd initialized": Instance(
        kp.ConvexAdd, between_branches, {"coefficients_initializer": "random_uniform"}
    ),
    "MaxMin": Instance(kp.MaxMin, after_dense, {"axis": -1}),
    "BatchCentering": Instance(
        kp.layers.BatchCentering, after_dense, {"momentum": 0.9, "beta_regularizer": "l2"}
    ),
    "MarginCrossentropy": Instance(
        kp.losses.MarginCrossentropy, as_loss, {"margin": 0.4, "temperature": 0.5}
    ),
}


def data(count=24):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 6)).astype("float32"), rng.integers(0, 3, size=count)


def same_weights(left, right):
    for one, other in zip(left.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def check_config_is_plain_data_and_complete(instance, tmp_path):
    made = instance.make(**instance.arguments)
    config = made.get_config()
    json.dumps(config)
    for name, value in instance.arguments.items():
        if not isinstance(value, str):
            assert config[name] == value
    assert type(made).from_config(config).get_config() == config


def check_arguments_are_attributes(instance, tmp_path):
    made = instance.make(**instance.arguments)
    config = made.get_config()
    names = config.keys() & inspect.signature(instance.make).parameters.keys()
    assert names >= instance.arguments.keys()
    for name in names:
        # A layer keeps an initializer as an object, and writes it down as a dictionary. Keras
        # draws a seed where none is given, and does not write that down.
        if not isinstance(config[name], dict) and (name, config[name]) != ("seed", None):
            assert getattr(made, name) == config[name]


def check_is_registered(instance, tmp_path):
    made = instance.make(**instance.arguments)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(made)))
    assert serialized["registered_name"] == f"keras_parseval>{type(made).__name__}"
    twin = keras.saving.deserialize_keras_object(serialized)
    assert type(twin) is type(made) and twin.get_config() == made.get_config()


def check_trains_compiled_and_two_runs_agree(instance, tmp_path):
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        model = instance.model()
        before = [weights.copy() for weights in model.get_weights()]
        history = model.fit(*data(), batch_size=8, epochs=2, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        assert any((a != b).any() for a, b in zip(before, model.get_weights()))
        models.append(model)
    same_weights(*models)


def check_saves_loads_and_goes_on(instance, tmp_path):
    model = instance.model()
    model.fit(*data(), batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    same_weights(model, loaded)
    inputs, _ = data()
    np.testing.assert_array_equal(to_numpy(model(inputs)), to_numpy(loaded(inputs)))
    for each in (model, loaded):
        each.fit(*data(), batch_size=8, shuffle=False, verbose=0)
    same_weights(model, loaded)


def check_clones(instance, tmp_path):
    model = instance.model()
    clone = keras.models.clone_model(model)
    assert json.dumps(clone.get_config()) == json.dumps(model.get_config())
    clone.set_weights(model.get_weights())
    for each in (model, clone):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile(keras.optimizers.SGD(0.01), loss, jit_compile=JIT_COMPILE)
        each.fit(*data(), batch_size=8, shuffle=False, verbose=0)
    same_weights(model, clone)


def check_trains_in_mixed_precision(instance, tmp_path):
    for policy in ("mixed_float16", "mixed_bfloat16"):
        model = instance.model(policy)
        assert {keras.backend.standardize_dtype(v.dtype) for v in model.weights} == {"float32"}
        history = model.fit(*data(), batch_size=8, epochs=2, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        assert all(np.isfinite(weights).all() for weights in model.get_weights())


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", INSTANCES)
def test_conformance(name, check, tmp_path):
    check(INSTANCES[name], tmp_path)


def test_every_class_that_keras_saves_is_on_the_list():
    rooms = [kp, *(each for each in vars(kp).values() if inspect.ismodule(each))]
    rooms = [room for room in rooms if hasattr(room, "__all__")]
    assert kp.constraints in rooms and kp.layers in rooms
    public = {
        name
        for room in rooms
        for name in room.__all__
        if hasattr(getattr(room, name), "get_config")
    }
    assert public == {type(each.make(**each.arguments)).__name__ for each in INSTANCES.values()}
