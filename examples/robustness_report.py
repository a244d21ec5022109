"""
Title: A robustness report
Description: One call writes a page that tells how robust a network is, to look at and to hand on.

Run it with `python examples/robustness_report.py`; two minutes on two cores. It writes a page for
each of two networks to `reports`. The environment variable `EPOCHS` makes it shorter.
"""

"""
## The two networks of the quickstart

One is plain. The other differs in the tight frames and the activation of its hidden layers.
"""

import os
from pathlib import Path

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
from data import load

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 30))
digits = load("digits")
(train_x, train_y), validation, test = digits.train_pixels(), digits.validation, digits.test


def digit_classifier(name, hidden, activation, classifier):
    layers = [keras.Input(digits.input_shape), keras.layers.Flatten()]
    for number in range(1, 5):
        layers.append(keras.layers.Dense(256, name=f"hidden{number}", **hidden))
        layers.append(activation())
    layers.append(keras.layers.Dense(10, name="classifier", **classifier))
    model = keras.Sequential(layers, name=name)
    rate = keras.optimizers.schedules.CosineDecay(0.1, epochs * digits.steps(64))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"jit_compile": keras.backend.backend() != "torch"}
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"], **options)
    options = {"batch_size": 64, "epochs": epochs, "verbose": 0, "validation_data": validation}
    model.fit(train_x, train_y, callbacks=[console.Progress(name)], **options)
    return model


keras.utils.set_random_seed(0)
decay = {"kernel_regularizer": keras.regularizers.L2(5e-3)}
models = [
    digit_classifier("plain", {}, keras.layers.ReLU, {}),
    digit_classifier("parseval", kp.tight_frame(beta=0.1, rows=1.0), kp.MaxMin, decay),
]

"""
## Two pages

Each page is one file that opens in any browser, without a network. The same is beside it as
JSON. `kp.tighten` moves weights exactly to their frames, as before every certificate.
"""

folder = Path("reports")
folder.mkdir(exist_ok=True)
sizes = (0.125, 0.25, 0.5, 0.75, 1.0, 1.25)
reports = {}
for model in models:
    kp.tighten(model)
    path = folder / f"{model.name}.html"
    reports[model.name] = kp.report(model, *test, path=path, epsilon=sizes, verbose=0)
    print(f"\n{reports[model.name]}\nWritten: {path}")

"""
## The claim, and what was measured
"""

plain, parseval = reports["plain"], reports["parseval"]
print(
    "\nClaim: half of the right answers of the Parseval network are certain to a larger size.\n"
    f"Measured: certified to {parseval.certified_to:.3f}, plain {plain.certified_to:.3f}; accuracy "
    f"{parseval.attacked.clean:.3f}, plain {plain.attacked.clean:.3f}."
)
