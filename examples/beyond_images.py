"""
Title: Beyond images
Description: A robust classifier of table rows, and a Parseval transformer block for sequences.

Run it with `python examples/beyond_images.py`; about a minute on two cores. The environment
variable `EPOCHS` makes it shorter.
"""

"""
## A table

The 30 measurements of scikit-learn's breast cancer data, scaled to standard deviation 1. An error
of measurement is a perturbation like any other: how wrong may the measurements be before the
diagnosis changes? Some features cannot be wrong; a `mask` keeps them still.
"""

import os

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 30))
table = load_breast_cancer()
rows = ((table.data - table.data.mean(0)) / table.data.std(0)).astype("float32")
train_x, test_x, train_y, test_y = train_test_split(
    rows, table.target, test_size=0.3, random_state=0
)


def diagnosis(parseval):
    keras.utils.set_random_seed(0)
    options = kp.tight_frame(beta=0.1) if parseval else {}
    hidden = [keras.layers.Dense(64, "relu", **options) for _ in range(3)]
    decay = keras.regularizers.L2(5e-3)
    last = keras.layers.Dense(1, "sigmoid", kernel_regularizer=decay)
    model = keras.Sequential([keras.Input((30,)), *hidden, last])
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        "binary_crossentropy",
        jit_compile=keras.backend.backend() != "torch",
    )
    model.fit(
        train_x,
        train_y,
        batch_size=32,
        epochs=epochs,
        validation_data=(test_x, test_y),
        callbacks=[console.Progress("the Parseval table" if parseval else "the plain table")],
        verbose=0,
    )
    return model


tables = {"plain": diagnosis(False), "Parseval": diagnosis(True)}
mask = np.ones(30)
mask[:5] = 0  # these measurements are certain
attack = kp.IteratedFGSM(steps=20, mask=mask)
epsilons = (0.1, 0.3, 0.5)
print("Accuracy when 25 of 30 measurements are wrong by up to epsilon standard deviations")
for name, model in tables.items():
    result = kp.robust_accuracy(model, test_x, test_y, epsilon=epsilons, attack=attack, verbose=0)
    print(
        f"{name:10}" + "".join(f"{key:>9} {value:.3f}" for key, value in result.to_dict().items())
    )

"""
## A sequence

A transformer's block mixes positions and then channels. Attention has no Lipschitz constant; a
mixer of tight frames along either axis has, and its sums are convex. `EinsumDense` takes the
constraint as `Dense` does. The task: which of three tones is in a noisy signal of 64 samples.
"""

rng = np.random.default_rng(0)
tones = np.sin(np.outer([3, 5, 8], np.linspace(0, 2 * np.pi, 64)))
labels = rng.integers(0, 3, size=2000)
signals = tones[labels] + rng.normal(scale=1.0, size=(2000, 64))
signals = signals.reshape(2000, 16, 4).astype("float32")  # 16 positions of 4 samples


def mixer_block(x):
    positions, channels = x.shape[1:]
    along = keras.layers.EinsumDense("abc,bd->adc", (positions, channels), **kp.tight_frame())(x)
    x = kp.ConvexAdd()([kp.MaxMin()(along), x])
    across = keras.layers.EinsumDense("abc,cd->abd", (positions, channels), **kp.tight_frame())(x)
    return kp.ConvexAdd()([kp.MaxMin()(across), x])


keras.utils.set_random_seed(0)
inputs = keras.Input((16, 4))
x = keras.layers.EinsumDense("abc,cd->abd", (16, 32), **kp.tight_frame())(inputs)
x = mixer_block(mixer_block(x))
decay = keras.regularizers.L2(5e-3)
outputs = keras.layers.Dense(3, kernel_regularizer=decay)(keras.layers.Flatten()(x))
mixer = keras.Model(inputs, outputs)
mixer.compile(
    # A rate that falls to zero lets the frames settle.
    keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 30 * epochs), momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=keras.backend.backend() != "torch",
)
mixer.fit(
    signals[:1500],
    labels[:1500],
    batch_size=50,
    epochs=epochs,
    validation_data=(signals[1500:], labels[1500:]),
    callbacks=[console.Progress("the mixer")],
    verbose=0,
)

"""
## The claim, and what was measured

Up to its classifier the mixer amplifies nothing, and so its decisions on signals are certified.
"""

entries = kp.lipschitz_bound(mixer).entries
below = entries[-2].accumulated
result = kp.certified_accuracy(mixer, signals[1500:], labels[1500:], epsilon=(0.5, 1.0), verbose=0)
print(
    "\nClaim: the mixer is 1-Lipschitz up to its classifier, and most signals are certified.\n"
    f"Measured: constant {below:.3f}; accuracy {result.clean:.3f}, certified "
    f"{result.accuracies[0]:.3f} at 0.5, {result.accuracies[1]:.3f} at 1."
)
