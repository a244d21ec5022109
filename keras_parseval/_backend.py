"""The one file that names a backend: gradients with respect to inputs, and compilation."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
from keras import ops

from keras_parseval._lending import lend

_BACKEND = keras.backend.backend()
if _BACKEND == "torch":
    from keras_parseval import _backend_torch

# What Keras's random functions take for the type of a seed.
SEED_DTYPE = {"tensorflow": "int64", "jax": "uint32"}.get(_BACKEND, "int32")
# Whether functions are compiled, for each shape anew.
COMPILES = _BACKEND != "torch"
# Whether Keras can take statistics over the batches of all replicas.
SYNCHRONIZES_REPLICAS = _BACKEND == "tensorflow"

# For each model, its variables' identities and its compiled functions. Neither keeps it alive.
_compiled: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def input_gradient(objective: Callable[[Any], tuple[Any, Any]], x: Any) -> tuple[Any, Any]:
    """Differentiate `objective`, a function of one tensor, at `x`.

    Args:
        objective: Function from a tensor to a scalar and anything else.
        x: Tensor of floating-point numbers.

    Returns:
        The gradient of the scalar, and what else the objective returned.
    """
    if _BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            value, other = objective(x)
        gradient = tape.gradient(value, x)
    elif _BACKEND == "jax":
        from keras_parseval import _backend_jax

        gradient, other = _backend_jax.input_gradient(objective, x)
    elif _BACKEND == "torch":
        gradient, other = _backend_torch.input_gradient(objective, x)
    else:
        raise NotImplementedError(
            "Gradients with respect to inputs are available on the TensorFlow, JAX and PyTorch "
            f"backends. Received: backend={_BACKEND}"
        )
    if gradient is None:
        raise NoGradientError
    return gradient, other


def mean(x: Any, axes: Sequence[int]) -> Any:
    """The mean along axes, in float32 or better."""
    if _BACKEND == "torch":
        return _backend_torch.mean(x, axes)
    return ops.mean(ops.cast(x, keras.backend.result_type(x.dtype, "float32")), axes)


def subtract(x: Any, shift: Any) -> Any:
    """`x - shift` in the dtype of `x`, with a `shift` that may be more precise."""
    if _BACKEND == "torch":
        return _backend_torch.subtract(x, shift)
    return ops.cast(ops.cast(x, shift.dtype) - shift, x.dtype)


def contiguous(x: Any) -> Any:
    """The same tensor, with its numbers in memory in their order."""
    return x.contiguous() if _BACKEND == "torch" else x


def every(x: Any, stride: int) -> Any:
    """Every so many numbers of a tensor, in order, as a tensor of rank 1."""
    if _BACKEND == "torch":
        return _backend_torch.every(x, stride)
    return ops.reshape(x, (-1,))[::stride]


def sort_pairs(x: Any) -> Any | None:
    """Pairs along the last axis, the larger first; `None` where there is no faster way to it."""
    if _BACKEND == "torch":
        return _backend_torch.sort_pairs(x)
    return None


def fast_pooling() -> contextlib.AbstractContextManager[None]:
    """Within this context, the maxima of windows are taken in a form that is fast on processors."""
    return _backend_torch.FastPooling() if _BACKEND == "torch" else contextlib.nullcontext()


def add_product(matrix: Any, first: Any, second: Any) -> Any:
    """`matrix + first^T @ second`, for thin `first` and `second`."""
    if _BACKEND == "jax":
        from keras_parseval import _backend_jax

        return _backend_jax.add_product(matrix, first, second)
    return matrix + ops.swapaxes(first, -1, -2) @ second


def retract_by_hand(gram: Any, matrix: Any, beta: float, scale: float) -> Any:
    """The step of `retract_and_measure`, where no compiler fuses it; elsewhere `None`."""
    return None if COMPILES else _backend_torch.retract_and_measure(gram, matrix, beta, scale)


def excess_images_by_hand(real: Any, imaginary: Any) -> Any:
    """The images of `_convolution_frames`, where no compiler fuses them; elsewhere `None`."""
    return None if COMPILES else _backend_torch.excess_images(real, imaginary)


class NoGradientError(ValueError):
    """The error for a model that has no gradient with respect to its input."""

    def __init__(self) -> None:
        super().__init__(
            "The output of the model cannot be differentiated with respect to its input, or the "
            "gradient is zero for every example, so there is no direction to attack in. Integer "
            "inputs, rounding, and lookups such as `Embedding` have no gradient: attack a model "
            "that starts after them, or search without gradients, by `kp.attacks.Square`."
        )


def check_values(tensors: Any) -> None:
    """Raise if tensors have no values yet, because a function of the user's is being compiled."""
    kinds: tuple[Any, ...] = ()
    if _BACKEND == "jax":
        import jax

        kinds = (jax.core.Tracer,)
    for tensor in keras.tree.flatten(tensors):
        graph = _BACKEND == "tensorflow" and not hasattr(tensor, "numpy")
        if isinstance(tensor, kinds) or (graph and hasattr(tensor, "op")):
            raise TypeError(
                "An attack must be called on data; inside a function that is being compiled, call "
                "`attack.craft(model, x, y, epsilon=...)`, which works on tensors. "
                f"Received: a tensor without values, {tensor}"
            )


def call_compiled(model: Any, key: Hashable, function: Callable[..., Any], *tensors: Any) -> Any:
    """Call `function(model, *tensors)`, compiled once for each model, key and shape.

    Args:
        model: A built Keras model. Its variables are read and never changed.
        key: Hashable; tells functions apart that do something else with the same model.
        function: Function of the model and of tensors.
        *tensors: Arguments, in nested structures.
    """
    # A model whose variables are others than before is another model, to a compiler.
    variables = [id(variable) for variable in model.variables]
    known, functions = _compiled.get(model, (None, None))
    if known != variables:
        functions = {}
        _compiled[model] = variables, functions
    key = (key, getattr(model, "jit_compile", False))
    if key not in functions:
        functions[key] = _compile(weakref.ref(model), function, key[-1])
    return functions[key](*keras.tree.map_structure(ops.convert_to_tensor, tensors))


def _compile(
    model_reference: Callable[..., Any], function: Callable[..., Any], jit_compile: bool
) -> Callable[..., Any]:
    """Compile a function of the model that is reached through a weak reference."""

    def run(variables: Any, *tensors: Any) -> Any:
        model = model_reference()
        mapping = None if variables is None else list(zip(model.variables, variables))
        # Inside this scope nothing can be assigned to a variable of the model.
        with keras.StatelessScope(state_mapping=mapping):
            return function(model, *tensors)

    if _BACKEND == "tensorflow":
        import tensorflow as tf

        run = functools.partial(run, None)
        jit_compile = bool(jit_compile) and not _attacks_without_xla()
        return tf.function(run, jit_compile=jit_compile, autograph=False)
    if _BACKEND == "jax":
        import jax

        compiled = jax.jit(run)
        return lambda *tensors: compiled([v.value for v in model_reference().variables], *tensors)

    import torch

    return torch.no_grad()(functools.partial(run, None))


def _attacks_without_xla() -> bool:
    """Whether attacks are compiled by TensorFlow alone, for processors.

    Its own convolutions, and their gradients, take half the time of XLA's there, or a fifth inside
    a loop; other layers take about as long.
    """
    import tensorflow as tf

    return {device.device_type for device in tf.config.list_logical_devices()} == {"CPU"}


def _trains_with_xla_alone(model: Any) -> bool:
    """Whether XLA is to compile the model's own training step, and not the attack before it."""
    if _BACKEND != "tensorflow" or not model.jit_compile or not _attacks_without_xla():
        return False
    # A part of a step that runs on several replicas cannot be compiled.
    return model.distribute_strategy.num_replicas_in_sync == 1


def attack_outside_xla(model: Any) -> contextlib.AbstractContextManager[None]:
    """Within this context, the functions that Keras makes leave XLA to `wrap_train_step`."""
    return lend(model, jit_compile=model.jit_compile and not _trains_with_xla_alone(model))


def wrap_train_step(model: Any, attack_batch: Callable[[Any], Any]) -> Callable[..., Any]:
    """A training step that lets `attack_batch` change the data and then runs the model's own.

    Args:
        model: A compiled Keras model.
        attack_batch: Function of the data of one step, called while the model's variables
            have their current values, and cannot be changed.
    """
    train_step = model.train_step
    if _trains_with_xla_alone(model):
        import tensorflow as tf

        train_step = tf.function(
            train_step, jit_compile=True, reduce_retracing=True, autograph=False
        )
    if _BACKEND != "jax":

        def attacked_step(data):
            with keras.StatelessScope():
                data = attack_batch(data)
            return train_step(data)

        return attacked_step

    def attacked_pure_step(state, data):
        trainable, non_trainable, optimizer, _ = state
        variables = [
            *zip(model.trainable_variables, trainable),
            *zip(model.non_trainable_variables, non_trainable),
            *zip(model.optimizer.variables, optimizer),
        ]
        with keras.StatelessScope(state_mapping=variables):
            data = attack_batch(data)
        return train_step(state, data)

    return attacked_pure_step


def keep_weights_on_error(model: Any, train_function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a training function that fails leave the model with its weights.

    On JAX, `fit` takes the weights out of the model before the first step. If that step cannot even
    be traced, because of the data for instance, they would be lost.
    """
    if _BACKEND != "jax":
        return train_function
    from keras_parseval import _backend_jax

    return _backend_jax.keep_weights_on_error(model, train_function)
