import keras
import numpy as np
import pytest
from conftest import BACKEND, JIT_COMPILE, compiled, singular_values, to_numpy
from keras import ops
from kernels_by_hand import CASES

import keras_parseval as kp

FLOAT64 = pytest.param(
    "float64", marks=pytest.mark.skipif(BACKEND == "jax", reason="JAX has float64 off by default")
)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def spectra(case, kernel):
    """The singular values of each of the kernel's matrices, in descending order."""
    return np.array([singular_values(matrix) for matrix in case.matrices(kernel)])


@pytest.mark.parametrize("beta", [0.5, 0.05])
def test_every_kernel_reaches_the_frame(case, beta, rng):
    kernel = ops.convert_to_tensor(rng.normal(size=case.shape).astype("float32"))
    starts = [np.linalg.svd(matrix, full_matrices=False) for matrix in case.matrices(kernel)]
    step = compiled(kp.ParsevalTightFrame(beta, **case.arguments))
    for iteration in range(1000 if beta == 0.05 else 101):
        kernel = step(kernel)
        if iteration in (0, 1, 2, 5, 10, 30, 100, 999):
            for (left, before, right), matrix in zip(starts, case.matrices(kernel)):
                # Singular vectors stay, so this follows each singular value by itself.
                now = np.diagonal(left.T @ matrix @ right.T)
                assert (now <= np.maximum(before, case.target) + 1e-4).all()
    assert abs(spectra(case, kernel) - case.target).max() < 1e-3


def test_no_start_diverges(case, rng):
    step = compiled(kp.ParsevalTightFrame(0.5, **case.arguments))
    for magnitude in (1e-3, 1e-2, 0.1, 10.0, 100.0, 1e3):
        kernel = ops.convert_to_tensor(magnitude * rng.normal(size=case.shape).astype("float32"))
        ceiling = max(np.linalg.norm(to_numpy(kernel)), case.target * np.prod(case.shape) ** 0.5)
        for _ in range(60):
            kernel = step(kernel)
            assert np.linalg.norm(to_numpy(kernel)) <= 1.001 * ceiling
        assert abs(spectra(case, kernel) - case.target).max() < 1e-3


def test_one_step_moves_each_singular_value_by_the_formula(rng):
    start = rng.normal(size=(30, 20)).astype("float32") / 8
    before, beta = singular_values(start), 0.01
    after = singular_values(to_numpy(kp.ParsevalTightFrame(beta)(start)))
    np.testing.assert_allclose(after, before * (1 + beta - beta * before**2), rtol=1e-5)


def drift(rng, shape):
    return ops.convert_to_tensor(1e-6 * rng.normal(size=shape).astype("float32"))


@pytest.mark.once
@pytest.mark.parametrize("rows", [0.3, 16])
def test_tall_kernels_converge_when_sampled(rows, rng):
    step = compiled(kp.ParsevalTightFrame(0.5, rows=rows))
    for shape in [(64, 128), (128, 64)]:
        kernel = ops.convert_to_tensor(rng.normal(size=shape).astype("float32") / 8)
        for _ in range(1000):
            # As in training, the weights never stand still: no sample is drawn for ever.
            kernel = step(kernel + drift(rng, shape))
        assert abs(singular_values(to_numpy(kernel)) - 1).max() < 1e-3


@pytest.mark.once
@pytest.mark.parametrize("name", ["conv2d_grouped", "depthwise2d", "conv2d_transposed"])
def test_sampling_respects_groups_and_axis(name, rng):
    case = next(case for case in CASES if case.name == name)
    step = compiled(kp.ParsevalTightFrame(0.5, rows=0.7, **case.arguments))
    kernel = ops.convert_to_tensor(rng.normal(size=case.shape).astype("float32"))
    for _ in range(1000):
        kernel = step(kernel + drift(rng, case.shape))
    assert abs(spectra(case, kernel) - case.target).max() < 1e-3


def in_few_directions(matrix, beta, directions, scale=1.0):
    """`W - beta Q Q^T E W`, written down for a wide matrix and orthonormal columns `Q`."""
    excess = matrix @ matrix.T / scale**2 - np.eye(len(matrix))
    return matrix - beta * directions @ directions.T @ excess @ matrix


@pytest.mark.parametrize("transposed", [False, True])
def test_a_step_in_few_directions_corrects_those_that_drifted(transposed, rng):
    frame = np.linalg.qr(rng.normal(size=(60, 40)))[0].T
    left, right = np.linalg.qr(rng.normal(size=(40, 3)))[0], rng.normal(size=(3, 60)) / 60
    matrix = 2 * (frame + left @ right)
    # What has left the frame lies in six directions: three of `left`, and their images.
    directions = np.linalg.svd(matrix @ matrix.T / 4 - np.eye(40))[0][:, :6]
    expected = in_few_directions(matrix, 0.3, directions, 2.0)
    given = (matrix.T if transposed else matrix).astype("float32")
    moved = to_numpy(kp.constraints.subspace_tight_frame_step(given, 0.3, 8, scale=2.0))
    np.testing.assert_allclose(moved.T if transposed else moved, expected, atol=1e-4)


def test_by_default_convolutions_and_narrow_kernels_are_held_in_full(rng):
    for shape in [(40, 4000), (260, 256), (1, 1, 300, 280)]:
        kernel = rng.normal(size=shape).astype("float32") / 20
        for beta in (0.5, 0.1):
            auto, full = (kp.ParsevalTightFrame(beta, rows=rows) for rows in ("auto", 1.0))
            np.testing.assert_array_equal(to_numpy(auto(kernel)), to_numpy(full(kernel)))


@pytest.mark.parametrize("shape", [(270, 300), (300, 270), (2, 270, 300)])
def test_by_default_wide_kernels_are_held_at_few_updates(shape, rng):
    axes = {"axes": "gio"} if len(shape) == 3 else {}
    step = compiled(kp.ParsevalTightFrame(**axes))
    kernel, moved = to_numpy(kp.TightFrame(**axes, seed=1)(shape)), 0
    directions = rng.normal(size=(*shape[:-1], 4)), rng.normal(size=(*shape[:-2], 4, shape[-1]))
    for rate in np.linspace(1e-4, 0, 320):
        # As from a gradient: the same few directions, by other amounts.
        drift = (directions[0] * rng.normal(size=4)) @ directions[1]
        noisy = (kernel + rate * drift).astype("float32")
        kernel = to_numpy(step(noisy))
        moved += (kernel != noisy).any()
    # One of 16, or of eight, for some directions, and one of 33, for so few units, for all.
    assert 15 <= moved <= 70
    values = np.linalg.svd(kernel.astype("float64"), compute_uv=False)
    assert values.min() > 0.95 and values.max() < 1.05


@pytest.mark.once
def test_by_default_wide_kernels_are_corrected_in_all_directions_now_and_then(rng):
    """At one of 33 updates, for 264 units, and in no more than 64 directions at some others."""
    frame, ranks = to_numpy(kp.TightFrame(seed=1)((264, 264))), []
    for _ in range(300):
        noisy = frame + 1e-3 * rng.normal(size=frame.shape).astype("float32")
        move = to_numpy(kp.ParsevalTightFrame()(noisy)) - noisy
        if move.any():
            ranks.append(np.linalg.matrix_rank(move, tol=1e-3 * np.linalg.norm(move, 2)))
    in_full = np.greater(ranks, 200)
    assert 2 <= in_full.sum() <= 25
    assert max(np.extract(~in_full, ranks)) == 64


def test_by_default_wide_kernels_reach_the_frame(rng):
    step = compiled(kp.ParsevalTightFrame())
    for scale in (1e-2, 1.0, 1e3):
        kernel = ops.convert_to_tensor(scale * rng.normal(size=(260, 300)) / 17, "float32")
        for _ in range(800):
            kernel = step(kernel + drift(rng, kernel.shape))
        assert abs(singular_values(to_numpy(kernel)) - 1).max() < 0.02, scale


def test_several_steps_are_several_calls(rng):
    kernel = rng.normal(size=(12, 20)).astype("float32")
    one, three = kp.ParsevalTightFrame(0.2, rows=0.5), kp.ParsevalTightFrame(0.2, rows=0.5, steps=3)
    np.testing.assert_array_equal(to_numpy(three(kernel)), to_numpy(one(one(one(kernel)))))


def layer_operator_norm(layer, input_shape):
    """The largest singular value of the linear map that the layer really computes."""
    size = int(np.prod(input_shape))
    basis = np.eye(size, dtype="float32").reshape(size, *input_shape)
    return singular_values(to_numpy(layer(basis)).reshape(size, -1)).max()


def test_the_layer_is_one_lipschitz(case):
    """The definition that all of this is for, on the layer itself."""
    if case.name == "separable_pointwise":
        pytest.skip("its layer also applies the depthwise kernel, which the other case covers")
    layer = case.build(initializer=kp.TightFrame(**case.arguments))
    if case.name == "separable_depthwise":
        identity = np.eye(*layer.pointwise_kernel.shape[-2:], dtype="float32")
        layer.pointwise_kernel.assign(identity[None, None])
    norm = layer_operator_norm(layer, case.input_shape)
    assert norm <= 1 + 1e-4
    assert norm > 0.3  # and not by doing nothing


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
@pytest.mark.parametrize("rows", [1.0, 0.5])
def test_kernels_keep_their_dtype(dtype, rows, rng):
    kernel = ops.cast(rng.normal(size=(16, 24)) / 4, dtype)
    step = kp.ParsevalTightFrame(0.5, rows=rows)
    for _ in range(3 if rows == 0.5 else 30):
        kernel = step(kernel)
    assert keras.backend.standardize_dtype(kernel.dtype) == dtype
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    if rows == 1.0:
        # NumPy has no bfloat16.
        kernel = kernel if dtype == "float64" else ops.cast(kernel, "float32")
        assert abs(singular_values(to_numpy(kernel)) - 1).max() < tolerance


def sparse_problem(rng):
    inputs = rng.normal(size=(400, 20)).astype("float32")
    inputs[:, :5] = 0.0  # features that never carry a signal, as at the border of images
    return inputs, rng.integers(0, 3, size=400)


def fit_sampled(rng_seed=0, **options):
    keras.utils.set_random_seed(7)
    inputs, labels = sparse_problem(np.random.default_rng(rng_seed))
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(40, "relu", kernel_constraint=kp.ParsevalTightFrame(0.5, **options)),
            keras.layers.Dense(40, "relu", kernel_constraint=kp.ParsevalTightFrame(0.5, **options)),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Learning so slow that only the constraint can be seen.
    model.compile(keras.optimizers.SGD(1e-9), loss, jit_compile=JIT_COMPILE)
    before = to_numpy(model.layers[1].kernel).copy()
    model.fit(inputs, labels, batch_size=8, epochs=1, verbose=0)  # 50 steps
    return model, before


def test_sampling_reaches_every_unit_in_a_compiled_fit():
    model, before = fit_sampled(rows=0.1)
    moved = abs(to_numpy(model.layers[1].kernel) - before).max(axis=0)
    assert (moved > 1e-5).all()


def test_two_identical_runs_end_in_identical_weights():
    first, _ = fit_sampled(rows=0.1)
    second, _ = fit_sampled(rows=0.1)
    for left, right in zip(first.get_weights(), second.get_weights()):
        np.testing.assert_array_equal(left, right)


def test_fit_keeps_every_kind_of_kernel_tight(case, rng):
    """Constraints that silently do nothing have happened in Keras: look after `fit`."""
    constraint = kp.ParsevalTightFrame(0.5, **case.arguments)
    layer = case.build(constraint=constraint, initializer=kp.TightFrame(**case.arguments))
    model = keras.Sequential([keras.Input(case.input_shape), layer, keras.layers.Flatten()])
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=JIT_COMPILE)
    before = to_numpy(case.kernel(layer)).copy()
    inputs = rng.normal(size=(32, *case.input_shape)).astype("float32")
    targets = rng.normal(size=(32, *model.output_shape[1:])).astype("float32")
    model.fit(inputs, targets, batch_size=8, epochs=2, verbose=0)
    assert abs(to_numpy(case.kernel(layer)) - before).max() > 1e-6
    assert abs(spectra(case, case.kernel(layer)) - case.target).max() < 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1.0, 0.5])
def test_broken_weights_stay_broken(bad, rows, rng):
    kernel = rng.normal(size=(16, 12)).astype("float32")
    kernel[3, :] = bad
    after = to_numpy(kp.ParsevalTightFrame(0.5, rows=rows)(kernel))
    assert not np.isfinite(after).all(axis=0).any()


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"beta": 0.0}, ValueError),
        ({"beta": -0.1}, ValueError),
        ({"beta": 0.6}, ValueError),
        ({"beta": float("nan")}, ValueError),
        ({"beta": "0.1"}, TypeError),
        ({"beta": None}, TypeError),
        ({"beta": True}, TypeError),
        ({"rows": 0}, ValueError),
        ({"rows": 0.0}, ValueError),
        ({"rows": -3}, ValueError),
        ({"rows": -0.3}, ValueError),
        ({"rows": 1}, ValueError),
        ({"rows": 1.5}, ValueError),
        ({"rows": float("nan")}, ValueError),
        ({"rows": "all"}, TypeError),
        ({"rows": True}, TypeError),
        ({"unbiased": 1}, TypeError),
        ({"steps": 0}, ValueError),
        ({"steps": 1.0}, TypeError),
        ({"scale": "automatic"}, ValueError),
        ({"scale": 0.0}, ValueError),
        ({"scale": -1}, ValueError),
        ({"scale": float("inf")}, ValueError),
        ({"scale": None}, TypeError),
        ({"groups": 0}, ValueError),
        ({"groups": 2.0}, TypeError),
        ({"groups": "all"}, ValueError),
        ({"axes": -2}, TypeError),
        ({"axes": "...ik"}, ValueError),
        ({"axes": "iii"}, ValueError),
        ({"axes": "ggo"}, ValueError),
        ({"axes": "..io"}, ValueError),
        ({"axes": "...i...o"}, ValueError),
        ({"heads": 8}, TypeError),
        ({"heads": (8,)}, ValueError),
        ({"heads": ()}, ValueError),
        ({"heads": (8, 0)}, ValueError),
        ({"heads": [(8, 64), (8, 64.0)]}, TypeError),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(arguments, error):
    name = list(arguments)[-1]
    with pytest.raises(error, match=f"`{name}` must be .*Received: {name}="):
        kp.ParsevalTightFrame(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"groups": "depthwise", "axes": "...oi"},
        {"heads": (4, 3), "axes": "ioo"},
        {"heads": (4, 3), "groups": 2},
    ],
    ids=str,
)
def test_arguments_that_contradict_each_other_are_refused(arguments):
    with pytest.raises(ValueError, match="Received: "):
        kp.ParsevalTightFrame(**arguments)


@pytest.mark.parametrize(
    "arguments, kernel, error, message",
    [
        ({}, np.float32(1.0), ValueError, "rank 2 or more"),
        ({}, np.ones(4, "float32"), ValueError, "rank 2 or more"),
        ({}, np.ones((0, 4), "float32"), ValueError, "must not be empty"),
        ({}, np.ones((3, 4), "int32"), TypeError, "floating-point"),
        ({"groups": "depthwise"}, np.ones((3, 4), "float32"), ValueError, "rank 3 or more"),
        ({"groups": 3}, np.ones((3, 3, 2, 8), "float32"), ValueError, "must divide"),
        ({"groups": 8}, np.ones((3, 3, 8, 1), "float32"), ValueError, 'groups="depthwise"'),
        ({"axes": "ioo"}, np.ones((4, 4), "float32"), ValueError, "letter for each of the 2 axes"),
        ({"axes": "...ioo"}, np.ones((4, 4), "float32"), ValueError, "rank 3 or more"),
        ({"heads": (4, 3)}, np.ones((9, 3, 4), "float32"), ValueError, "must have the shape"),
        ({"heads": (4, 4)}, np.ones((4, 4, 4), "float32"), ValueError, "and not both"),
        ({"heads": (4, 3)}, np.ones((4, 3), "float32"), ValueError, "must have the shape"),
        ({"rows": 9}, np.ones((20, 8), "float32"), ValueError, "must not exceed .* 8"),
        ({"rows": 9}, np.ones((8, 20), "float32"), ValueError, "must not exceed .* 8"),
    ],
    ids=str,
)
def test_bad_kernels_are_refused(arguments, kernel, error, message):
    with pytest.raises(error, match=message):
        kp.ParsevalTightFrame(**arguments)(kernel)


def test_numpy_numbers_are_numbers():
    constraint = kp.ParsevalTightFrame(np.float32(0.25), rows=np.int64(4), steps=np.int32(2))
    assert constraint.get_config()["beta"] == 0.25
    assert kp.ParsevalTightFrame(rows=np.float64(0.5)).rows == 0.5
    assert kp.ParsevalTightFrame(rows=np.float32(0.5)).rows == 0.5


def test_a_small_fraction_still_draws_a_pair(rng):
    kernel = rng.normal(size=(30, 10)).astype("float32")
    after = to_numpy(kp.ParsevalTightFrame(0.5, rows=0.01)(kernel))
    assert ((after != kernel).any(axis=0)).sum() == 2


def test_simplex_is_the_projection_along_its_axis(rng):
    points = rng.normal(size=(3, 5)).astype("float32")
    for axis in (0, 1, -1):
        projected = to_numpy(kp.Simplex(axis)(points))
        np.testing.assert_array_equal(
            projected, to_numpy(kp.constraints.project_simplex(points, axis))
        )
        np.testing.assert_allclose(projected.sum(axis), 1, rtol=1e-6)


def test_simplex_refuses_an_axis_that_is_not_there():
    with pytest.raises(TypeError, match="`axis` must be an integer"):
        kp.Simplex(axis=0.5)
    with pytest.raises(ValueError, match="`axis` must be an axis of the points"):
        kp.Simplex(axis=2)(np.ones((3, 4), "float32"))


@pytest.mark.parametrize(
    "argument, instance, message",
    [
        ("kernel_regularizer", kp.ParsevalTightFrame(), "must be passed as a constraint"),
        ("kernel_regularizer", kp.Simplex(), "must be passed as a constraint"),
        ("kernel_constraint", kp.TightFrameRegularizer(0.1), "must be passed as a regularizer"),
        ("kernel_constraint", kp.TightFrame(), "must be called with a shape"),
    ],
)
def test_objects_in_the_wrong_place_are_refused(argument, instance, message):
    layer = keras.layers.Dense(4, **{argument: instance})
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    with pytest.raises(TypeError, match=message):
        model.fit(x, x, verbose=0)


def test_both_arguments_in_one_call_read_the_kernel_alike():
    arguments = kp.tight_frame("depthwise", beta=0.5, steps=2, groups="depthwise", seed=3)
    constraint, initializer = arguments.values()
    assert list(arguments) == ["depthwise_constraint", "depthwise_initializer"]
    assert (constraint.beta, constraint.steps, initializer.seed) == (0.5, 2, 3)
    assert constraint.layout.get_config() == initializer.layout.get_config()
    with pytest.raises(TypeError, match="rate"):
        kp.tight_frame(rate=0.1)
    with pytest.raises(ValueError, match="`prefix` must be"):
        kp.tight_frame("kernels")
