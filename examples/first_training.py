"""
Title: A first Parseval network
Description: A plain and a Parseval network learn handwritten digits. What differs?

Run it with `python examples/first_training.py`. It needs scikit-learn, for its bundled digits,
and takes about half a minute on two cores.
"""

"""
## Data

1,797 images of 8 x 8 pixels. Pixels go into the network as numbers in [0, 1], so that a change
of the input means a change of pixels.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_parseval as kp

digits = load_digits()
train_x, test_x, train_y, test_y = train_test_split(
    digits.data.astype("float32") / 16, digits.target, test_size=0.3, random_state=0
)

"""
## Two networks

They differ in two arguments of the hidden layers. `TightFrame` starts every kernel with all
singular values at 1, and `ParsevalTightFrame` draws them back to 1 after each update. The
classifier is free in both, and has weight decay: in a Parseval network, it is the classifier alone
that decides by how much the network may amplify its input.
"""


def digit_classifier(**hidden_options):
    hidden = [keras.layers.Dense(256, "relu", **hidden_options) for _ in range(4)]
    classifier = keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(5e-4))
    return keras.Sequential([keras.Input((64,)), *hidden, classifier])


keras.utils.set_random_seed(0)
models = {
    "plain": digit_classifier(),
    "Parseval": digit_classifier(
        kernel_initializer=kp.TightFrame(),
        kernel_constraint=kp.ParsevalTightFrame(beta=0.1),
    ),
}

"""
## Training

An ordinary `fit`: the constraint is applied inside the compiled training step.
"""

batch_size, epochs = 64, 40
for model in models.values():
    steps = epochs * -(-len(train_x) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(0.1, steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    model.fit(
        train_x,
        train_y,
        batch_size=batch_size,
        epochs=epochs,
        validation_data=(test_x, test_y),
        verbose=0,
    )

"""
## What was gained

The product of the layers' largest singular values bounds how far the logits can move when the
input moves by 1. The lower it is at the same accuracy, the further an adversary has to go.
"""


def singular_values(layer):
    return np.linalg.svd(keras.ops.convert_to_numpy(layer.kernel), compute_uv=False)


print(f"{'':10}{'accuracy':>10}{'hidden singular values':>26}{'Lipschitz bound':>18}")
for name, model in models.items():
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    spectra = [singular_values(layer) for layer in model.layers]
    hidden = np.concatenate(spectra[:-1])
    bound = np.prod([values.max() for values in spectra])
    extremes = f"{hidden.min():.3f} to {hidden.max():.3f}"
    print(f"{name:10}{accuracy:10.3f}{extremes:>26}{bound:18.1f}")

"""
What an adversary makes of it: the accuracy under attack, at several ratios of signal to noise. One
step of the fast gradient sign method flatters a network whose gradients mislead; twenty small
steps are the honest measure.
"""

levels = (33, 25, 20, 15)
attacks = {"one step": kp.FGSM, "20 steps": kp.IteratedFGSM(0, steps=20, labels="true")}
print("\n" + f"{'accuracy at SNR (dB)':24}" + "".join(f"{level:8}" for level in levels))
for name, model in models.items():
    for steps, attack in attacks.items():
        result = kp.robust_accuracy(model, test_x, test_y, snr=levels, attack=attack)
        accuracies = "".join(f"{accuracy:8.3f}" for accuracy in result.accuracies)
        print(f"{name + ', ' + steps:24}{accuracies}")
