import os

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from conftest import compiled, singular_values, to_numpy
from hypothesis.extra import numpy as hnp
from keras import ops

import keras_parseval as kp
from keras_parseval._sampling import sample_units

# Compiling a new shape takes longer than hypothesis allows an example by default.
relaxed = hypothesis.settings(deadline=None, max_examples=60, derandomize=True)


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (3, 7, 4), (1, 9), (9, 1)])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_step_is_the_papers_formula(shape, scale, rng):
    start = scale * rng.normal(size=shape) / 8
    beta = 0.02
    gram = start @ np.swapaxes(start, -1, -2)
    expected = (1 + beta) * start - beta / scale**2 * gram @ start
    for orientation in (lambda x: x, lambda x: np.swapaxes(x, -1, -2)):
        step = kp.constraints.tight_frame_step(orientation(start).astype("float32"), beta, scale)
        np.testing.assert_allclose(to_numpy(step), orientation(expected), rtol=2e-6, atol=1e-8)


def test_safeguard_shortens_the_step_only_when_it_must(rng):
    for magnitude in (1e-3, 0.1, 1.0, 10.0, 1e3):
        start = (magnitude * rng.normal(size=(10, 16))).astype("float32")
        before = singular_values(start)
        left, _, right = np.linalg.svd(start.astype("float64"), full_matrices=False)
        after = np.diagonal(
            left.T @ to_numpy(kp.constraints.tight_frame_step(start, 0.5)) @ right.T
        )
        assert (after >= np.minimum(0.5 * before, 1.0) * (1 - 1e-4)).all()
        assert (after <= np.maximum(before, 1.0) * (1 + 1e-4)).all()


@pytest.mark.parametrize("size", [1e15, 1e18])
def test_large_kernels_stay_finite(size):
    start = np.array([[1, -2], [3, 1]], "float32") * np.float32(size)
    step = to_numpy(kp.constraints.tight_frame_step(start, 0.1))
    assert np.isfinite(step).all() and np.linalg.norm(step, 2) < np.linalg.norm(start, 2)


def test_zero_stays_zero():
    zero = np.zeros((3, 4), "float32")
    np.testing.assert_array_equal(to_numpy(kp.constraints.tight_frame_step(zero, 0.5)), zero)


@pytest.mark.parametrize("shape", [(10, 30), (30, 10)])
@pytest.mark.parametrize("unbiased", [False, True])
def test_sampled_step_is_the_formula_on_the_sample_and_nothing_elsewhere(shape, unbiased, rng):
    start = (rng.normal(size=shape) / 6).astype("float32")
    beta, count, units = 0.01, 4, 10
    step = to_numpy(kp.constraints.sampled_tight_frame_step(start, beta, count, unbiased=unbiased))
    rows_first = (lambda x: x) if shape[0] == units else np.transpose
    start, step = rows_first(start), rows_first(step)
    chosen = (step != start).any(axis=1)
    assert chosen.sum() == count
    np.testing.assert_array_equal(step[~chosen], start[~chosen])
    if unbiased:
        beta = beta * (10 * 9) / (4 * 3)
    sample = start[chosen].astype("float64")
    expected = (1 + beta) * sample - beta * sample @ sample.T @ sample
    np.testing.assert_allclose(step[chosen], expected, rtol=2e-6, atol=1e-8)


def test_every_pair_of_rows_meets_as_often_as_any_other(rng):
    """What makes `unbiased` right: uniform over pairs, on matrices that drift as in training."""
    units, count, draws = 12, 4, 4000
    sample = compiled(lambda matrix: sample_units(matrix, count, -2))
    matrix = rng.normal(size=(units, 20)).astype("float32") / 4
    together = np.zeros((units, units))
    for _ in range(draws):
        matrix += 1e-4 * rng.normal(size=matrix.shape).astype("float32")
        chosen = to_numpy(sample(ops.convert_to_tensor(matrix)))
        assert len(set(chosen.tolist())) == count
        together[np.ix_(chosen, chosen)] += 1
    expected = draws * count * (count - 1) / (units * (units - 1))
    pairs = together[np.triu_indices(units, 1)]
    # A chi-squared variable with 65 degrees of freedom exceeds 120 once in 30,000 times.
    assert ((pairs - expected) ** 2 / expected).sum() < 120
    np.testing.assert_allclose(np.diagonal(together), draws * count / units, rtol=0.15)


def test_sample_depends_on_every_part_of_the_matrix(rng):
    """A unit or an input that never changes must not freeze the sample."""
    matrix = rng.normal(size=(64, 100)).astype("float32") / 10
    for frozen in (np.s_[:60, :], np.s_[4:, :], np.s_[:, :95], np.s_[:, 5:]):
        drifting, samples = matrix.copy(), set()
        for _ in range(20):
            drift = 1e-5 * rng.normal(size=matrix.shape).astype("float32")
            drift[frozen] = 0
            drifting += drift
            samples.add(
                tuple(to_numpy(sample_units(ops.convert_to_tensor(drifting), 8, -2)).tolist())
            )
        assert len(samples) >= 15


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_samples_vary_for_half_precision(dtype, rng):
    samples = set()
    for _ in range(20):
        matrix = ops.cast(ops.cast(rng.normal(size=(32, 32)) / 6, dtype), "float32")
        samples.add(tuple(to_numpy(sample_units(matrix, 8, -2)).tolist()))
    assert len(samples) >= 19


def tightness(matrix):
    return np.linalg.norm(matrix @ matrix.T - np.eye(len(matrix))) / len(matrix) ** 0.5


@pytest.mark.once
def test_unbiased_sampling_is_as_tight_as_the_full_step():
    """The library's cheap mode, at one hundredth of the arithmetic."""
    units, updates = (512, 2000) if os.environ.get("KERAS_PARSEVAL_ALL") else (200, 2000)
    count = units // 10
    steps = {
        "full": lambda matrix: kp.constraints.tight_frame_step(matrix, 3e-4),
        "unbiased": lambda matrix: kp.constraints.sampled_tight_frame_step(
            matrix, 3e-4, count, unbiased=True
        ),
        "biased": lambda matrix: kp.constraints.sampled_tight_frame_step(matrix, 3e-4, count),
    }
    error = {}
    for name, step in steps.items():
        rng, step = np.random.default_rng(0), compiled(step)
        matrix = ops.convert_to_tensor(np.eye(units, dtype="float32"))
        for _ in range(updates):
            noise = rng.standard_normal((units, units), dtype="float32")
            matrix = step(matrix + ops.convert_to_tensor(noise * 5e-5))
        error[name] = tightness(to_numpy(matrix))
    print(f"tightness error after {updates} noisy updates at n={units}: {error}")
    assert abs(error["unbiased"] / error["full"] - 1) < 0.10
    assert error["biased"] > 1.3 * error["full"]


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (2, 4, 5), (5, 5)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_polar_projection_is_the_nearest_tight_frame(shape, scale, rng):
    matrix = rng.normal(size=shape).astype("float32")
    nearest = to_numpy(kp.constraints.project_tight_frame(matrix, scale))
    np.testing.assert_allclose(singular_values(nearest), scale, rtol=1e-5)
    distance = np.linalg.norm(nearest - matrix)
    for _ in range(200):
        left, _, right = np.linalg.svd(
            matrix + rng.normal() * rng.normal(size=shape), full_matrices=False
        )
        assert np.linalg.norm(scale * left @ right - matrix) >= distance - 1e-5


def test_polar_projection_is_where_the_steps_lead(rng):
    matrix = rng.normal(size=(8, 12)).astype("float32")
    walked = matrix
    for _ in range(100):
        walked = kp.constraints.tight_frame_step(walked, 0.5)
    nearest = to_numpy(kp.constraints.project_tight_frame(matrix))
    np.testing.assert_allclose(to_numpy(walked), nearest, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_projections_do_not_hide_broken_numbers(bad):
    batch = np.ones((2, 3, 4), "float32")
    batch[0, 1, 1] = bad
    frames, points = (
        to_numpy(kp.constraints.project_tight_frame(batch)),
        to_numpy(kp.constraints.project_simplex(batch)),
    )
    assert np.isnan(frames[0]).all() and np.isfinite(frames[1]).all()
    assert np.isnan(points[0, 1]).all() and np.isfinite(points[1]).all()
    step = to_numpy(kp.constraints.tight_frame_step(batch, 0.5))
    assert not np.isfinite(step[0]).any() and np.isfinite(step[1]).all()


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: kp.constraints.tight_frame_step(x, 0.7), ValueError, "`beta` must be"),
        (lambda x: kp.constraints.tight_frame_step(x, 0.5, scale=0), ValueError, "`scale` must be"),
        (lambda x: kp.constraints.tight_frame_step(x[0], 0.5), ValueError, "rank 2 or more"),
        (
            lambda x: kp.constraints.tight_frame_step(x.astype(int), 0.5),
            TypeError,
            "floating-point",
        ),
        (
            lambda x: kp.constraints.sampled_tight_frame_step(x, 0.5, 1),
            ValueError,
            "between 2 and 3",
        ),
        (
            lambda x: kp.constraints.sampled_tight_frame_step(x, 0.5, 4),
            ValueError,
            "between 2 and 3",
        ),
        (
            lambda x: kp.constraints.project_tight_frame(x, scale="auto"),
            TypeError,
            "`scale` must be",
        ),
        (
            lambda x: kp.constraints.project_simplex(x[:0], axis=0),
            ValueError,
            "at least one coefficient",
        ),
        (lambda x: kp.constraints.project_simplex(x, axis=5), ValueError, "rank 2"),
        (
            lambda x: kp.constraints.project_simplex(x, axis=None),
            TypeError,
            "an axis of the points",
        ),
        (lambda x: kp.constraints.tight_frame_step(x[:0], 0.5), ValueError, "must not be empty"),
        (lambda x: kp.constraints.project_simplex(x.astype(int)), TypeError, "floating-point"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((3, 4), "float32"))


def simplex_by_bisection(point):
    """The projection, from the one equation that defines its threshold."""
    point = np.asarray(point, dtype="float64")
    point = point - point.max()  # which changes nothing but the size of the numbers
    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(point - middle, 0).sum() > 1:
            low = middle
        else:
            high = middle
    return np.maximum(point - high, 0)


def assert_is_projection(point, projected):
    """Feasible, and the variational inequality of the nearest point holds."""
    point, projected = point.astype("float64"), projected.astype("float64")
    assert (projected >= 0).all()
    assert abs(projected.sum() - 1) < 1e-5
    # The inequality is linear, so if it holds at every vertex it holds on the whole simplex. It is
    # shift invariant as well; without the shift, 1e30 would drown it.
    residual = (point - point.max()) - projected
    slack = 1e-5 * max(1.0, -residual[projected > 0].min())
    assert (residual - residual @ projected <= slack).all()


large = float(np.float32(1e30))
finite = st.floats(-large, large, width=32)
ordinary = st.floats(-4, 4, width=32)


@relaxed
@hypothesis.given(st.lists(ordinary | finite, min_size=1, max_size=40))
def test_simplex_projection_is_the_nearest_point(values):
    point = np.array(values, dtype="float32")
    assert_is_projection(point, to_numpy(kp.constraints.project_simplex(point)))


@relaxed
@hypothesis.given(hnp.arrays("float32", st.integers(1, 30), elements=ordinary))
def test_simplex_projection_solves_the_defining_equation(point):
    projected = to_numpy(kp.constraints.project_simplex(point))
    np.testing.assert_allclose(projected, simplex_by_bisection(point), atol=2e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 100, 1000, 10_000])
@pytest.mark.parametrize(
    "kind", ["normal", "ties", "negative", "huge", "tiny", "one_far_above", "just_below"]
)
def test_simplex_projection_of_any_length(length, kind, rng):
    point = {
        "normal": rng.normal(size=length),
        "ties": np.repeat(rng.normal(), length),
        "negative": -np.abs(rng.normal(size=length)) - 5,
        "huge": 1e30 * rng.normal(size=length),
        "tiny": 1e-30 * rng.normal(size=length),
        "one_far_above": np.append(np.zeros(length - 1), 1e6),
        # All but one about a unit below the largest: the longest sums, of the hardest kind.
        "just_below": np.append(np.full(length - 1, 0.0), 1.0 - 1e-4),
    }[kind].astype("float32")
    projected = to_numpy(kp.constraints.project_simplex(point))
    assert_is_projection(point, projected)
    np.testing.assert_allclose(projected, simplex_by_bisection(point), atol=3e-6)


def test_simplex_points_are_fixed_points(rng):
    points = rng.dirichlet(np.ones(6), size=50).astype("float32")
    np.testing.assert_allclose(to_numpy(kp.constraints.project_simplex(points)), points, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_simplex_projects_each_point_of_a_batch_by_itself(axis, rng):
    batch = rng.normal(size=(4, 5, 6)).astype("float32")
    project = compiled(lambda x: kp.constraints.project_simplex(x, axis))
    projected = to_numpy(project(ops.convert_to_tensor(batch)))
    expected = np.apply_along_axis(simplex_by_bisection, axis, batch)
    np.testing.assert_allclose(projected, expected, atol=1e-6)


@relaxed
@hypothesis.given(
    hnp.arrays("float32", st.integers(1, 30), elements=ordinary), st.floats(0.0, 0.95)
)
def test_a_floor_leaves_the_nearest_point_above_it(point, floor):
    least = floor / len(point)
    low, high = point.min() - 2.0, point.max() + 1.0
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(point - tau, least).sum() > 1 else (low, tau)
    projected = to_numpy(kp.constraints.project_simplex(point, floor=floor))
    np.testing.assert_allclose(projected, np.maximum(point - high, least), atol=5e-6)


@pytest.mark.parametrize("floor", [-0.1, 1.0, float("nan")])
def test_impossible_floors_are_refused(floor):
    for function in (
        lambda: kp.constraints.project_simplex(np.ones(3, "float32"), floor=floor),
        lambda: kp.Simplex(floor=floor),
        lambda: kp.ConvexAdd(floor=floor),
    ):
        with pytest.raises(ValueError, match="`floor` must be a number in \\[0, 1\\)"):
            function()
