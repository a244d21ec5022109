"""Whole training steps of Keras models on JAX, for compiling ahead of time."""

import jax

from benchmarks import networks
from keras_parseval._backend import wrap_train_step


def step_and_arguments(model, batch, callback=None):
    """The training step of a compiled model as a pure function, and what it takes.

    Args:
        model: The model.
        batch: Number of examples.
        callback: An `AdversarialTraining`, if the step should have it.
    """
    x, y = networks.examples(model, batch)
    # Makes the variables of metrics and of the optimizer, as `fit` would, and trains nothing.
    model._symbolic_build(data_batch=(x, y))
    step = model.train_step
    if callback is not None:
        callback.set_model(model)
        step = wrap_train_step(model, callback._attack_batch())
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            *(model.trainable_variables, model.non_trainable_variables),
            *(model.optimizer.variables, model.metrics_variables),
        )
    )
    return step, (state, (x, y.astype("int32")))


def compiled_step(model, batch):
    """The step, compiled for this machine."""
    step, arguments = step_and_arguments(model, batch)
    return jax.jit(step, donate_argnums=0).lower(*arguments).compile()
