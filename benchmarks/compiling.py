"""Pure functions of tensors, compiled with XLA where the backend has it."""

import keras


def compiled_function(function):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function
