import subprocess
import sys
import textwrap

import keras
import numpy as np
from conftest import JIT_COMPILE

import keras_parseval as kp


def parseval_network():
    # All rows: a sample would follow from the last bits, which differ from process to process.
    constraint = kp.ParsevalTightFrame(0.1)
    inputs = keras.Input((8, 8, 3), name="inputs")
    x = keras.layers.Conv2D(
        8, 3, padding="same", kernel_constraint=constraint, kernel_initializer=kp.TightFrame()
    )(inputs)
    branch = keras.layers.Conv2D(
        8, 3, padding="same", kernel_regularizer=kp.TightFrameRegularizer(0.1)
    )(kp.MaxMin()(x))
    x = keras.layers.GlobalAveragePooling2D()(kp.ConvexAdd()([branch, x]))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=JIT_COMPILE)
    return model


def test_a_saved_model_loads_where_only_the_package_is_imported(tmp_path):
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(16, 8, 8, 3)).astype("float32"), rng.integers(0, 3, 16)
    model = parseval_network()
    model.fit(inputs, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "data.npz", inputs=inputs, labels=labels)
    program = """
        import keras, keras_parseval, numpy as np, sys
        model = keras.models.load_model(sys.argv[1] + "/model.keras")
        data = np.load(sys.argv[1] + "/data.npz")
        np.save(sys.argv[1] + "/outputs.npy", model.predict(data["inputs"], verbose=0))
        model.fit(data["inputs"], data["labels"], batch_size=16, shuffle=False, verbose=0)
        np.savez(sys.argv[1] + "/weights.npz", *model.get_weights())
        print(type(model.layers[1].kernel_constraint).__name__)
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "ParsevalTightFrame"
    outputs = np.load(tmp_path / "outputs.npy")
    np.testing.assert_allclose(outputs, model.predict(inputs, verbose=0), atol=1e-6)
    model.fit(inputs, labels, batch_size=16, shuffle=False, verbose=0)
    resumed = np.load(tmp_path / "weights.npz")
    for ours, theirs in zip(model.get_weights(), resumed.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_clone_model_keeps_everything():
    model = parseval_network()
    clone = keras.models.clone_model(model)
    for layer, twin in zip(model.layers, clone.layers, strict=True):
        assert layer.get_config() == twin.get_config()
    constrained = [v.constraint for v in clone.trainable_variables if v.constraint is not None]
    assert [type(each) for each in constrained] == [kp.ParsevalTightFrame, kp.Simplex]
