"""
Title: Adversarial training and evaluation inside fit
Description: Callbacks train on attacks, measure under attack, and stop when that gets no better.

Run it with `python examples/adversarial_fit.py`; about a minute on two cores. The environment
variable `EPOCHS` makes it shorter.
"""

"""
## Data and network
"""

import os

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
from data import load

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 40))
digits = load("digits")
(train_x, train_y), validation, test = digits.train_pixels(), digits.validation, digits.test


def network():
    keras.utils.set_random_seed(0)
    model = kp.models.fully_connected(
        hidden=2,
        units=128,
        input_shape=digits.input_shape,
        variant="parseval",
        beta=0.1,
        rows=1.0,
        activation="maxmin",
        mean=0.0,
        std=1.0,
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    return model


"""
## Two callbacks

`AdversarialTraining` replaces half of every minibatch by adversarial examples, crafted in the
compiled step from the weights of that step. Their size is drawn anew for each minibatch;
`stddev` is in the units of the input, here pixels in [0, 1]. The attack goes up from the model's
own prediction, so that no label leaks into the examples.

`AdversarialEvaluation` adds the accuracy under attack to the logs, as `val_adv_accuracy_snr15`
and the like. Every callback that comes later can use it, as `EarlyStopping` does here.
"""


def callbacks(adversarial):
    evaluation = kp.AdversarialEvaluation(
        *validation, snr=(25, 15), attack=kp.IteratedFGSM(steps=10), batch_size=300
    )
    stopping = keras.callbacks.EarlyStopping(
        "val_adv_accuracy_snr15", mode="max", patience=8, restore_best_weights=True
    )
    training = kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), stddev=0.1, start_from_epoch=1)
    return [*([training] if adversarial else []), evaluation, stopping]


models, histories = {"plain": network(), "adversarial": network()}, {}
for name, model in models.items():
    histories[name] = model.fit(
        train_x,
        train_y,
        batch_size=64,
        epochs=epochs,
        validation_data=validation,
        callbacks=[console.Progress(name), *callbacks(name == "adversarial")],
        verbose=0,
    )
    curve = histories[name].history["val_adv_accuracy_snr15"]
    print(f"Validation accuracy at 15 dB, 10 steps: from {curve[0]:.3f} to {max(curve):.3f}")

"""
## The claim, and what was measured

Trained on one-step attacks, the network withstands stronger ones better: those of
twenty steps, on images that no training has seen.
"""

attack, results = kp.IteratedFGSM(steps=20), {}
print(f"\n{'20-step attack, SNR (dB)':28}{'clean':>8}{25:>8}{20:>8}{15:>8}")
for name, model in models.items():
    result = kp.robust_accuracy(model, *test, snr=(25, 20, 15), attack=attack, verbose=0)
    results[name] = [result.clean, *result.accuracies]
    print(f"{name:28}" + "".join(f"{value:8.3f}" for value in results[name]))

print(
    "\nClaim: adversarial training makes the network more robust to an attack in 20 steps.\n"
    f"Measured: accuracy at 15 dB {results['adversarial'][-1]:.3f}, without adversarial training "
    f"{results['plain'][-1]:.3f}; clean {results['adversarial'][0]:.3f} and "
    f"{results['plain'][0]:.3f}."
)
