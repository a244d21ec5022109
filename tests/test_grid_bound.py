"""The norm of convolutions from a grid of frequencies, beside that of materialised matrices."""

import itertools
import math
import os

import keras
import numpy as np
import pytest

import keras_parseval as kp
from keras_parseval.analysis import _grid_norm, _kernel_rules
from keras_parseval.analysis._grid_norm import grid_norm

L = keras.layers
# More for a long run: KERAS_PARSEVAL_KERNELS=500 python -m pytest -n 0 tests/test_grid_bound.py.
KERNELS = int(os.environ.get("KERAS_PARSEVAL_KERNELS", 30))


def circular_matrix(kernel, strides, size):
    """The matrix of a convolution of a torus, entry by entry; each side is a multiple of `size`."""
    spatial, (inputs, outputs) = kernel.shape[:-2], kernel.shape[-2:]
    sides = [size * stride for stride in strides]
    matrix = np.zeros((size,) * len(sides) + (outputs, *sides, inputs))
    for place in np.ndindex(*(size,) * len(sides)):
        for tap in np.ndindex(*spatial):
            seen = tuple(
                (p * stride + t) % side for p, stride, t, side in zip(place, strides, tap, sides)
            )
            matrix[(*place, slice(None), *seen)] += kernel[tap].T
    return matrix.reshape(outputs * size ** len(sides), -1)


def zero_padded_matrix(kernel, strides, sizes):
    """The matrix of a convolution of an image that is padded with zeros wherever a tap reaches."""
    spatial, (inputs, outputs) = kernel.shape[:-2], kernel.shape[-2:]
    starts = [range(1 - taps, size, s) for taps, size, s in zip(spatial, sizes, strides)]
    rows = []
    for start in itertools.product(*starts):
        row = np.zeros((outputs, *sizes, inputs))
        for tap in np.ndindex(*spatial):
            seen = tuple(s + t for s, t in zip(start, tap))
            if all(0 <= s < size for s, size in zip(seen, sizes)):
                row[(slice(None), *seen)] += kernel[tap].T
        rows.append(row.reshape(outputs, -1))
    return np.concatenate(rows)


def random_kernels(count):
    """Kernels of all ranks, even and odd, with strides and groups, of wide and narrow spectra."""
    rng = np.random.default_rng(0)
    for number in range(count):
        rank = 1 + number % 3
        largest = (6, 4, 3)[rank - 1]
        spatial = rng.integers(1, largest + 1, size=rank).tolist()
        strides = rng.integers(1, 4 - rank // 3, size=rank).tolist()
        inputs, outputs = rng.integers(1, 4, size=2).tolist()
        kernels = rng.normal(size=(int(rng.integers(1, 4)), *spatial, inputs, outputs))
        if number % 4 == 3:  # one large tap, so that the lowest eigenvalue matters
            kernels[(slice(None), *(0,) * rank)] += 4 * np.eye(inputs, outputs)
        yield kernels, strides


@pytest.mark.once
def test_the_bound_is_never_below_the_norm_of_the_matrix():
    """On a torus, and of an image in the zeros; and not far above the norm on the largest torus."""
    excesses = []
    for kernels, strides in random_kernels(KERNELS):
        rank = len(strides)
        bound, _ = grid_norm(kernels, strides)
        size = (24, 6, 4)[rank - 1]
        norms = [np.linalg.norm(circular_matrix(each, strides, size), 2) for each in kernels]
        assert max(norms) <= bound
        on_torus, exact = grid_norm(kernels, strides, [size * stride for stride in strides])
        assert max(norms) <= on_torus <= max(norms) * (1.001 if exact else 1.011)
        sizes = [5, 4, 3][:rank]
        padded = [np.linalg.norm(zero_padded_matrix(each, strides, sizes), 2) for each in kernels]
        assert max(padded) <= bound
        # Enough for the padding along each axis.
        room = [size + taps for size, taps in zip(sizes, kernels.shape[1:])]
        assert max(padded) <= grid_norm(kernels, strides, room)[0]
        if rank == 1:
            fine = [np.linalg.norm(circular_matrix(each, strides, 120), 2) for each in kernels]
            excesses.append(bound / max(fine) - 1)
    assert max(excesses) < 0.011


@pytest.mark.once
@pytest.mark.parametrize("strides", [(1,), (2,), (1, 1), (2, 1), (2, 2)])
def test_near_a_tight_convolution_it_is_within_1_percent(strides, rng):
    """Singular values in [0.95, 1.05]: a shift of the channels, and noise of that size."""
    rank, phases = len(strides), math.prod(strides)
    for outputs in (3, 3 * phases, 3 * phases + 2):
        kernel = np.zeros((*(3 if s == 1 else 4 for s in strides), 3, outputs))
        # The first window of the input, channel by channel, is a tight frame.
        window = np.linalg.svd(rng.normal(size=(3 * phases, outputs)), full_matrices=False)
        first = tuple(slice(0, stride) for stride in strides)
        kernel[first] = (window[0] @ window[2]).reshape(*strides, 3, outputs)
        noise = rng.normal(size=kernel.shape)
        size = (40, 9)[rank - 1]
        matrix = circular_matrix(noise, strides, size)
        kernel += 0.05 * noise / np.linalg.norm(matrix, 2)
        values = np.linalg.svd(circular_matrix(kernel, strides, size), compute_uv=False)
        nonzero = values[: math.prod([size] * rank) * min(outputs, 3 * phases)]
        assert 0.94 < nonzero.min() and nonzero.max() < 1.06
        bound, on_torus = grid_norm(kernel[None], strides)
        assert not on_torus
        assert values.max() <= bound <= 1.01 * values.max()


@pytest.mark.once
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_it_is_within_1_percent_of_the_torus_of_an_image(spread, strides, rng):
    """For images of 32 x 32, from flattened frames to kernels of normal numbers."""
    frame = np.linalg.qr(rng.normal(size=(9 * 8, 16)))[0]
    noise = rng.normal(size=frame.shape) / len(frame) ** 0.5
    kernel = ((1 - spread) * frame + spread * noise).reshape(3, 3, 8, 16) / 3
    # An exact decomposition at each frequency; all phases of the input meet at those of a stride.
    side = 36 // strides
    found = np.fft.fftn(kernel, (36, 36), axes=(0, 1))
    found = found.reshape(strides, side, strides, side, 8, 16).transpose(1, 3, 0, 2, 4, 5)
    exact = np.linalg.norm(found.reshape(side, side, -1, 16), 2, axis=(-2, -1)).max() / strides
    bound, _ = grid_norm(kernel[None], [strides, strides], [36, 36])
    assert exact * (1 - 1e-9) <= bound <= 1.01 * exact


@pytest.mark.once
def test_coarser_points_would_lie(monkeypatch):
    """The factor is needed: a polynomial whose peak lies between two points of a grid."""
    # |1 - exp(i w)|^2 is 4 at w = pi, which a grid of odd size does not have.
    kernel = np.array([1.0, -1.0]).reshape(1, 2, 1, 1)
    assert 2.0 <= grid_norm(kernel, [1])[0] <= 2.02
    monkeypatch.setattr(_grid_norm.math, "cos", lambda angle: 1.0)
    assert grid_norm(kernel, [1])[0] < 2.0


@pytest.mark.once
def test_one_tap_for_each_stride_is_exact(rng):
    kernels = rng.normal(size=(1, 2, 2, 3, 5))
    norm = np.linalg.norm(kernels.reshape(12, 5), 2)
    for strides in ([2, 2], [3, 4]):
        bound, on_torus = grid_norm(kernels, strides)
        assert on_torus and norm <= bound <= 1.001 * norm
    assert grid_norm(np.zeros((2, 3, 3, 1, 1)), [1, 1])[0] == 0.0


def one_layer(layer, shape, rng):
    model = keras.Sequential([keras.Input(shape), layer])
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


@pytest.mark.parametrize(
    "make, shape, larger",
    [
        (lambda: L.Conv2D(3, 3, padding="same"), (None, None, 2), (10, 10, 2)),
        (lambda: L.Conv1D(3, 4, strides=2), (None, 2), (41, 2)),
        (lambda: L.Conv1D(3, 3, dilation_rate=3, padding="causal"), (None, 2), (30, 2)),
        (lambda: L.Conv2D(4, 3, groups=2, dilation_rate=2), (None, None, 4), (13, 13, 4)),
        (lambda: L.DepthwiseConv2D(3, padding="same"), (None, None, 2), (10, 10, 2)),
        (lambda: L.SeparableConv2D(3, 3, padding="same"), (None, None, 2), (10, 10, 2)),
        (lambda: L.Conv1DTranspose(3, 4, 2, padding="same"), (None, 2), (20, 2)),
    ],
)
def test_images_of_any_size_have_the_bound_of_the_grid(make, shape, larger, rng):
    model = one_layer(make(), shape, rng)
    result = kp.lipschitz_bound(model)
    assert result.bound <= kp.lipschitz_bound(model, method="paper").bound
    assert "a grid of frequencies" in result.entries[0].rule
    sized = one_layer(make(), larger, rng)
    sized.set_weights(model.get_weights())
    exact = kp.lipschitz_bound(sized)
    assert exact.entries[0].rule == "norm of the operator"
    # A border takes a part of the norm; of two kernels, the bound is a product.
    assert exact.bound <= result.bound <= 1.5 * exact.bound


def test_the_smaller_of_torus_and_grid_is_taken(monkeypatch, rng):
    monkeypatch.setattr(_kernel_rules, "_SMALL", 0)
    rules = [
        kp.lipschitz_bound(one_layer(L.Conv2D(2, 3), (size, size, 2), rng)).entries[0].rule
        for size in (8, 60)
    ]
    assert rules == ["norm on the image's torus", "norm on a grid of frequencies"]


@pytest.mark.parametrize("taps", [[1.0, -1.0], [-1.0, 2.0, -1.0]])
def test_the_torus_has_room_for_the_padding(taps, monkeypatch):
    """Differences are largest for a sign that alternates, which an odd image has no place for."""
    monkeypatch.setattr(_kernel_rules, "_SMALL", 0)
    for layer in (
        L.Conv1D(1, len(taps), padding="same"),
        L.Conv1D(1, len(taps), padding="causal"),
        L.Conv1DTranspose(1, len(taps), padding="same"),
    ):
        model = keras.Sequential([keras.Input((3, 1)), layer])
        model.set_weights([np.reshape(taps, (-1, 1, 1)), np.zeros(1)])
        images = np.eye(3, dtype="float32")[..., None]
        norm = np.linalg.norm(keras.ops.convert_to_numpy(model(images))[..., 0], 2)
        circular = np.linalg.norm(circular_matrix(np.reshape(taps, (-1, 1, 1)), [1], 3), 2)
        result = kp.lipschitz_bound(model)
        assert circular < norm <= result.bound
