"""What a step of an attack costs beside the gradient that JAX itself takes, and a forward pass."""

import keras

import keras_parseval as kp
from benchmarks.robust_accuracy import BATCH, trained_convnet
from benchmarks.timing import interleave, ratios

STEPS = 20


class Gradients:
    """The benchmark, on JAX alone."""

    title = f"Gradients with respect to the input, of a small convnet ({BATCH} images)"

    def run(self):
        if keras.backend.backend() != "jax":
            return []
        import jax

        model, x, y = trained_convnet()
        x, y = x[:BATCH], y[:BATCH]

        def forward(x):
            return model(x, training=False)

        def loss(x):
            return model.loss(y, forward(x))

        def craft(attack):
            return lambda x: attack.craft(model, x, y, epsilon=0.01)

        functions = {
            "forward pass": forward,
            "jax.grad": jax.grad(loss),
            "FGSM": craft(kp.FGSM(bounds=(0, 1))),
            f"APGD, {STEPS} steps": craft(kp.attacks.APGD(steps=STEPS, bounds=(0, 1))),
        }
        contestants = {name: _runner(jax.jit(each), x) for name, each in functions.items()}
        return ratios(interleave(contestants, rounds=15), "forward pass")


def _runner(function, x):
    return lambda: function(x).block_until_ready()


BENCHMARKS = {"gradients": Gradients()}
