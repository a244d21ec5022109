import keras
import numpy as np
import pytest
from conftest import singular_values, to_numpy
from kernels_by_hand import CASES

import keras_parseval as kp


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_starts_on_the_frame(case):
    kernel = kp.TightFrame(**case.arguments)(case.shape)
    for matrix in case.matrices(kernel):
        np.testing.assert_allclose(singular_values(matrix), case.target, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_constraint_leaves_it_alone(case):
    kernel = to_numpy(kp.TightFrame(**case.arguments)(case.shape))
    after = to_numpy(kp.ParsevalTightFrame(0.5, **case.arguments)(kernel))
    np.testing.assert_allclose(after, kernel, atol=1e-6)


@pytest.mark.once
def test_is_uniform_over_frames():
    """Every entry of a uniform orthogonal matrix has mean 0 and variance 1/n."""
    draw = kp.TightFrame(seed=keras.random.SeedGenerator(3))
    frames = np.stack([to_numpy(draw((3, 3))) for _ in range(1500)])
    assert abs(frames.mean(axis=0)).max() < 5 * (1 / 3 / 1500) ** 0.5
    np.testing.assert_allclose(frames.var(axis=0), 1 / 3, rtol=0.15)


def test_seed_follows_the_rules_of_keras():
    def draw(seed):
        return to_numpy(kp.TightFrame(seed=seed)((4, 6)))

    np.testing.assert_array_equal(draw(1), draw(1))
    assert (draw(1) != draw(2)).any()
    generator = keras.random.SeedGenerator(1)
    assert (draw(generator) != draw(generator)).any()
    for bad in ("one", 1.5, True):
        with pytest.raises(TypeError, match="`seed` must be an integer"):
            kp.TightFrame(seed=bad)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype(dtype):
    kernel = kp.TightFrame()((4, 6), dtype=dtype)
    assert keras.backend.standardize_dtype(kernel.dtype) == dtype


@pytest.mark.parametrize("shape", [(), (3,), (0, 3)])
def test_refuses_what_is_no_matrix(shape):
    with pytest.raises(ValueError, match="A kernel must"):
        kp.TightFrame()(shape)
