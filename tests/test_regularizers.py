import keras
import numpy as np
import pytest
from conftest import to_numpy
from keras import ops
from kernels_by_hand import CASES

import keras_parseval as kp


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_gradient_step_is_the_retraction(case, rng):
    """Plain gradient descent with rate 1 on the penalty alone, in Keras, is one step."""
    beta, arguments = 0.01, case.arguments
    start = (case.target * rng.normal(size=case.shape) / 4).astype("float32")
    regularizer = kp.TightFrameRegularizer(beta, **arguments)
    layer = case.build(regularizer=regularizer)
    case.kernel(layer).assign(start)
    model = keras.Sequential([keras.Input(case.input_shape), layer])
    # A loss of zero: the penalty is all there is to learn from.
    model.compile(keras.optimizers.SGD(1.0), loss=lambda y, p: 0.0 * ops.sum(p), jit_compile=False)
    inputs = np.zeros((1, *case.input_shape), "float32")
    model.fit(inputs, to_numpy(model(inputs)), epochs=1, verbose=0)
    expected = to_numpy(kp.ParsevalTightFrame(beta, **arguments)(start))
    after = to_numpy(case.kernel(layer))
    assert abs(after - start).max() > 1e-6
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_zero_on_the_frame_only(case, rng):
    regularizer = kp.TightFrameRegularizer(1.0, **case.arguments)
    frame = kp.TightFrame(**case.arguments)(case.shape)
    assert float(regularizer(frame)) < 1e-9
    assert float(regularizer(1.1 * frame)) > 1e-4


def test_half_precision_kernels_do_not_overflow(rng):
    kernel = ops.cast(100.0 * rng.normal(size=(64, 64)), "float16")
    assert np.isfinite(float(kp.TightFrameRegularizer(0.1)(kernel)))


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_weight_that_is_not_positive(beta):
    with pytest.raises(ValueError, match="`beta` must be a positive number"):
        kp.TightFrameRegularizer(beta)
