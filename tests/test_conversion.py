import os

import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, to_numpy
from keras import layers, ops

import keras_parseval as kp
from keras_parseval._layer_kernels import layer_kernels

SLOW = os.environ.get("KERAS_PARSEVAL_SLOW") == "1"


def kernels_of(model):
    """All kernels of a model, and of the models inside it."""
    for layer in model.layers:
        yield from kernels_of(layer) if isinstance(layer, keras.Model) else layer_kernels(layer)


def constrained_kernels(model):
    return [
        each for each in kernels_of(model) if isinstance(each.constraint, kp.ParsevalTightFrame)
    ]


def tightness_error(kernel):
    """How far the singular values of a kernel's matrices are from the target, relative to it."""
    matrices = to_numpy(kernel.layout.to_matrices(kernel.variable)).astype("float64")
    values = np.linalg.svd(matrices, compute_uv=False)
    return np.abs(values / kernel.layout.target(tuple(kernel.variable.shape)) - 1).max()


def every_kind_of_layer(**classifier_options):
    inputs = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, 2, padding="same", name="strided")(inputs)
    x = layers.Conv2D(8, 3, groups=4, padding="same", name="grouped")(x)
    x = layers.BatchNormalization(name="normalization")(x)
    x = layers.ReLU()(layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x))
    shortcut = layers.SeparableConv2D(8, 3, padding="same", name="separable")(x)
    x = layers.Add(name="sum")([x, shortcut])
    x = layers.Conv2DTranspose(6, 3, 2, padding="same", name="transposed")(x)
    x = layers.EinsumDense("abcd,de->abce", (8, 8, 5), name="einsum")(x)
    x = layers.ReLU()(layers.Dense(7, name="dense")(layers.Flatten()(x)))
    return keras.Model(inputs, layers.Dense(10, name="logits", **classifier_options)(x))


def images(count=16, shape=(8, 8, 3)):
    rng = np.random.default_rng(3)
    return rng.random((count, *shape), dtype="float32"), np.arange(count) % 10


def train(model, shape=(8, 8, 3), count=16):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, jit_compile=JIT_COMPILE)
    return model.fit(*images(count, shape), batch_size=count, verbose=0).history["loss"][0]


def plan_of(model, **options):
    return {row["layer"]: row for row in kp.parseval_plan(model, **options)}


def converted(model, **options):
    return kp.parseval(model, verbose=0, **options)


def test_every_kind_of_layer_is_constrained_in_its_own_way():
    robust = converted(every_kind_of_layer(), beta=0.2, rows=0.5, unbiased=True)
    kernels = {(each.layer.name, each.attribute): each for each in constrained_kernels(robust)}
    groups = {key: each.constraint.groups for key, each in kernels.items()}
    assert groups == {
        ("strided", "kernel"): 1,
        ("grouped", "kernel"): 4,
        ("depthwise", "kernel"): "depthwise",
        ("separable", "depthwise_kernel"): "depthwise",
        ("separable", "pointwise_kernel"): 1,
        ("transposed", "kernel"): 1,
        ("einsum", "kernel"): 1,
        ("dense", "kernel"): 1,
    }
    for kernel in kernels.values():
        common = {"beta": 0.2, "rows": 0.5, "unbiased": True, "steps": "auto"}
        assert kernel.constraint.get_config() == {**common, **kernel.layout.get_config()}
        # Keras applies the constraint of the variable, whatever the layer says.
        assert kernel.variable.constraint is kernel.constraint
    assert robust.get_layer("logits").kernel_constraint is None


def operator_norm(layer):
    """The norm of a linear layer: the largest singular value of what it does to a basis."""
    shape = layer.input.shape[1:]
    basis = np.eye(np.prod(shape), dtype="float32").reshape(-1, *shape)
    images = to_numpy(layer(basis)) - to_numpy(layer(np.zeros_like(basis[:1])))
    return np.linalg.norm(images.reshape(len(basis), -1), 2)


def test_every_kind_of_layer_becomes_1_lipschitz():
    robust = converted(every_kind_of_layer())
    names = {kernel.layer.name for kernel in constrained_kernels(robust)}
    norms = {name: operator_norm(robust.get_layer(name)) for name in names}
    assert len(norms) == 7 and max(norms.values()) <= 1 + 1e-5
    # A smaller kernel would do that too; these attain the bound.
    assert min(norms["dense"], norms["einsum"]) == pytest.approx(1, abs=1e-5)


def test_a_trained_model_starts_on_the_nearest_frames_trains_on_and_is_saved(tmp_path):
    model = every_kind_of_layer()
    train(model)
    robust = converted(model, beta=0.5)
    for kernel in constrained_kernels(robust):
        assert tightness_error(kernel) < 1e-5
        trained = getattr(model.get_layer(kernel.layer.name), kernel.attribute)
        nearest, start = (
            to_numpy(kernel.layout.to_matrices(each)) for each in (kernel.variable, trained)
        )
        # The polar factor is the one frame whose product with the matrix is positive.
        product = nearest @ np.swapaxes(start, -1, -2)
        if product.shape[-1] > nearest.shape[-1]:
            product = np.swapaxes(nearest, -1, -2) @ start
        np.testing.assert_allclose(product, np.swapaxes(product, -1, -2), atol=1e-4)
        assert np.linalg.eigvalsh(product).min() > -1e-4
    assert np.isfinite(train(robust))
    assert max(tightness_error(kernel) for kernel in constrained_kernels(robust)) < 0.05
    robust.save(tmp_path / "robust.keras")
    loaded = keras.models.load_model(tmp_path / "robust.keras")
    assert len(constrained_kernels(loaded)) == 8
    inputs, _ = images()
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(robust(inputs)), atol=1e-6)


def test_without_init_and_merge_the_function_is_the_same():
    model = every_kind_of_layer()
    train(model)
    inputs, _ = images()
    twin = converted(model, init=None, merge=False)
    assert len(constrained_kernels(twin)) == 8
    assert [each.name for each in twin.layers] == [each.name for each in model.layers]
    np.testing.assert_allclose(to_numpy(twin(inputs)), to_numpy(model(inputs)), atol=1e-6)


def test_random_frames_are_tight_and_forget_the_weights():
    model = every_kind_of_layer()
    for kernel in constrained_kernels(converted(model, init="random")):
        assert tightness_error(kernel) < 1e-5
        trained = getattr(model.get_layer(kernel.layer.name), kernel.attribute)
        nearest = kp.constraints.project_tight_frame(
            kernel.layout.to_matrices(trained), scale=kernel.layout.target(tuple(trained.shape))
        )
        random = kernel.layout.to_matrices(kernel.variable)
        assert np.abs(to_numpy(nearest) - to_numpy(random)).max() > 1e-2


def test_all_other_weights_are_carried_over():
    model = every_kind_of_layer()
    train(model)
    robust = converted(model)
    tight = {id(kernel.variable) for kernel in constrained_kernels(robust)}
    for layer in model.layers:
        if isinstance(layer, layers.Add):
            continue
        for ours, theirs in zip(robust.get_layer(layer.name).weights, layer.weights, strict=True):
            if id(ours) not in tight:
                np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def test_statistics_that_were_adapted_are_carried_over():
    data = np.random.default_rng(0).normal(5, 3, size=(64, 4)).astype("float32")
    normalization = layers.Normalization()
    normalization.adapt(data)
    model = keras.Sequential([keras.Input((4,)), normalization])
    np.testing.assert_allclose(to_numpy(converted(model)(data)), to_numpy(model(data)), atol=1e-6)


def test_the_source_is_not_touched():
    model = every_kind_of_layer()
    # A loss that Keras cannot deserialize, and so cannot carry over.
    model.compile("sgd", lambda y_true, y_pred: ops.mean(y_pred), jit_compile=JIT_COMPILE)
    config, weights = model.get_config(), model.get_weights()
    robust = converted(model)
    assert model.compiled and not robust.compiled
    assert model.get_config() == config
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    # Raises where a layer was called a second time.
    assert [layer.output.shape for layer in model.layers]


def test_sums_become_convex_and_halve():
    first, second = keras.Input((6,)), keras.Input((6,))
    model = keras.Model([first, second], layers.Add(name="sum")([first, second]))
    x, y = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    np.testing.assert_allclose(to_numpy(converted(model)([x, y])), (x + y) / 2, atol=1e-6)
    np.testing.assert_allclose(to_numpy(converted(model, merge=False)([x, y])), x + y, atol=1e-6)
    assert isinstance(converted(model).get_layer("sum"), kp.ConvexAdd)
    assert plan_of(model, merge=False)["sum"]["note"] == "merge=False"


def test_sums_that_cannot_be_convex_stay_and_say_why():
    inputs = keras.Input((4, 6))
    broadcast = layers.Add(name="broadcast")([inputs, layers.AveragePooling1D(4)(inputs)])
    operator = broadcast + inputs
    model = keras.Model(inputs, operator + 1.0)
    plan = plan_of(model)
    assert "differ in shape" in plan["broadcast"]["note"]
    notes = [row["note"] for name, row in plan.items() if name != "broadcast"]
    assert len(notes) == 1 and "keras.layers.Add" in notes[0]
    assert all(row["becomes"] is None for row in plan.values())
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    np.testing.assert_allclose(to_numpy(converted(model)(x)), to_numpy(model(x)), atol=1e-6)


def test_a_sum_that_is_shared_must_have_one_number_of_inputs():
    inputs = [keras.Input((6,)) for _ in range(3)]
    shared = layers.Add(name="sum")
    model = keras.Model(inputs, [shared(inputs), shared(inputs[:2])])
    assert "different numbers" in plan_of(model)["sum"]["note"]


def head(*tail):
    def build(x):
        x = layers.Dense(6, name="head")(x)
        for layer in tail:
            x = layer(x)
        return x

    return build


def nested_head(x):
    inner = keras.Input((6,))
    return keras.Model(inner, layers.Activation("softmax")(inner))(layers.Dense(6, name="head")(x))


def head_inside(x):
    return keras.Sequential([layers.Dense(6, name="head"), layers.Softmax()], name="top")(x)


@pytest.mark.parametrize(
    "build, classifiers",
    [
        (head(), {"head"}),
        (head(layers.Activation("softmax")), {"head"}),
        (head(layers.Reshape((2, 3)), layers.Softmax()), {"head"}),
        (head(ops.softmax), {"head"}),
        (head(lambda x: ops.reshape(x, (-1, 3, 2))), {"head"}),
        (nested_head, {"head"}),
        (head_inside, {"top/head"}),
        (lambda x: [head()(x), layers.Dense(2, name="other")(x)], {"head", "other"}),
        (head(layers.BatchNormalization()), set()),
        (head(lambda x: x * 2.0), set()),
    ],
)
def test_classifiers_are_found_from_the_graph(build, classifiers):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, build(layers.Dense(5, "relu", name="hidden")(inputs)))
    plan = plan_of(model)
    assert plan["hidden"]["becomes"] == "ParsevalTightFrame"
    assert {name for name, row in plan.items() if "classifier" in row["note"]} == classifiers


def test_a_convolution_whose_average_is_the_output_is_a_classifier():
    maps = [layers.Conv2D(4, 3, name="hidden"), layers.Conv2D(3, 1, name="maps")]
    model = keras.Sequential([keras.Input((6, 6, 2)), *maps, layers.GlobalAveragePooling2D()])
    assert [row["becomes"] for row in kp.parseval_plan(model)] == ["ParsevalTightFrame", None]


def nested_and_shared():
    inner = keras.Input((6,))
    block = keras.Model(
        inner,
        layers.Add(name="sum")([inner, layers.Dense(6, "relu", name="dense")(inner)]),
        name="block",
    )
    stack = keras.Sequential([layers.Dense(6, name="first"), block], name="stack")
    inputs = keras.Input((6,), name="features")
    shared = layers.Dense(6, name="shared")
    x = shared(stack(shared(inputs)))
    return keras.Model(inputs, layers.Dense(3, name="logits")(block(x)), name="outer")


def test_nested_models_and_shared_layers():
    model = nested_and_shared()
    plan = plan_of(model)
    assert [row["layer"] for row in kp.parseval_plan(model)] == list(plan)
    changed = {name for name, row in plan.items() if row["becomes"]}
    # The block is there twice, and is named by the first place where it is met.
    assert changed == {"shared", "stack/first", "stack/block/dense", "stack/block/sum"}
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    twin = converted(model, init=None, merge=False)
    np.testing.assert_allclose(to_numpy(twin(x)), to_numpy(model(x)), atol=1e-5)
    robust = converted(model)
    assert robust.name == "outer" and robust.get_layer("stack").name == "stack"
    assert robust.get_layer("stack").layers[1] is robust.get_layer("block")
    assert len({id(kernel.variable) for kernel in constrained_kernels(robust)}) == 3
    # The sum was called twice, and has one set of coefficients.
    assert len(robust.trainable_weights) == len(model.trainable_weights) + 1
    robust.compile("sgd", "mse", jit_compile=JIT_COMPILE)
    assert np.isfinite(robust.fit(x, x[:, :3], verbose=0).history["loss"]).all()


@pytest.mark.parametrize(
    "skip, skipped",
    [
        ("dense", {"dense"}),
        (["str*", "einsum"], {"strided", "einsum"}),
        (layers.SeparableConv2D, {"separable"}),
        ((layers.Conv2DTranspose, "sum"), {"transposed", "sum"}),
    ],
)
def test_skip(skip, skipped):
    plan = plan_of(every_kind_of_layer(), skip=skip)
    assert {name for name, row in plan.items() if row["note"] == "skipped"} == skipped
    robust = converted(every_kind_of_layer(), skip=skip)
    assert not skipped & {kernel.layer.name for kernel in constrained_kernels(robust)}


@pytest.mark.parametrize("skip", ["stack", "stack/*", keras.Sequential])
def test_skip_of_a_nested_model_means_all_that_is_inside(skip):
    plan = plan_of(nested_and_shared(), skip=skip)
    assert plan["shared"]["becomes"] == "ParsevalTightFrame"
    assert {name for name, row in plan.items() if row["note"] == "skipped"} == {
        "stack/first",
        "stack/block/dense",
        "stack/block/sum",
    }


def test_what_has_a_constraint_keeps_it():
    hidden = layers.Dense(4, kernel_constraint="non_neg", name="hidden")
    model = keras.Sequential([keras.Input((3,)), hidden, layers.Dense(2)])
    assert "NonNeg" in plan_of(model)["hidden"]["note"]
    assert isinstance(
        converted(model).get_layer("hidden").kernel_constraint, type(hidden.kernel_constraint)
    )
    again = converted(every_kind_of_layer())
    assert {row["becomes"] for row in kp.parseval_plan(again)} == {None}


def test_weight_decay_of_constrained_kernels_is_dropped():
    decay = keras.regularizers.L2(0.1)
    hidden = layers.Dense(4, kernel_regularizer=decay, bias_regularizer=decay, name="hidden")
    logits = layers.Dense(2, kernel_regularizer=decay, name="logits")
    model = keras.Sequential([keras.Input((3,)), hidden, logits])
    assert "L2" in plan_of(model)["hidden"]["note"]
    robust = converted(model)
    assert robust.get_layer("hidden").kernel_regularizer is None
    assert robust.get_layer("hidden").bias_regularizer.l2 == pytest.approx(0.1)
    assert robust.get_layer("logits").kernel_regularizer.l2 == pytest.approx(0.1)


def test_what_cannot_be_read_is_named():
    x = keras.Input((5,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(7, 4, name="embedding")(x))
    plan = plan_of(keras.Model(x, layers.Dense(2)(hidden)))
    assert plan["embedding"]["note"] == "no layer with known kernels"
    adapted = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(2)])
    adapted.get_layer("a").enable_lora(2)
    assert "LoRA" in plan_of(adapted)["a"]["note"]


def test_the_summary_is_printed_when_asked_for(capsys):
    model = every_kind_of_layer()
    kp.parseval(model, init=None, verbose=1)
    printed = capsys.readouterr().out
    assert "2 x Conv2D kernel" in printed
    assert "1 x Add" in printed and "ConvexAdd" in printed
    assert "left alone (logits): the classifier" in printed
    kp.parseval(model, init=None, verbose=0)
    assert capsys.readouterr().out == ""
    kp.parseval(keras.Sequential([keras.Input((3,)), layers.ReLU()]), verbose=1)
    assert "No classifier was found" in capsys.readouterr().out


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"model": Subclassed()}, ValueError, "functional or Sequential"),
        ({"model": keras.Sequential([layers.Dense(2)])}, ValueError, "keras.Input"),
        ({"model": layers.Dense(2)}, ValueError, "functional or Sequential.*Dense"),
        ({"beta": 0.7}, ValueError, "`beta`.*Received: beta=0.7"),
        ({"rows": 5}, ValueError, "`rows`.*Received: rows=5.*'hidden' with 4 units"),
        ({"init": "orthogonal"}, ValueError, "`init`.*Received: init='orthogonal'"),
        ({"merge": 1}, TypeError, "`merge` must be True or False"),
        ({"verbose": 2}, ValueError, '`verbose` must be 0, 1 or "auto"'),
        ({"skip": "hiden"}, ValueError, "Received: 'hiden', which matches none of hidden"),
        ({"skip": [3]}, TypeError, "`skip`.*Received: 3"),
        ({"skip": layers.LSTM}, ValueError, "matches none"),
    ],
)
def test_errors(options, error, message):
    hidden = layers.Dense(4, name="hidden")
    model = keras.Sequential([keras.Input((6,)), hidden, layers.Dense(3, name="logits")])
    with pytest.raises(error, match=message):
        kp.parseval(**{"model": model, "verbose": 0, **options})


APPLICATIONS = {
    "ResNet50": {},
    "MobileNetV2": {"alpha": 0.35},
    "DenseNet121": {},
    "EfficientNetB0": {},
    "VGG16": {},
}


def application(name):
    """A network of `keras.applications` on small images, with a head of its own."""
    make = getattr(keras.applications, name)
    shape = (32, 32, 3)
    body = make(
        include_top=False, weights=None, input_shape=shape, pooling="avg", **APPLICATIONS[name]
    )
    return keras.Model(body.input, layers.Dense(10, name="logits")(body.output))


# How a graph is converted does not depend on the backend, and JAX takes long to make weights.
@pytest.mark.parametrize("name", APPLICATIONS if BACKEND == "torch" else ["MobileNetV2"])
def test_applications(name):
    model = application(name)
    sums = sum(isinstance(layer, layers.Add) for layer in model.layers)
    robust = converted(model, init=None)
    assert len(constrained_kernels(robust)) == len(list(kernels_of(robust))) - 1
    assert sum(isinstance(layer, kp.ConvexAdd) for layer in robust.layers) == sums


@pytest.mark.skipif(not SLOW, reason="takes minutes; set KERAS_PARSEVAL_SLOW=1")
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_start_tight_train_and_are_saved(name, tmp_path):
    robust = converted(application(name))
    assert max(tightness_error(kernel) for kernel in constrained_kernels(robust)) < 1e-5
    assert np.isfinite(train(robust, (32, 32, 3), count=2))
    robust.save(tmp_path / "robust.keras")
    loaded = keras.models.load_model(tmp_path / "robust.keras")
    inputs, _ = images(2, (32, 32, 3))
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(robust(inputs)), rtol=1e-4)


def test_training_the_counterpart_leaves_the_original_as_it_was():
    hidden = [layers.Dense(8, "relu"), layers.Dense(8, "relu")]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(3)])
    x, y = np.ones((32, 6), "float32"), np.ones((32, 3), "float32")
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    before = [w.copy() for w in model.get_weights()]
    robust = kp.parseval(model, verbose=0)
    robust.compile("sgd", "mse")
    robust.fit(x, y, epochs=2, verbose=0)
    for ours, theirs in zip(model.get_weights(), before):
        np.testing.assert_array_equal(ours, theirs)
