"""
Title: Certify and inspect
Description: Bounds that hold for every attack, set against the strongest attack at hand.

Run it with `python examples/certify_and_inspect.py`; about a minute on two cores. It writes
figures to `certify-figures`. The environment variable `EPOCHS` makes it shorter.
"""

"""
## Two trained networks
"""

import os
from pathlib import Path

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
import matplotlib
from data import load

import keras_parseval as kp

matplotlib.use("Agg")
epochs = int(os.environ.get("EPOCHS", 20))
digits = load("digits")
(train_x, train_y), validation, test = digits.train_pixels(), digits.validation, digits.test

models = {}
for variant in ("vanilla", "parseval"):
    keras.utils.set_random_seed(0)
    models[variant] = kp.models.fully_connected(
        hidden=3,
        units=128,
        input_shape=digits.input_shape,
        variant=variant,
        beta=0.1,
        rows=1.0,
        activation="maxmin",
        mean=0.0,
        std=1.0,
        weight_decay=2e-3,
    )
    rate = keras.optimizers.schedules.CosineDecay(0.05, epochs * digits.steps(64))
    models[variant].compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    callbacks = [console.Progress(variant)]
    options = {"batch_size": 64, "epochs": epochs, "verbose": 0, "callbacks": callbacks}
    models[variant].fit(train_x, train_y, validation_data=validation, **options)

"""
## The bound, layer by layer

Each hidden layer of the Parseval network has the constant 1. The classifier has the rest.
"""

print()
kp.lipschitz_report(models["parseval"])
bounds = {variant: kp.lipschitz_bound(model) for variant, model in models.items()}

"""
## Certificates

The margin between the first logit and the second, and the bound, give a radius for each image
within which no perturbation changes the decision. Between the certified accuracy and the accuracy
under attack lies the truth.
"""

epsilons = (0.05, 0.1, 0.2, 0.4)
attack = kp.attacks.PGD(steps=100, norm=2)
for variant, model in models.items():
    certified = kp.certified_accuracy(model, *test, epsilon=epsilons, verbose=0)
    attacked = kp.robust_accuracy(model, *test, epsilon=epsilons, attack=attack, verbose=0)
    print(f"\n{variant}, Lipschitz bound {bounds[variant].bound:.1f}")
    print(f"{'epsilon (2-norm)':>18}{'certified':>12}{'under attack':>14}")
    for epsilon, least, most in zip(epsilons, certified.accuracies, attacked.accuracies):
        print(f"{epsilon:18}{least:12.3f}{most:14.3f}")

"""
## How much of the network is used

The paper's covariance dimension: how many directions hold 99% of what a layer returns.
"""

layers = ["hidden1", "hidden2", "hidden3"]
dimensions = {}
for variant, model in models.items():
    dimensions[variant] = kp.analysis.covariance_dimension(
        model, train_x, train_y, layers=layers, verbose=0
    )
    print(f"\n{variant}\n{dimensions[variant]}")

folder = Path("certify-figures")
folder.mkdir(exist_ok=True)
for name, axes in {
    "bounds": kp.plots.bounds(bounds),
    "dimensions": kp.plots.dimensions(dimensions),
    "spectra": kp.plots.spectra(models),
}.items():
    axes.figure.savefig(folder / f"{name}.png", dpi=100)

"""
## The claim, and what was measured

An attack that stays within the certified radius of an image never changes the decision.
"""

model = models["parseval"]
x, _ = test
radius = kp.certified_radius(model, x, verbose=0)
x_adv = attack(model, x, epsilon=radius)
before, after = (model.predict(each, verbose=0).argmax(-1) for each in (x, x_adv))
print(
    f"\nClaim: no decision changes within its certified radius (mean {radius.mean():.3f}).\n"
    f"Measured: {(before != after).sum()} of {len(x)} changed under 100 steps."
)
