"""
Title: How to evaluate a defence
Description: Five mistakes that make a model look robust, and the suite that does not make them.

Run it with `python examples/evaluate_a_defence.py`; a minute or two on two cores. The environment
variable `EPOCHS` makes it shorter.
"""

"""
## A model and a "defence"

A small network for digits, trained plainly: nobody has made it robust. Then the same network with a
"defence" in front of it, which rounds the pixels to steps of 1/8. It is the same network on almost
the same pixels, so it should be about as easy to mislead.
"""

import os

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
from data import load

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 15))
digits = load("digits")
(train_x, train_y), (x, y) = digits.train_pixels(), digits.test
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
settings = {"loss": loss, "jit_compile": keras.backend.backend() != "torch"}

keras.utils.set_random_seed(0)
network = keras.Sequential(
    [
        keras.Input(digits.input_shape),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
network.compile(keras.optimizers.Adam(5e-3), metrics=["accuracy"], **settings)
callbacks = [console.Progress("the network")]
network.fit(train_x, train_y, batch_size=64, epochs=epochs, verbose=0, callbacks=callbacks)


class Round(keras.layers.Layer):
    def call(self, x):
        # With a faint ripple on top, so that there is a gradient, which leads nowhere.
        return keras.ops.round(8 * x) / 8 + 1e-4 * keras.ops.sin(100 * x)


defended = keras.Sequential([keras.Input(digits.input_shape), Round(), network])
defended.compile(**settings)


def left(model, attack, x=x):
    """What an attack of 0.1 leaves of the accuracy."""
    return kp.robust_accuracy(model, x, y, epsilon=0.1, attack=attack, verbose=0)


"""
## What is right

The worst case over a suite of attacks, with the true labels, within the bounds of pixels.
`kp.attacks.quick` is small; publish figures of `kp.attacks.standard`.
"""

suite = kp.attacks.quick(bounds=(0, 1))
truth = left(network, suite)
print(f"\n{truth}\n")
accuracies = {"the suite": truth.accuracies[0]}

"""
## Mistake 1: to trust masked gradients

The gradient of the "defence" leads nowhere. An attack that follows it finds little, and the model
looks robust. The part of the suite without gradients finds the rest, and the result says so.
"""

by_gradient = left(defended, kp.attacks.APGD(bounds=(0, 1))).accuracies[0]
by_suite = left(defended, suite)
accuracies["with the rounding layer: Auto-PGD alone"] = by_gradient
accuracies["with the rounding layer: the suite"] = by_suite.accuracies[0]

"""
## Mistake 2: to take one step

One step is the weakest of attacks, and not even a step of the best direction.
"""

accuracies["one step"] = left(network, kp.FGSM(bounds=(0, 1))).accuracies[0]

"""
## Mistake 3: to attack the predictions

An attack on the predicted labels puts some of the wrong predictions right. In evaluation the labels
must be the true ones, which is what `kp.robust_accuracy` does unless it is told otherwise.
"""

predicted = kp.FGSM(bounds=(0, 1), labels="predicted")
accuracies["one step, against predicted labels"] = left(network, predicted).accuracies[0]

"""
## Mistake 4: to leave out the bounds

Without bounds the attack makes pixels that are blacker than black, which no image has. The figure
is too low here. But clip such images afterwards, and it is too high.
"""

accuracies["the suite, without bounds"] = left(network, kp.attacks.quick(bounds=None)).accuracies[0]

"""
## Mistake 5: to take epsilon in other units

The same network, fed with normalised pixels. The 0.1 is now one of normalised units, only 0.04 of
a pixel's range. Normalise in the first layer of the model, and epsilon is always one of pixels.
"""

mean, deviation = train_x.mean(), train_x.std()
normalised = keras.Sequential(
    [keras.Input(digits.input_shape), keras.layers.Rescaling(deviation, mean), network]
)
normalised.compile(**settings)
other_units = kp.attacks.quick(bounds=(-mean / deviation, (1 - mean) / deviation))
accuracies["the suite, epsilon in normalised units"] = left(
    normalised, other_units, (x - mean) / deviation
).accuracies[0]

for name, accuracy in accuracies.items():
    print(f"{name:<44}{accuracy:7.3f}")
print()
for warning in by_suite.warnings:
    print(f"Of the rounding layer: {warning}")

print(
    "\nClaim: what a defence seems to gain under a gradient attack, the suite takes away.\n"
    f"Measured: with the rounding layer {by_gradient:.3f} by Auto-PGD alone, "
    f"{by_suite.accuracies[0]:.3f} by the suite; without it {truth.accuracies[0]:.3f}."
)
