"""Kernels that are several matrices, or not stored as Dense and Conv store theirs."""

import json
import warnings

import keras
import numpy as np
import pytest
from conftest import JIT_COMPILE, compiled, singular_values, to_numpy
from keras import layers, ops
from kernels_by_hand import RECURRENT_CASES, from_heads, into_heads

import keras_parseval as kp

# Each with what the constraint is told; numbers of heads, sizes and features all differ, or agree
# in the way of the last, where only the order tells the kernels apart.
ATTENTION = {
    "mha": (lambda **o: layers.MultiHeadAttention(3, 4, **o), (3, 4), 10),
    "values": (lambda **o: layers.MultiHeadAttention(2, 4, 5, 0.1, **o), [(2, 4), (2, 5)], 9),
    "gqa": (lambda **o: layers.GroupQueryAttention(4, 6, 2, **o), [(6, 4), (2, 4)], 11),
    "square": (lambda **o: layers.MultiHeadAttention(4, 4, **o), (4, 4), 16),
}
PROJECTIONS = {
    "query": into_heads,
    "key": into_heads,
    "value": into_heads,
    "attention_output": from_heads,
}


def attention(name, **options):
    """The layer in a model, and the variables of its four kernels."""
    make, _, features = ATTENTION[name]
    layer = make(name="attention", **options)
    inputs = keras.Input((5, features))
    model = keras.Model(inputs, layer(inputs, inputs))
    kernels = {}
    for variable in layer.weights:
        if variable.name == "kernel":
            kernels[variable.path.split("/")[-2]] = variable
    assert sorted(kernels) == sorted(PROJECTIONS)
    return model, kernels


def spectra(kernels):
    """The singular values of the four kernels, each sliced by hand."""
    values = {}
    for name, kernel in kernels.items():
        (matrix,) = PROJECTIONS[name](np.asarray(to_numpy(kernel), "float64"))
        values[name] = singular_values(matrix)
    return values


def deviation(kernels):
    return max(abs(values - 1).max() for values in spectra(kernels).values())


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_kernels_reach_the_frame(name, rng):
    step = compiled(kp.ParsevalTightFrame(0.5, heads=ATTENTION[name][1]))
    _, kernels = attention(name)
    for name, kernel in kernels.items():
        value = ops.convert_to_tensor(rng.normal(size=kernel.shape).astype("float32"))
        for _ in range(1000):
            value = step(value)
        assert deviation({name: value}) < 1e-3


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_starts_on_the_frame_and_stays_there(name, rng):
    model, kernels = attention(name, **kp.tight_frame(beta=0.5, heads=ATTENTION[name][1]))
    assert deviation(kernels) < 1e-5
    before = {key: to_numpy(kernel).copy() for key, kernel in kernels.items()}
    model.compile(keras.optimizers.SGD(1e-2), "mse", jit_compile=JIT_COMPILE)
    x = rng.normal(size=(16, *model.input_shape[1:])).astype("float32")
    model.fit(x, x[::-1], batch_size=8, epochs=2, verbose=0)
    assert all(abs(to_numpy(kernels[key]) - before[key]).max() > 1e-6 for key in kernels)
    assert deviation(kernels) < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        measured = kp.singular_values(model)
    for key, values in spectra(kernels).items():
        np.testing.assert_allclose(measured[f"attention/{key}"], values, atol=1e-6)


def descend(model, penalised):
    """One gradient step of size 1 on the penalty alone; the kernels before and after."""
    model.compile(keras.optimizers.SGD(1.0), loss=lambda y, p: 0.0 * ops.sum(p))
    before = [to_numpy(kernel).copy() for kernel in penalised]
    x = np.zeros((1, *model.input_shape[1:]), "float32")
    model.fit(x, to_numpy(model(x)), verbose=0)
    return zip(before, [to_numpy(kernel) for kernel in penalised])


@pytest.mark.parametrize("name", ["values", "square"])
def test_the_penalty_descends_by_the_step_in_attention(name):
    heads = ATTENTION[name][1]
    regularizer = kp.TightFrameRegularizer(0.01, heads=heads)
    model, kernels = attention(name, kernel_regularizer=regularizer)
    for before, after in descend(model, kernels.values()):
        expected = to_numpy(kp.ParsevalTightFrame(0.01, heads=heads)(before))
        assert abs(after - before).max() > 1e-6
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(params=RECURRENT_CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def gates_deviation(case, kernel):
    values = [singular_values(matrix) for matrix in case.matrices(kernel)]
    return abs(np.array(values) / case.target - 1).max()


def test_each_gate_reaches_the_frame(case, rng):
    step = compiled(kp.ParsevalTightFrame(0.5, **case.arguments))
    kernel = ops.convert_to_tensor(rng.normal(size=case.shape).astype("float32"))
    for _ in range(1000):
        kernel = step(kernel)
    assert gates_deviation(case, kernel) < 1e-3


def test_each_gate_starts_on_the_frame_and_stays_there(case, rng):
    options = {
        key.split("_")[1]: v for key, v in kp.tight_frame(**case.arguments, beta=0.5).items()
    }
    layer = case.build(**options)
    kernel = case.kernel(layer)
    assert gates_deviation(case, kernel) < 1e-5
    model = keras.Sequential([keras.Input(case.input_shape), layer, layers.Flatten()])
    model.compile(keras.optimizers.SGD(1e-2), "mse", jit_compile=JIT_COMPILE)
    before = to_numpy(kernel).copy()
    x = rng.normal(size=(16, *case.input_shape)).astype("float32")
    model.fit(x, np.ones((16, model.output_shape[-1])), batch_size=8, epochs=2, verbose=0)
    assert abs(to_numpy(kernel) - before).max() > 1e-6
    assert gates_deviation(case, kernel) < 1e-3
    key = f"{layer.name}/{'recurrent_kernel' if case.prefix == 'recurrent' else 'kernel'}"
    by_hand = np.concatenate([singular_values(matrix) for matrix in case.matrices(kernel)])
    np.testing.assert_allclose(kp.singular_values(layer)[key], by_hand, atol=1e-6)
    assert list(kp.tightness(model, per_layer=True)) == [key]


def test_the_penalty_descends_by_the_step_for_each_gate(case, rng):
    layer = case.build(regularizer=kp.TightFrameRegularizer(0.01, **case.arguments))
    case.kernel(layer).assign(case.target * rng.normal(size=case.shape) / 4)
    model = keras.Sequential([keras.Input(case.input_shape), layer])
    ((before, after),) = descend(model, [case.kernel(layer)])
    expected = to_numpy(kp.ParsevalTightFrame(0.01, **case.arguments)(before))
    assert abs(after - before).max() > 1e-6
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-6)


EQUATIONS = [
    ("ab,bc->ac", (3,), (4,)),
    ("abc,cd->abd", (3, 4), (3, 5)),
    ("...x,xy->...y", (3, 4), 5),
    ("...x,yx->...y", (3, 4), 5),
    ("abc,cde->abde", (2, 6), (2, 3, 4)),
    ("abcd,cde->abe", (2, 3, 4), (2, 5)),
    ("abc,bcd->abd", (3, 4), (3, 5)),
    ("abc,bcd->adb", (3, 4), (5, 3)),
    ("abc,dbec->ade", (2, 3), (4, 2)),
    ("ab...,bc->ac...", (3, 2, 2), (4, 2, 2)),
]


@pytest.mark.parametrize("equation, input_shape, output_shape", EQUATIONS)
def test_an_einsum_layer_has_the_spectrum_of_its_matrices(equation, input_shape, output_shape):
    """The kernel's matrices, repeated along the axes that the layer keeps, are the layer."""
    layer = layers.EinsumDense(equation, output_shape)
    layer.build((None, *input_shape))
    size = int(np.prod(input_shape))
    images = to_numpy(layer(np.eye(size, dtype="float32").reshape(size, *input_shape)))
    computed = singular_values(images.reshape(size, -1))
    values = kp.singular_values(layer)
    repeated = np.sort(np.repeat(values, len(computed) // len(values)))[::-1]
    np.testing.assert_allclose(computed, repeated, atol=1e-5)
    plan = kp.parseval_plan(keras.Sequential([keras.Input(input_shape), layer, layers.Flatten()]))
    assert [row["weight"] for row in plan] == ["kernel"]


@pytest.mark.parametrize(
    "equation, input_shape, output_shape",
    [
        ("abc,c->abc", (3, 4), (3, 4)),  # a product with numbers
        ("abc,cd->ad", (3, 4), (5,)),  # a sum over b, too
    ],
)
def test_an_einsum_layer_that_is_no_product_with_matrices_is_left_alone(
    equation, input_shape, output_shape
):
    layer = layers.EinsumDense(equation, output_shape)
    layer.build((None, *input_shape))
    with pytest.raises(ValueError, match="no kernel that is read as a matrix"):
        kp.singular_values(layer)


def encoder():
    """A small transformer encoder for sequences of 5 vectors."""
    x = inputs = keras.Input((5, 8))
    attended = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = layers.LayerNormalization()(layers.Add(name="sum")([x, attended]))
    hidden = layers.Dense(16, "relu", name="wide")(x)
    x = layers.Add()([x, layers.Dense(8, name="narrow")(hidden)])
    x = layers.EinsumDense("abc,cde->abde", (5, 2, 3), name="split")(x)
    x = layers.EinsumDense("abde,def->abf", (5, 7), name="join")(x)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(3, name="classifier")(x))


def grouped_encoder():
    inputs = keras.Input((5, 8))
    x = layers.GroupQueryAttention(3, 4, 2, name="attention")(inputs, inputs)
    return keras.Model(inputs, layers.Dense(3, name="classifier")(x))


def recurrent_classifier():
    inputs = keras.Input((5, 8))
    x = layers.LSTM(6, return_sequences=True, kernel_regularizer="l2", name="lstm")(inputs)
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True, name="gru"), name="both")(x)
    cells = [layers.LSTMCell(5, name="first"), layers.SimpleRNNCell(4, name="second")]
    x = layers.RNN(cells, return_sequences=True, name="stack")(x)
    x = layers.TimeDistributed(layers.Dense(6, name="each"), name="times")(x)
    x = layers.RNN(layers.GRUCell(4), name="gru")(x)
    return keras.Model(inputs, layers.Dense(3, name="classifier")(x))


GATES = {"lstm": 4, "first": 4, "gru": 3, "both": 3}


def logical_matrices(variable):
    """The matrices of a kernel, known by its path and sliced by hand."""
    kernel, names = np.asarray(to_numpy(variable), "float64"), variable.path.split("/")
    if "attention_output" in names or "join" in names:
        return from_heads(kernel)
    if kernel.ndim == 3:
        return into_heads(kernel)
    gates = next((count for key, count in GATES.items() if key in variable.path), 1)
    if "forward" in variable.path or "backward" in variable.path:
        gates = 3
    size = kernel.shape[1] // gates
    return [kernel[:, gate * size : (gate + 1) * size].T for gate in range(gates)]


def constrained_matrices(model):
    kernels = [each for each in model.weights if each.constraint is not None]
    kernels = [each for each in kernels if isinstance(each.constraint, kp.ParsevalTightFrame)]
    matrices = {each.path: logical_matrices(each) for each in kernels}
    assert len(matrices) == len(kernels)
    return matrices


@pytest.mark.parametrize("make, count", [(encoder, 8), (recurrent_classifier, 13)])
def test_converted_trained_and_loaded_models_are_tight(make, count, rng, tmp_path):
    robust = kp.parseval(make(), beta=0.5, verbose=0)
    assert len(constrained_matrices(robust)) == count
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    robust.compile(keras.optimizers.SGD(1e-2), loss)  # XLA takes long for so many loops
    x, y = rng.normal(size=(32, 5, 8)).astype("float32"), rng.integers(0, 3, size=32)
    robust.fit(x, y, batch_size=8, epochs=2, verbose=0)
    robust.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(to_numpy(loaded(x)), to_numpy(robust(x)), atol=1e-5)
    loaded.fit(x, y, batch_size=8, epochs=2, verbose=0)
    for model in (robust, loaded):
        matrices = constrained_matrices(model)
        assert len(matrices) == count
        for path, each in matrices.items():
            for matrix in each:
                assert abs(singular_values(matrix) - 1).max() < 2e-3, path
        assert kp.tightness(model) < 4e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(kp.tightness(loaded, per_layer=True)) == count


@pytest.mark.parametrize("make", [encoder, grouped_encoder])
@pytest.mark.parametrize("init", ["project", "random", None])
def test_the_converter_starts_where_it_is_told(make, init):
    model = make()
    robust = kp.parseval(model, init=init, verbose=0)
    tight = {
        path: max(abs(singular_values(matrix) - 1).max() for matrix in each) < 1e-5
        for path, each in constrained_matrices(robust).items()
    }
    assert all(tight.values()) if init else not any(tight.values())
    kernels = [model.get_layer("attention").weights[0], robust.get_layer("attention").weights[0]]
    if init == "project":
        # The nearest orthogonal matrix is the product of the singular vectors.
        matrix, frame = (logical_matrices(kernel)[0] for kernel in kernels)
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        np.testing.assert_allclose(frame, left @ right, atol=1e-5)


def test_the_plan_names_every_kernel_of_a_layer():
    rows = {(row["layer"], row["weight"]): row for row in kp.parseval_plan(recurrent_classifier())}
    assert [key for key, row in rows.items() if row["becomes"]] == [
        *(("lstm", "kernel"), ("lstm", "recurrent_kernel")),
        *(
            ("both", f"{way}_gru/{kernel}")
            for way in ("forward", "backward")
            for kernel in ("kernel", "recurrent_kernel")
        ),
        *(
            ("stack", f"{cell}/{kernel}")
            for cell in ("first", "second")
            for kernel in ("kernel", "recurrent_kernel")
        ),
        *(("times", "each/kernel"), ("gru", "kernel"), ("gru", "recurrent_kernel")),
    ]
    assert rows["lstm", "kernel"]["note"] == "without its L2 regularizer"
    robust = kp.parseval(recurrent_classifier(), verbose=0)
    assert robust.get_layer("lstm").cell.kernel_regularizer is None
    rows = kp.parseval_plan(encoder())
    weights = [row["weight"] for row in rows if row["layer"] == "attention"]
    assert weights == [f"{name}/kernel" for name in PROJECTIONS]


def test_attention_whose_shapes_do_not_tell_is_left_alone_with_a_word():
    inputs = keras.Input((5, 4))
    x = layers.MultiHeadAttention(4, 4, name="cube")(inputs, inputs)
    model = keras.Model(inputs, layers.Dense(2)(x))
    rows = [row for row in kp.parseval_plan(model) if row["layer"] == "cube"]
    assert len(rows) == 4
    for row in rows:
        assert row["becomes"] is None and "do not tell them apart" in row["note"]


def test_attention_with_a_constraint_or_skipped_is_left_alone():
    model, _ = attention("mha", kernel_constraint="non_neg")
    hidden = [model, layers.Dense(4, name="hidden")]
    model = keras.Sequential([keras.Input((5, 10)), *hidden, layers.Dense(3)])
    robust = kp.parseval(model, verbose=0)
    assert [path.split("/")[-2] for path in constrained_matrices(robust)] == ["hidden"]
    robust = kp.parseval(encoder(), skip="attention", verbose=0)
    assert len(constrained_matrices(robust)) == 4


def misread(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = kp.singular_values(model)
    return values, " ".join(str(each.message) for each in caught if each.category is UserWarning)


def test_a_constraint_that_was_not_told_is_found_out_in_attention():
    model, kernels = attention("mha", kernel_constraint=kp.ParsevalTightFrame())
    values, message = misread(model)
    assert "axes='ioo', or `heads`" in message and "axes='iio', or `heads`" in message
    # Measured is what the layer multiplies by, and not what the constraint makes tight.
    for key, by_hand in spectra(kernels).items():
        np.testing.assert_allclose(values[f"attention/{key}"], by_hand, atol=1e-6)
    rows = kp.parseval_plan(keras.Sequential([keras.Input((5, 10)), model, layers.Dense(2)]))
    assert all("pass axes=" in row["note"] for row in rows if row["layer"].endswith("attention"))
    with pytest.warns(UserWarning, match="makes other matrices tight"):
        kp.tightness(model)


@pytest.mark.parametrize(
    "make, shape, remedy",
    [
        (lambda c: layers.LSTM(3, kernel_constraint=c), (4, 2), "groups=4"),
        (lambda c: layers.GRU(3, recurrent_constraint=c), (4, 2), "groups=3"),
        (lambda c: layers.Conv1D(4, 3, groups=2, kernel_constraint=c), (5, 2), "groups=2"),
        (
            lambda c: layers.DepthwiseConv1D(3, depthwise_constraint=c),
            (5, 2),
            "groups='depthwise'",
        ),
        (
            lambda c: layers.EinsumDense("abc,bcd->abd", (3, 5), kernel_constraint=c),
            (3, 4),
            "axes='gio'",
        ),
    ],
)
def test_a_constraint_that_was_not_told_is_found_out(make, shape, remedy):
    model = keras.Sequential([keras.Input(shape), make(kp.ParsevalTightFrame()), layers.Dense(2)])
    _, message = misread(model)
    assert remedy in message
    arguments = {remedy.split("=")[0]: eval(remedy.split("=")[1])}
    told = make(kp.ParsevalTightFrame(**arguments))
    assert misread(keras.Sequential([keras.Input(shape), told]))[1] == ""


def test_one_reading_for_all_of_attention_is_found_out():
    """Right for three kernels, wrong for the fourth."""
    model, _ = attention("mha", kernel_constraint=kp.ParsevalTightFrame(axes="ioo"))
    _, message = misread(model)
    assert "axes='iio'" in message and "axes='ioo'" not in message
    assert "attention/attention_output" in message and "attention/query" not in message


@pytest.mark.parametrize(
    "layer, shape",
    [
        # Each head by itself, a fused layer, a transposed convolution by its outputs.
        (lambda c: layers.EinsumDense("abc,cde->abde", (2, 3, 4), kernel_constraint=c), (2, 6)),
        (lambda c: layers.Dense(6, kernel_constraint=c), (4,)),
        (lambda c: layers.Conv1DTranspose(6, 3, kernel_constraint=c), (4, 2)),
    ],
)
def test_a_reading_of_the_users_own_is_no_mistake(layer, shape):
    rank = len(layer(None)(keras.Input(shape)).shape)
    arguments = {4: {"axes": "igo"}, 2: {"groups": 3}, 3: {"axes": "...oi"}}[rank]
    made = layer(kp.ParsevalTightFrame(**arguments))
    assert misread(keras.Sequential([keras.Input(shape), made]))[1] == ""


def sequence_model(last="softmax"):
    """An LSTM that is constrained, and a classifier that is not."""
    frames = {**kp.tight_frame(groups=4), **kp.tight_frame("recurrent", groups=4)}
    model = keras.Sequential(
        [
            keras.Input((4, 3)),
            layers.LSTM(5, name="lstm", **frames),
            layers.Dense(2, name="classifier"),
            layers.Activation(last),
        ]
    )
    model.compile("sgd", "mse", jit_compile=JIT_COMPILE)
    return model


def test_the_logger_sees_the_lstm_that_is_constrained(rng):
    model = sequence_model()
    x, y = rng.normal(size=(16, 4, 3)).astype("float32"), rng.normal(size=(16, 2))
    logs = model.fit(x, y, verbose=0, callbacks=[kp.SpectrumLogger()]).history
    assert sorted(logs) == ["loss", "spectrum_max", "spectrum_min", "tightness"]
    kernels = [model.layers[0].cell.kernel, model.layers[0].cell.recurrent_kernel]
    values = [
        singular_values(to_numpy(kernel)[:, 5 * gate : 5 * gate + 5])
        for kernel in kernels
        for gate in range(4)
    ]
    values = np.concatenate(values)
    assert logs["spectrum_min"][0] == pytest.approx(values.min(), abs=1e-6)
    assert logs["spectrum_max"][0] == pytest.approx(values.max(), abs=1e-6)
    logs = model.fit(x, y, verbose=0, callbacks=[kp.SpectrumLogger(per_layer=True)]).history
    assert {"tightness_lstm/kernel", "spectrum_max_lstm/recurrent_kernel"} <= logs.keys()
    assert not any("classifier" in key for key in logs)


@pytest.mark.parametrize("text", ["axes", "heads"])
def test_readings_survive_json(text):
    value = {"axes": "gio", "heads": [(2, 3), [4, 5]]}[text]
    for made in (
        kp.ParsevalTightFrame(**{text: value}),
        kp.TightFrame(**{text: value}, seed=1),
        kp.TightFrameRegularizer(0.1, **{text: value}),
    ):
        config = json.loads(json.dumps(made.get_config()))
        assert type(made).from_config(config).get_config() == made.get_config() == config
        assert getattr(made, text) == config[text]
