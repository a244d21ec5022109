"""Steps in a form that is fast on one backend: the same as the formula that all others compile."""

import numpy as np
import pytest
from conftest import BACKEND, to_numpy
from keras import ops

from keras_parseval import _convolution_frames, _tight_frames
from keras_parseval._backend import add_product

torch_only = pytest.mark.skipif(BACKEND != "torch", reason="is compiled, and has one form alone")
# Of a matrix that is nearly a frame, and of others that are further and further off.
SIZES = [1e-3, 0.03, 0.1, 0.3, 1.0, 10.0, 1e3, 1e7, 1e15]


@torch_only
@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("scale", [1.0, 0.4])
@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12), (3, 6, 4), (2, 3, 4, 6)])
def test_full_steps(shape, scale, beta, rng, monkeypatch):
    frame = np.linalg.qr(rng.normal(size=(*shape[:-2], max(shape), max(shape))))[0]
    frame = scale * frame[..., : shape[-2], : shape[-1]]
    starts = [frame, 0 * frame, *(frame + size * rng.normal(size=shape) for size in SIZES)]
    for start in starts:
        start = ops.convert_to_tensor(start, "float32")
        found = _tight_frames.retract_and_measure(start, beta, scale)
        with monkeypatch.context() as patch:
            patch.setattr(_tight_frames, "retract_by_hand", lambda *arguments: None)
            wanted = _tight_frames.retract_and_measure(start, beta, scale)
        assert_same(found[0], wanted[0], like=start)
        np.testing.assert_allclose(to_numpy(found[1]), to_numpy(wanted[1]), rtol=1e-4, atol=1e-5)


@torch_only
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [(3, 3, 4, 4), (3, 2, 2, 8), (2, 3, 6, 4), (5, 4, 6)])
def test_steps_of_convolutions(shape, groups, rng, monkeypatch):
    for size in SIZES:
        kernel = ops.convert_to_tensor(size * rng.normal(size=shape), "float32")
        step = _convolution_frames.tight_convolution_step
        found = step(kernel, 0.5, groups=groups)
        with monkeypatch.context() as patch:
            patch.setattr(_convolution_frames, "excess_images_by_hand", lambda *arguments: None)
            wanted = step(kernel, 0.5, groups=groups)
        assert_same(found, wanted, like=kernel)


@pytest.mark.parametrize("shape", [(3, 5), (128, 4), (300, 7), (2, 130, 6)])
def test_thin_products_are_added(shape, rng):
    *groups, rows, columns = shape
    matrix, first, second = (
        rng.normal(size=(*groups, *each)).astype("float32")
        for each in ((rows, columns), (3, rows), (3, columns))
    )
    added = add_product(*(ops.convert_to_tensor(each) for each in (matrix, first, second)))
    wanted = matrix + np.swapaxes(first, -1, -2) @ second
    np.testing.assert_allclose(to_numpy(added), wanted, rtol=1e-4, atol=1e-5)


def assert_same(found, wanted, like):
    """Up to the rounding of numbers of this size."""
    size = float(np.abs(to_numpy(like)).max())
    np.testing.assert_allclose(
        to_numpy(found), to_numpy(wanted), rtol=1e-4, atol=1e-5 * size + 1e-6
    )
