"""
Title: Convert a model that is trained already
Description: One line makes a Parseval network of a trained one, and a few epochs bring it back.

Run it with `python examples/convert_a_model.py`; about a minute on two cores. The environment
variable `EPOCHS` makes it shorter.
"""

"""
## A trained network

Any functional or Sequential model will do, from `keras.applications` too. This one is small.
"""

import os

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
from data import load

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 10))
digits = load("digits")
(train_x, train_y), validation, test = digits.train_pixels(), digits.validation, digits.test


def train(name, model, rate):
    schedule = keras.optimizers.schedules.CosineDecay(rate, epochs * digits.steps(32))
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    options = {"batch_size": 32, "epochs": epochs, "verbose": 0}
    callbacks = [console.Progress(name)]
    model.fit(train_x, train_y, validation_data=validation, callbacks=callbacks, **options)


inputs = keras.Input(digits.input_shape)
x = keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="stem")(inputs)
branch = keras.layers.DepthwiseConv2D(3, padding="same", activation="relu", name="mix")(x)
x = keras.layers.Add(name="sum")([x, branch])
x = keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="relu", name="down")(x)
x = keras.layers.Dense(64, "relu", name="head")(keras.layers.Flatten()(x))
decay = keras.regularizers.L2(5e-4)
model = keras.Model(inputs, keras.layers.Dense(10, kernel_regularizer=decay, name="logits")(x))
train("the plain network", model, 0.05)

"""
## One line

Kernels are moved to the nearest tight frame, each in its own way: the depthwise one channel by
channel, the one with strides to the scale that suits its strides. What was changed, and what was
left alone, is printed.
"""

robust = kp.parseval(model, beta=0.1)

"""
## A few epochs

Projection changes what the network computes. It takes some training to find the way back.
"""

converted = keras.models.clone_model(robust)
converted.set_weights(robust.get_weights())
train("the converted network", robust, 0.05)

"""
## The claim, and what was measured

After as much training again, the converted network withstands stronger attacks. It pays with some
of its accuracy on clean images.
"""

models = {"trained": model, "converted, trained": robust}
converted.compile(loss=model.loss, metrics=["accuracy"])
_, accuracy = converted.evaluate(*test, verbose=0)
print(f"\nAccuracy right after the conversion: {accuracy:.3f}\n")
attack, results = kp.IteratedFGSM(steps=20), {}
print(f"{'20-step attack, SNR (dB)':28}{'clean':>8}{20:>8}{15:>8}{'Lipschitz bound':>18}")
for name, each in models.items():
    result = kp.robust_accuracy(each, *test, snr=(20, 15), attack=attack, verbose=0)
    results[name] = [result.clean, *result.accuracies]
    values = "".join(f"{value:8.3f}" for value in results[name])
    print(f"{name:28}{values}{kp.lipschitz_bound(each).bound:18.1f}")

before, after = results.values()
print(
    "\nClaim: the converted network withstands stronger attacks, and pays with clean accuracy.\n"
    f"Measured: accuracy at 15 dB, 20 steps: {after[-1]:.3f}, before {before[-1]:.3f}; "
    f"clean {after[0]:.3f}, before {before[0]:.3f}."
)
