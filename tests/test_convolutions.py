"""Convolutions that are tight as operators, against their matrices written out."""

import itertools
import os

import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, compiled, to_numpy
from convolutions_by_hand import error_of, matrix_of_convolution, smallest_torus

import keras_parseval as kp
from keras_parseval._convolution_layout import ConvolutionLayout

# Kernel size, strides, groups, inputs of a group, outputs.
SHAPES = [
    *(((n,), (1,), 1, *channels) for n in range(1, 6) for channels in [(3, 2), (3, 3), (2, 5)]),
    *(((n,), (2,), 1, *channels) for n in range(1, 6) for channels in [(3, 2), (2, 4), (2, 7)]),
    *(((n,), (3,), 1, 2, 6) for n in range(1, 6)),
    *(((n,), (stride,), 2, 2, 6) for n in range(1, 6) for stride in (1, 2)),
    *(
        ((a, b), (1, 1), 1, *channels)
        for a, b in [(2, 2), (3, 3), (1, 3), (2, 3)]
        for channels in [(3, 2), (2, 2), (2, 3)]
    ),
    *(((3, 3), strides, 1, 1, 3) for strides in [(2, 2), (1, 2), (2, 3)]),
    *(((2, 2), (2, 2), 1, *channels) for channels in [(2, 3), (1, 4), (1, 6)]),
    *(((3, 2), (1, 1), 3, 2, 6), ((2, 2), (2, 1), 2, 1, 4)),
    *(((2, 2, 2), (1, 1, 1), 1, *channels) for channels in [(2, 1), (2, 2), (1, 2)]),
    *(((1, 2, 3), (1, 2, 1), 1, 1, 2), ((2, 2, 2), (2, 2, 2), 1, 1, 3)),
]
assert len(SHAPES) >= 60
# The others compile each operation for each shape.
SOME_SHAPES = SHAPES if BACKEND == "torch" or os.environ.get("KERAS_PARSEVAL_ALL") else SHAPES[::5]


def described(shape):
    size, strides, groups, inputs, outputs = shape
    return f"{'x'.join(map(str, size))}/{'x'.join(map(str, strides))}-{groups}x{inputs}-{outputs}"


@pytest.mark.parametrize("shape", SOME_SHAPES, ids=described)
def test_initial_kernels_are_tight_as_operators(shape):
    size, strides, groups, inputs, outputs = shape
    initializer = kp.TightConvolution(strides=strides, groups=groups, seed=1)
    kernel = to_numpy(initializer((*size, inputs, outputs))).astype("float64")
    torus, strides = smallest_torus(kernel, strides)
    matrix = matrix_of_convolution(kernel, torus, strides, groups)
    np.testing.assert_allclose(np.linalg.svd(matrix, compute_uv=False), 1, atol=1e-4)
    padded = matrix_of_convolution(kernel, torus, strides, groups, "same")
    assert np.linalg.norm(padded, 2) <= 1 + 1e-4
    if len(size) == 1 and max(strides) == 1:
        torus = [2 * each for each in torus]
        dilated = matrix_of_convolution(kernel, torus, strides, groups, dilation=2)
        np.testing.assert_allclose(np.linalg.svd(dilated, compute_uv=False), 1, atol=1e-4)


@pytest.mark.parametrize("shape", SOME_SHAPES, ids=described)
def test_a_step_is_that_of_the_matrix_on_the_support(shape, rng):
    size, strides, groups, inputs, outputs = shape
    kernel = 0.5 * rng.normal(size=(*size, inputs, outputs))
    beta = 0.01
    step = kp.constraints.tight_convolution_step(kernel.astype("float32"), beta, strides, groups)
    torus, strides = smallest_torus(kernel, strides)

    def matrix_of(kernel):
        return matrix_of_convolution(kernel, torus, strides, groups)

    matrix = matrix_of(kernel)
    expected = matrix + beta * (matrix - matrix @ matrix.T @ matrix)
    expected = expected * (matrix_of(np.ones_like(kernel)) > 0)
    np.testing.assert_allclose(matrix_of(to_numpy(step)), expected, rtol=1e-4, atol=1e-5)


def starts(rng, count):
    """Random kernels of many shapes, small and large."""
    for number, shape in enumerate(itertools.islice(itertools.cycle(SOME_SHAPES), count)):
        size, strides, groups, inputs, outputs = shape
        yield rng.normal(size=(*size, inputs, outputs)) * 10.0 ** (number % 4 - 2), strides, groups


def test_the_error_falls_at_every_step(rng):
    for kernel, strides, groups in starts(rng, 100 if BACKEND == "torch" else 20):
        torus, along = smallest_torus(kernel, strides)
        errors = []
        for _ in range(6):
            errors.append(error_of(matrix_of_convolution(kernel, torus, along, groups)))
            step = kp.constraints.tight_convolution_step(
                kernel.astype("float32"), 0.5, strides, groups
            )
            kernel = to_numpy(step).astype("float64")
        assert (np.diff(errors) <= 1e-5 * np.maximum(errors[:-1], 1)).all(), (kernel.shape, errors)


def test_nothing_diverges_from_any_start(rng):
    constraint = compiled(kp.ParsevalConvolution(steps=5))
    for scale in (1e-3, 1e-1, 10.0, 1e3, 1e15):
        kernel = keras.ops.convert_to_tensor(scale * rng.normal(size=(3, 3, 4, 6)), "float32")
        for _ in range(40):
            kernel = constraint(kernel)
        values = np.linalg.svd(ConvolutionLayout().relative_matrices(kernel), compute_uv=False)
        assert values.max() < 1.1 and (scale < 1 or values.min() > 0.5)


def test_noise_is_held_off(rng):
    kernel = kp.TightConvolution(seed=1)((3, 3, 64, 64))
    constraint = compiled(kp.ParsevalConvolution())
    for _ in range(500 if JIT_COMPILE else 50):
        noise = rng.uniform(-1e-3, 1e-3, size=(3, 3, 64, 64)).astype("float32")
        kernel = constraint(kernel + keras.ops.convert_to_tensor(noise))
    values = np.linalg.svd(ConvolutionLayout().relative_matrices(kernel), compute_uv=False)
    assert values.min() > 0.98 and values.max() < 1.02


def test_a_second_step_is_taken_where_it_is_needed(rng):
    start = to_numpy(kp.TightConvolution(seed=1)((3, 3, 8, 8)))
    for noise, steps in [(1e-3, 1), (3e-2, 2)]:
        kernel = start + rng.uniform(-noise, noise, size=start.shape).astype("float32")
        expected = kp.constraints.tight_convolution_step(kernel, 0.5, steps=steps)
        moved = to_numpy(kp.ParsevalConvolution()(kernel))
        np.testing.assert_allclose(moved, to_numpy(expected), atol=1e-6)
        gentle = to_numpy(kp.ParsevalConvolution(0.1)(kernel))
        expected = kp.constraints.tight_convolution_step(kernel, 0.1)
        np.testing.assert_allclose(gentle, to_numpy(expected), atol=1e-6)


def test_initial_kernels_vary():
    """The set has parts that no path joins: by how much a kernel shifts in all is an integer."""

    def total_shift(seed):
        kernel = to_numpy(kp.TightConvolution(seed=seed)((3, 4, 4)))
        return (np.square(kernel).sum(axis=(-2, -1)) * np.arange(3)).sum()

    shifts = [total_shift(seed) for seed in range(12)]
    np.testing.assert_allclose(shifts, np.round(shifts), atol=1e-4)
    assert len(set(np.round(shifts))) > 2
    initializer = kp.TightConvolution(seed=3)
    np.testing.assert_array_equal(*(to_numpy(initializer((3, 4, 4))) for _ in range(2)))
    first, second = (to_numpy(kp.TightConvolution()((3, 4, 4))) for _ in range(2))
    assert np.abs(first - second).max() > 0.1


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "bfloat16",
        pytest.param("float64", marks=pytest.mark.skipif(BACKEND == "jax", reason="needs a flag")),
    ],
)
def test_precision_is_that_of_the_kernel(dtype):
    kernel = kp.TightConvolution(seed=1)((3, 3, 4, 8), dtype="float32")
    expected = to_numpy(kp.ParsevalConvolution()(1.05 * kernel))
    step = kp.ParsevalConvolution()(keras.ops.cast(1.05 * kernel, dtype))
    assert keras.backend.standardize_dtype(step.dtype) == dtype
    np.testing.assert_allclose(to_numpy(keras.ops.cast(step, "float32")), expected, atol=5e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(value):
    kernel = to_numpy(kp.TightConvolution(seed=1)((3, 4, 4))).copy()
    kernel[0, 1, 2] = value
    assert not np.isfinite(to_numpy(kp.ParsevalConvolution()(kernel))).any()


def test_tightness_and_the_way_back(rng):
    layer = keras.layers.Conv2D(8, 3, strides=2, **kp.tight_convolution(strides=2))
    model = keras.Sequential([keras.Input((9, 9, 4)), layer, keras.layers.Flatten()])
    assert kp.tightness(model) < 1e-5
    assert kp.tightness(model, convolutions="kernel") > 0.1
    assert kp.tighten(model) == {}
    layer.kernel.assign(layer.kernel + 0.01 * rng.normal(size=layer.kernel.shape))
    moved = kp.tighten(model)
    assert list(moved) == [layer.kernel.path] and moved[layer.kernel.path] > 1e-3
    values = kp.singular_values(layer)
    np.testing.assert_allclose(values, 1, atol=1e-3)
    torus, strides = smallest_torus(to_numpy(layer.kernel), (2, 2))
    matrix = matrix_of_convolution(to_numpy(layer.kernel), torus, strides)
    expected = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(np.sort(values)[::-1], expected, atol=1e-5)


def test_what_cannot_be_tightened_is_left_alone(rng):
    layer = keras.layers.Conv2D(8, 3, kernel_constraint=kp.ParsevalConvolution())
    frame = keras.layers.Dense(3, kernel_constraint=kp.ParsevalTightFrame())
    model = keras.Sequential([keras.Input((9, 9, 8)), layer, frame])
    layer.kernel.assign(rng.normal(size=layer.kernel.shape) / 8)
    before = [to_numpy(each) for each in model.weights]
    with pytest.raises(ValueError, match=r"Nothing was changed.*conv2d"):
        kp.tighten(model)
    for values, weight in zip(before, model.weights):
        np.testing.assert_array_equal(values, to_numpy(weight))


@pytest.mark.parametrize("strides, groups", [(2, 1), (1, 2)])
def test_a_constraint_that_does_not_fit_its_layer_is_noticed(strides, groups):
    layer = keras.layers.Conv2D(4, 3, **kp.tight_convolution(strides=strides, groups=groups))
    model = keras.Sequential([keras.Input((8, 8, 4)), layer])
    with pytest.warns(UserWarning, match="strides=|groups="):
        assert kp.tightness(model) > 1e-3
    assert any("Misread" in note and "conv2d" in note for note in kp.lipschitz_bound(model).notes)


def test_kernels_that_are_no_convolutions_are_noticed(recwarn):
    convolution = {"constraint": kp.ParsevalConvolution(), "initializer": kp.TightConvolution()}
    pointwise, depthwise = (
        {f"{part}_{kind}": value for kind, value in convolution.items()}
        for part in ("pointwise", "depthwise")
    )
    model = keras.Sequential([keras.Input((8, 3)), keras.layers.SeparableConv1D(4, 3, **pointwise)])
    assert kp.tightness(model) < 1e-5 and kp.lipschitz_bound(model).notes == ()
    assert not any("constraint sees a kernel" in str(each.message) for each in recwarn)
    model = keras.Sequential([keras.Input((8, 3)), keras.layers.DepthwiseConv1D(3, **depthwise)])
    with pytest.warns(UserWarning, match="kp.ParsevalTightFrame in its place"):
        assert kp.tightness(model) > 1e-3
    assert any("Misread" in note for note in kp.lipschitz_bound(model).notes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"strides": 0}, "strides"),
        ({"strides": (1, 1)}, "spatial axes"),
        ({"groups": 3}, "divide"),
        ({"groups": "depthwise"}, "ParsevalTightFrame"),
        ({"groups": 4}, "shifts"),
        ({"steps": 0}, "steps"),
        ({"beta": 0.7}, "beta"),
    ],
)
def test_bad_arguments(arguments, message):
    kernel = np.zeros((3, 1, 4), "float32")
    with pytest.raises((ValueError, TypeError), match=message):
        kp.ParsevalConvolution(**arguments)(kernel)


def test_matrices_are_refused():
    with pytest.raises(ValueError, match="ParsevalTightFrame"):
        kp.ParsevalConvolution()(np.eye(3, dtype="float32"))
    with pytest.raises(ValueError, match="ParsevalTightFrame"):
        kp.TightConvolution()((3, 3))


def small_convnet():
    inputs = keras.Input((8, 8, 4))
    x = keras.layers.Conv2D(6, 3, strides=2, padding="same", name="halve")(inputs)
    x = keras.layers.Conv2D(6, 3, groups=2, padding="same", name="grouped")(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
    x = keras.layers.Conv2DTranspose(4, 2, strides=2, name="double")(x)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))


def test_the_converter_fills_strides_and_groups_in():
    robust = kp.parseval(small_convnet(), convolutions="operator", init="random", verbose=0)
    kinds = {
        layer.name: type(constraint).__name__
        for layer in robust.layers
        for constraint in [getattr(layer, "kernel_constraint", None)]
    }
    assert kinds["halve"] == kinds["grouped"] == kinds["double"] == "ParsevalConvolution"
    assert isinstance(robust.get_layer("depthwise").depthwise_constraint, kp.ParsevalTightFrame)
    assert kp.tightness(robust, layers=["halve", "grouped", "double"]) < 1e-5
    rows = kp.parseval_plan(small_convnet(), convolutions="operator")
    assert [row["becomes"] for row in rows].count("ParsevalConvolution") == 3


def test_the_converter_says_what_it_did_not_reach(capsys):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 8)),
            keras.layers.Conv2D(8, 3, name="square"),
            keras.layers.Conv2D(2, 1),
        ]
    )
    kernel = np.random.default_rng(0).normal(size=(3, 3, 8, 8)) / 8
    model.get_layer("square").kernel.assign(kernel)
    kp.parseval(model, convolutions="operator")
    assert "square [" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="not tight"):
        kp.parseval(model, convolutions="operator", verbose=0)


@pytest.mark.parametrize("convolutions", ["kernel", "operator"])
def test_the_network_to_certify_has_constant_one(convolutions):
    model = kp.models.lipschitz_convnet(
        (4, 6), depth=1, units=8, input_shape=(8, 8, 2), classes=3, convolutions=convolutions
    )
    assert kp.lipschitz_bound(model).bound <= 1 + 1e-3


@pytest.mark.once
def test_each_size_of_the_image_has_a_depth_of_its_own():
    model = kp.models.lipschitz_convnet((4, 6), depth=(0, 2), units=8, input_shape=(8, 8, 2))
    convolutions = [each for each in model.layers if isinstance(each, keras.layers.Conv2D)]
    assert [each.kernel.shape for each in convolutions] == [
        *((2, 2, 2, 6), (3, 3, 6, 6), (3, 3, 6, 6), (2, 2, 6, 6))
    ]


@pytest.mark.once
def test_the_residual_network_has_constant_one():
    model = kp.models.wide_resnet(
        *(10, 1),
        input_shape=(8, 8, 3),
        convolutions="operator",
        normalization=None,
        activation="maxmin",
        std=1.0,
    )
    body = keras.Model(model.inputs, model.get_layer("logits").input)
    assert kp.lipschitz_bound(body).bound <= 1 + 1e-2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"widths": ()}, "widths"),
        ({"widths": (3,)}, "even"),
        ({"widths": (4, 4), "input_shape": (6, 6, 1)}, "multiples of 4"),
        ({"depth": -1}, "depth"),
        ({"depth": (1, 2)}, "one for each of the widths, here 3. Received: depth=\\(1, 2\\)"),
        ({"convolutions": "matrix"}, "convolutions"),
    ],
)
def test_bad_arguments_of_the_builder(arguments, message):
    with pytest.raises(ValueError, match=message):
        kp.models.lipschitz_convnet(**arguments)


def test_the_logger_tells_operators_from_kernels(rng):
    layer = keras.layers.Conv1D(4, 3, padding="same", **kp.tight_convolution(seed=1))
    model = keras.Sequential([keras.Input((6, 4)), layer])
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=JIT_COMPILE)
    loggers = [
        kp.SpectrumLogger(prefix=f"{name}_", convolutions=name) for name in ("kernel", "operator")
    ]
    x = rng.normal(size=(4, 6, 4))
    logs = model.fit(x, x, verbose=0, callbacks=loggers).history
    assert abs(logs["operator_spectrum_max"][0] - 1) < 1e-4
    assert abs(logs["operator_spectrum_min"][0] - 1) < 1e-4
    kernel = to_numpy(layer.kernel).reshape(-1, 4) * 3**0.5
    assert logs["kernel_spectrum_max"][0] == pytest.approx(np.linalg.norm(kernel, 2), rel=1e-4)
