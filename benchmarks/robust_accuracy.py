"""Accuracy under attack at several levels, against as many runs of `predict`.

With n levels there are n forward passes, one more for the clean accuracy and one back for
the gradient: (n + 2) / n is the arithmetic.
"""

import dataclasses

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks, peers
from benchmarks.timing import interleave, ratios

BATCH = 128


@dataclasses.dataclass
class RobustAccuracy:
    """The benchmark for a number of levels."""

    levels: int
    rounds: int

    @property
    def title(self):
        return f"Accuracy at {self.levels} levels of a small convnet (1,024 images, XLA)"

    def run(self):
        model, x, y = trained_convnet()
        epsilons = [0.2 * (level + 1) / self.levels for level in range(self.levels)]

        def predict():
            for _ in range(self.levels):
                model.predict(x, batch_size=BATCH, verbose=0)

        def ours():
            result = kp.robust_accuracy(
                *(model, x, y),
                epsilon=epsilons,
                attack=kp.FGSM(bounds=(0, 1)),
                batch_size=BATCH,
                verbose=0,
            )
            return list(result.accuracies)

        baseline = f"{self.levels} x predict"
        others = available_peers(model, x, y)
        times = interleave(
            {
                baseline: predict,
                "robust_accuracy": ours,
                **{name: lambda f=f: f(epsilons) for name, f in others.items()},
            },
            self.rounds,
        )
        accuracies = {name: measure(epsilons) for name, measure in others.items()}
        rows = ratios(times, baseline)
        for row in rows:
            found = accuracies.get(row["contestant"])
            row["same accuracies"] = "" if found is None else bool(np.allclose(found, ours()))
        return rows


def trained_convnet():
    """A network that has learned something, so that accuracies differ from level to level."""
    keras.utils.set_random_seed(0)
    model = networks.compiled(networks.small_convnet())
    x, y = networks.examples(model, 1024)
    # The label is in the image, as a brighter stripe.
    x[np.arange(len(y)), 3 * y + 1] = 0.9 + 0.1 * x[np.arange(len(y)), 3 * y + 1]
    model.fit(x, y, batch_size=64, epochs=3, verbose=0)
    return model, x, y


def available_peers(model, x, y):
    """`{name: function from epsilons to accuracies}` of the libraries that run here."""
    if keras.backend.backend() != "tensorflow":
        return {}
    known = {"foolbox": foolbox, "cleverhans": cleverhans, "art": art}
    return {
        name: peer(model, x, y)
        for name, peer in known.items()
        if peers.runs(name, lambda peer=peer: peer(model, x[:2], y[:2])([0.1]))
    }


def _batches(x, y):
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]


def foolbox(model, x, y):
    import tensorflow as tf
    from foolbox import TensorFlowModel, attacks

    network, attack = TensorFlowModel(model, bounds=(0, 1)), attacks.LinfFastGradientAttack()

    def accuracies(epsilons):
        successes = [
            attack(network, tf.constant(part), tf.constant(labels), epsilons=epsilons)[2].numpy()
            for part, labels in _batches(x, y)
        ]
        return 1 - np.concatenate(successes, axis=1).mean(axis=1)

    return accuracies


def cleverhans(model, x, y):
    from cleverhans.tf2.attacks.fast_gradient_method import fast_gradient_method

    def accuracy(epsilon):
        right = [
            np.argmax(model.predict_on_batch(craft(part, labels, epsilon)), axis=-1) == labels
            for part, labels in _batches(x, y)
        ]
        return np.concatenate(right).mean()

    def craft(part, labels, epsilon):
        return fast_gradient_method(model, part, epsilon, np.inf, clip_min=0, clip_max=1, y=labels)

    return lambda epsilons: [accuracy(epsilon) for epsilon in epsilons]


def art_classifier(model, x):
    from art.estimators.classification import TensorFlowV2Classifier

    return TensorFlowV2Classifier(
        model=model,
        nb_classes=10,
        input_shape=x.shape[1:],
        loss_object=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        clip_values=(0, 1),
    )


def art(model, x, y):
    from art.attacks.evasion import FastGradientMethod

    classifier = art_classifier(model, x)

    def accuracy(epsilon):
        attack = FastGradientMethod(classifier, eps=epsilon, batch_size=BATCH)
        logits = classifier.predict(attack.generate(x, y), batch_size=BATCH)
        return np.mean(np.argmax(logits, axis=-1) == y)

    return lambda epsilons: [accuracy(epsilon) for epsilon in epsilons]


BENCHMARKS = {
    "robust_accuracy_4": RobustAccuracy(levels=4, rounds=15),
    "robust_accuracy_16": RobustAccuracy(levels=16, rounds=7),
}
