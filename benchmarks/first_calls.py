"""How long the first call of an attack takes, which compiles it, and how long the next ones do."""

import statistics
import time

import keras

import keras_parseval as kp
from benchmarks import networks
from benchmarks.robust_accuracy import BATCH

LATER = 3


class FirstCalls:
    """The benchmark, on whatever backend there is."""

    title = f"First calls and later ones, of a small convnet ({BATCH} images, by the clock)"

    def run(self):
        keras.utils.set_random_seed(0)
        model = networks.compiled(networks.small_convnet())
        x, y = networks.examples(model, BATCH)

        def evaluate(attack):
            options = {"epsilon": (0.005, 0.01), "batch_size": BATCH, "verbose": 0}
            return lambda: kp.robust_accuracy(model, x, y, attack=attack, **options)

        apgd = kp.attacks.APGD(steps=20, bounds=(0, 1))
        calls = {
            "predict": lambda: model.predict(x, batch_size=BATCH, verbose=0),
            "FGSM, a call": lambda: kp.FGSM(bounds=(0, 1))(model, x, y, epsilon=0.01),
            "FGSM, robust_accuracy": evaluate(kp.FGSM(bounds=(0, 1))),
            "APGD, a call": lambda: apgd(model, x, y, epsilon=0.01),
            "APGD, robust_accuracy": evaluate(apgd),
            "suite, robust_accuracy": evaluate(kp.attacks.standard(steps=20, queries=250)),
        }
        return [_first_and_later(name, call) for name, call in calls.items()]


def _first_and_later(name, call):
    first, *later = [_seconds(call) for _ in range(1 + LATER)]
    usual = statistics.median(later)
    seconds = {"first call": first, "later": usual, "more": first - usual}
    return {"contestant": name, **{each: round(value, 2) for each, value in seconds.items()}}


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


BENCHMARKS = {"first_calls": FirstCalls()}
