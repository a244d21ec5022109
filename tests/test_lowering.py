"""Everything compiles for a GPU, on a machine that has none."""

import re

import keras
import numpy as np
import pytest
from conftest import BACKEND
from keras import ops

import keras_parseval as kp

pytestmark = pytest.mark.skipif(
    BACKEND == "torch", reason="PyTorch runs these eagerly: there is nothing to lower"
)


def lower_for_gpu(function, *arrays):
    """The program that XLA makes of the function for a GPU, as text."""
    tensors = [ops.convert_to_tensor(array) for array in arrays]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(function, jit_compile=True)
        return compiled.experimental_get_compiler_ir(*tensors)(stage="hlo", platform_name="GPU")
    import jax

    return jax.jit(function).trace(*tensors).lower(lowering_platforms=("cuda",)).as_text()


def operations(text):
    """The names of all operations in a program, which must not leave the device."""
    # A call of a library for GPUs; one for processors, or of Python, would have another name.
    targets = re.findall(r'custom_call @(\w+)|custom_call_target="([^"]+)"', text)
    assert all("".join(target).startswith("cusolver") for target in targets), targets
    # In the dialect of JAX, and in the one of TensorFlow.
    names = re.findall(r"stablehlo\.(\w+)|[\])}] ([a-z][a-z-]*)\(", text)
    found = {(mlir or hlo).replace("_", "-") for mlir, hlo in names}
    assert not found & {"infeed", "outfeed", "send", "recv"}
    return {"dot" if name == "dot-general" else name for name in found}


@pytest.mark.parametrize(
    "function",
    [
        kp.ParsevalTightFrame(0.1),
        kp.ParsevalTightFrame(0.1, rows=0.3, unbiased=True, steps=2),
        kp.ParsevalTightFrame(0.1, rows=0.5, groups=4),
        kp.ParsevalTightFrame(0.1, groups="depthwise"),
        kp.ParsevalTightFrame(0.1, axes="...oi"),
        kp.TightFrameRegularizer(0.1),
    ],
    ids=lambda function: str(function.get_config()),
)
def test_functions_of_kernels(function, rng):
    kernel = rng.normal(size=(3, 3, 8, 16)).astype("float32")
    assert "dot" in operations(lower_for_gpu(lambda x: function(x), kernel))


@pytest.mark.parametrize("coefficients, sorts", [(16, False), (17, True)])
def test_the_projection_onto_the_simplex(coefficients, sorts, rng):
    points = rng.normal(size=(5, coefficients)).astype("float32")
    found = operations(lower_for_gpu(lambda x: kp.constraints.project_simplex(x), points))
    # Whether all is finite, a mean over what is positive, and a sum at least.
    assert {"is-finite", "divide", "reduce", "select"} <= found
    # A few coefficients are compared each with each.
    assert ("sort" in found) == sorts


def test_the_projection_onto_tight_frames(rng):
    matrix = rng.normal(size=(5, 20)).astype("float32")
    text = lower_for_gpu(lambda x: kp.constraints.project_tight_frame(x), matrix)
    found = operations(text)
    assert {"is-finite", "dot", "select"} <= found
    # The decomposition: of a library in JAX, and in TensorFlow a loop of rotations of its own.
    assert "while" in found if BACKEND == "tensorflow" else "cusolver_gesvd" in text


def parseval_network():
    frame = {"padding": "same", "kernel_initializer": kp.TightFrame()}
    sampled, full = kp.ParsevalTightFrame(0.1, rows=0.5), kp.ParsevalTightFrame(0.1)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, kernel_constraint=sampled, **frame)(inputs)
    branch = keras.layers.Conv2D(8, 3, kernel_constraint=full, **frame)(kp.MaxMin()(x))
    x = keras.layers.Flatten()(kp.ConvexAdd()([branch, x]))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    model.optimizer.build(model.trainable_variables)
    return model


def test_a_whole_training_step(rng):
    model = parseval_network()
    images, labels = rng.normal(size=(4, 8, 8, 3)).astype("float32"), np.array([0, 1, 2, 0])
    if BACKEND == "tensorflow":
        text = lower_for_gpu(tensorflow_step(model), images, labels, *model.get_weights())
    else:
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = [[variable.value for variable in group] for group in groups]
        flat = keras.tree.flatten(state)

        def step(images, labels, *flat):
            packed = keras.tree.pack_sequence_as(state, list(flat))
            return model.train_step(packed, (images, labels))

        text = lower_for_gpu(step, images, labels, *flat)
    found = operations(text)
    assert {"convolution", "dot"} <= found
    # See `_simplex._simplex_threshold` for what it would cost.
    assert "sort" not in found


def tensorflow_step(model):
    """A step of plain SGD and the constraints, of tensors alone: XLA's dump takes no variables."""
    import tensorflow as tf

    def step(images, labels, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, _ = model.stateless_call(list(weights), [], images, training=True)
            loss = model.loss(labels, logits)
        updated = [w - 0.1 * g for w, g in zip(weights, tape.gradient(loss, weights))]
        constraints = [variable.constraint for variable in model.trainable_variables]
        return [w if f is None else f(w) for f, w in zip(constraints, updated)]

    return step
