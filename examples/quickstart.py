"""
Title: Quickstart: what a Parseval network gains
Description: Plain, weight-decayed and Parseval networks learn handwritten digits, and are attacked.

Run it with `python examples/quickstart.py`. It needs scikit-learn, for its bundled digits, and
matplotlib, and takes a few minutes on two cores. It writes its figures to `quickstart-figures`.
The environment variables `SEEDS` and `EPOCHS` make it shorter, or longer.
"""

"""
## Data

1,797 images of 8 x 8 pixels. Pixels go into the network as numbers in [0, 1], so that a change
of the input means a change of pixels.
"""

import os
from pathlib import Path

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_parseval as kp

matplotlib.use("Agg")
seeds, epochs = int(os.environ.get("SEEDS", 3)), int(os.environ.get("EPOCHS", 30))
batch_size = 64

digits = load_digits()
train_x, test_x, train_y, test_y = train_test_split(
    digits.images[..., None].astype("float32") / 16, digits.target, test_size=0.3, random_state=0
)

"""
## Networks

Four hidden layers each. A Parseval network differs in two arguments and an activation:
`TightFrame` starts every kernel with all singular values at 1, `ParsevalTightFrame` draws them
back to 1 after each update (`kp.tight_frame()` gives a layer both), and `MaxMin` loses nothing of
what they keep. The classifier is free, and has weight decay: it alone decides by how much a
Parseval network may amplify its input.
"""


def digit_classifier(parseval, weight_decay):
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten()]
    decay = {"kernel_regularizer": keras.regularizers.L2(weight_decay)}
    for number in range(1, 5):
        options = kp.tight_frame(beta=0.1, rows=1.0) if parseval else decay
        layers.append(keras.layers.Dense(256, name=f"hidden{number}", **options))
        layers.append(kp.MaxMin() if parseval else keras.layers.ReLU())
    layers.append(keras.layers.Dense(10, name="classifier", **decay))
    return keras.Sequential(layers)


"""
## Training

An ordinary `fit`: the constraint is applied inside the compiled training step, and the callback
`AdversarialTraining` puts its attack into the same step. Plain networks are given three weight
decays to choose from, on the test images, in favour of the baseline. The learning rate, 0.1, was
the best of 0.02, 0.05 and 0.1 for either kind of network, and 5e-3 the best of three decays of the
classifier for Parseval, on 30% of the training images, held out.
"""


def compiled_classifier(parseval, weight_decay):
    model = digit_classifier(parseval, weight_decay)
    steps = epochs * -(-len(train_x) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(0.1, steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() != "torch",
    )
    model.optimizer.build(model.trainable_variables)
    return model


def train(variant, model, adversarial, seed):
    # The model of a variant starts anew for each seed, and so it is compiled only once.
    keras.utils.set_random_seed(seed)
    model.set_weights(keras.models.clone_model(model).get_weights())
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.zeros_like(variable))
    progress = console.Progress(f"{variant}, seed {seed + 1} of {seeds}", summary=False)
    attack = kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), stddev=0.1)
    model.fit(
        train_x,
        train_y,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=[progress, attack] if adversarial else [progress],
        verbose=0,
    )


variants = {
    "SGD": (False, 0.0, False),
    "weight decay 5e-4": (False, 5e-4, False),
    "weight decay 2e-3": (False, 2e-3, False),
    "weight decay 5e-3": (False, 5e-3, False),
    "Parseval": (True, 5e-3, False),
    "SGD, adversarial": (False, 0.0, True),
    "Parseval, adversarial": (True, 5e-3, True),
}

"""
## Under attack

The accuracy under attack, at several ratios of signal to noise. Twenty steps that raise the
cross-entropy flatter some networks more than others. Auto-PGD, which aims at each other class in
turn, is the honest measure.
"""

levels = (33, 25, 20, 15)
many_steps = kp.IteratedFGSM(steps=20)
auto_pgd = kp.attacks.APGD(steps=50, loss="dlr", targets=9)


def accuracies(model, attack):
    result = kp.robust_accuracy(
        model, test_x, test_y, snr=levels, attack=attack, batch_size=len(test_x), verbose=0
    )
    return [result.clean, *result.accuracies]


print(f"Accuracy in %, mean of {seeds} seeds; under attack at several SNRs (dB)\n")
heading = "".join(f"{level:>7}" for level in levels)
print(f"{'':24}{'':>14}{'20 steps':^28}{'Auto-PGD':^28}")
print(f"{'':24}{'clean':>14}{heading}{heading}")
models, figures = {}, {}
for variant, (parseval, weight_decay, adversarial) in variants.items():
    model, many, worst = compiled_classifier(parseval, weight_decay), [], []
    for seed in range(seeds):
        train(variant, model, adversarial, seed)
        many.append(accuracies(model, many_steps))
        worst.append(accuracies(model, auto_pgd))
    many, worst = 100 * np.array(many), 100 * np.array(worst)
    models[variant], figures[variant] = model, worst
    clean = f"{worst[:, 0].mean():.1f} +- {worst[:, 0].std():.1f}"
    values = "".join(f"{value:7.1f}" for value in [*many[:, 1:].mean(0), *worst[:, 1:].mean(0)])
    print(f"{variant:24}{clean:>14}{values}", flush=True)

"""
## Why: the Lipschitz constant

The bound says how far the logits can move when the input moves by 1. The lower it is at the same
accuracy, the further an adversary has to go, and the larger is the distance at which no adversary,
of whatever kind, can succeed: the certified accuracy.
"""

print()
kp.lipschitz_report(models["Parseval"])
bounds = {variant: kp.lipschitz_bound(model) for variant, model in models.items()}
epsilons = (0.1, 0.2, 0.3)
print("\nCertified accuracy in %, for perturbations of 2-norm epsilon (an image has about 5)\n")
print(f"{'':24}{'Lipschitz bound':>16}" + "".join(f"{epsilon:>8}" for epsilon in epsilons))
for variant, model in models.items():
    certified = kp.certified_accuracy(model, test_x, test_y, epsilon=epsilons, verbose=0)
    values = "".join(f"{100 * value:8.1f}" for value in certified.accuracies)
    print(f"{variant:24}{bounds[variant].bound:16.1f}{values}")

"""
## Figures
"""

folder = Path("quickstart-figures")
folder.mkdir(exist_ok=True)
shown = ["SGD", "weight decay 5e-4", "Parseval", "SGD, adversarial", "Parseval, adversarial"]
curves = {
    variant: kp.analysis.RobustAccuracy(
        clean=figures[variant][:, 0].mean() / 100,
        measure="snr",
        levels=levels,
        accuracies=tuple(figures[variant][:, 1:].mean(0) / 100),
        attack=auto_pgd.describe(),
        examples=len(test_y),
    )
    for variant in shown
}
pair = ["SGD", "Parseval"]
figure, (left, middle, right) = matplotlib.pyplot.subplots(
    1, 3, figsize=(15, 4.2), layout="constrained"
)
kp.plots.accuracies(curves, ax=left).set_title("Accuracy under attack (Auto-PGD)")
hidden = [f"hidden{number}" for number in range(1, 5)]
spectra = kp.plots.spectra({name: models[name] for name in pair}, layers=hidden, ax=middle)
spectra.set_title("Singular values of the hidden layers")
depth = kp.plots.bounds({name: bounds[name] for name in pair}, ax=right)
depth.set_title("Lipschitz bound, layer by layer")
figure.savefig(folder / "overview.png", dpi=100)
x, y = test_x[:8], test_y[:8]
x_adv = kp.FGSM()(models["SGD"], x, y, snr=15)
grid = kp.plots.adversarial_images(models["SGD"], x, x_adv, y)
grid[0, 0].figure.savefig(folder / "adversarial.png", dpi=100)
print(f"\nFigures: {folder / 'overview.png'}, {folder / 'adversarial.png'}")

"""
## The claim, and what was measured
"""

baselines = ["SGD", "weight decay 5e-4", "weight decay 2e-3", "weight decay 5e-3"]
best = max(baselines, key=lambda name: figures[name][:, 3].mean())
gains = (figures["Parseval"] - figures[best]).mean(0)
print(
    "\nClaim: at equal clean accuracy, Parseval is more robust than plain SGD and than the best of "
    "three weight decays.\n"
    f"Measured against '{best}', Auto-PGD, in points: clean {gains[0]:+.1f}, "
    f"SNR 20 {gains[3]:+.1f}, SNR 15 {gains[4]:+.1f}."
)
