"""Whole training steps of Keras models on JAX, for compiling ahead of time."""

import jax
import keras

from benchmarks import networks


class _TrainFunction(keras.callbacks.Callback):
    """Keeps the function that `fit` trains with, which another callback may have replaced."""

    def on_train_batch_begin(self, batch, logs=None):
        self.function = self.model.train_function


def step_and_arguments(model, batch, *callbacks):
    """The training step of a compiled model as a pure function, and what it takes.

    The model is trained on two examples on the way: `fit` makes the variables of metrics and of
    the optimizer, and lets the callbacks change the step.

    Args:
        model: The model.
        batch: Number of examples.
        *callbacks: Callbacks that the step is made with, such as `kp.AdversarialTraining`.
    """
    x, y = networks.examples(model, batch)
    kept = _TrainFunction()
    # The last of the callbacks sees what those before it have done.
    model.fit(x[:2], y[:2], verbose=0, callbacks=[*callbacks, kept])
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            *(model.trainable_variables, model.non_trainable_variables),
            *(model.optimizer.variables, model.metrics_variables),
        )
    )

    def step(state, data):
        return kept.function(state, iter([data]))

    return step, (state, (x, y.astype("int32")))


def compiled_step(model, batch):
    """The step, compiled for this machine."""
    step, arguments = step_and_arguments(model, batch)
    return jax.jit(step, donate_argnums=0).lower(*arguments).compile()
