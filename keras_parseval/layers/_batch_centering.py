"""Batch normalisation without the division that breaks a network's bound."""

from typing import Any

import keras
from keras import ops

from keras_parseval._backend import SYNCHRONIZES_REPLICAS, mean, subtract
from keras_parseval._precision import float32_or_better
from keras_parseval._validation import check_flag, check_integer, check_number


@keras.saving.register_keras_serializable(package="keras_parseval")
class BatchCentering(keras.layers.Layer):
    """Subtracts the mean of each channel, and adds a learned offset.

    In training it is the mean over the batch and over all axes but that of the channels, and a
    moving average of it is kept. At inference that average is subtracted: a shift by a constant, so
    the layer is 1-Lipschitz, where `keras.layers.BatchNormalization` divides by the deviation
    and multiplies the Lipschitz bound by the largest `|gamma| / sqrt(var + eps)`. It keeps
    activations around the kinks of `kp.MaxMin`, which a deep network of tight
    layers needs in order to train.

    As in `BatchNormalization`, masked steps do not count in the mean, the mean is computed in
    float32 or better, and the layer runs in inference mode while `trainable` is `False`.

    Args:
        axis: The axis of the channels. Defaults to -1.
        momentum: Momentum of the moving average. Defaults to 0.99.
        center: Whether to add an offset `beta`. Defaults to `True`.
        beta_initializer: Initializer of the offset. Defaults to `"zeros"`.
        moving_mean_initializer: Initializer of the moving average. Defaults to `"zeros"`.
        beta_regularizer: Regularizer of the offset. Defaults to `None`.
        beta_constraint: Constraint of the offset. Defaults to `None`.
        synchronized: Whether to subtract the mean over the batches of all replicas, under a
            strategy of `tf.distribute`, and not that of each replica's own. On TensorFlow alone.
            All replicas keep the same moving average in either case. Defaults to `False`.
        **kwargs: Name, dtype and other arguments of a Keras layer.

    Attributes:
        beta: The offset, a variable of shape `(channels,)`; `None` without, or until the layer is
            built.
        moving_mean: The moving average, likewise.

    Example:

    ```python
    x = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(16, 3, use_bias=False)(x)
    outputs = kp.MaxMin()(kp.layers.BatchCentering()(x))
    ```
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        center: bool = True,
        beta_initializer: Any = "zeros",
        moving_mean_initializer: Any = "zeros",
        beta_regularizer: Any = None,
        beta_constraint: Any = None,
        synchronized: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.axis = check_integer("axis", axis, "an integer", lambda value: True)
        self.momentum = check_number(
            "momentum", momentum, "a number in [0, 1]", lambda value: 0 <= value <= 1
        )
        self.center = check_flag("center", center)
        self.beta_initializer = keras.initializers.get(beta_initializer)
        self.moving_mean_initializer = keras.initializers.get(moving_mean_initializer)
        self.beta_regularizer = keras.regularizers.get(beta_regularizer)
        self.beta_constraint = keras.constraints.get(beta_constraint)
        self.synchronized = check_flag("synchronized", synchronized)
        if synchronized and not SYNCHRONIZES_REPLICAS:
            raise ValueError(
                "`synchronized=True` must be used with the TensorFlow backend: others see the "
                "whole batch, or leave it to the user. "
                f"Received: synchronized=True, backend={keras.backend.backend()}"
            )
        self.beta: Any = None
        self.moving_mean: Any = None
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        rank = len(input_shape)
        if rank < 2 or not -rank <= self.axis < rank or self.axis % rank == 0:
            raise ValueError(
                "`axis` must be an axis of the inputs of `BatchCentering`, other than that of the "
                f"batch. Received: axis={self.axis}, input_shape={tuple(input_shape)}"
            )
        channels = input_shape[self.axis]
        if channels is None:
            raise ValueError(
                "`BatchCentering` needs a known number of channels, each of which has a mean; give "
                f"the model's inputs a fixed number. Received: input_shape={tuple(input_shape)}"
            )
        if self.center:
            self.beta = self.add_weight(
                shape=(channels,),
                name="beta",
                initializer=self.beta_initializer,
                regularizer=self.beta_regularizer,
                constraint=self.beta_constraint,
                autocast=False,
            )
        self.moving_mean = self.add_weight(
            shape=(channels,),
            name="moving_mean",
            initializer=self.moving_mean_initializer,
            trainable=False,
            autocast=False,
            aggregation="mean",  # so that all replicas keep the same
        )
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes={self.axis: channels})

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            raise ValueError(
                "The mask must have one dimension less than the inputs of `BatchCentering`. "
                f"Received: mask.shape={mask.shape}, inputs.shape={inputs.shape}"
            )
        # Means of many numbers in half precision would not be numbers.
        precision = keras.backend.result_type(inputs.dtype, "float32")
        shift = ops.cast(self.moving_mean, precision)
        if training and self.trainable:
            latest = self._mean(inputs, mask)
            self.moving_mean.assign(shift * self.momentum + latest * (1.0 - self.momentum))
            shift = latest
        if self.center:
            shift = shift - ops.cast(self.beta, precision)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        return ops.cast(subtract(inputs, ops.reshape(shift, shape)), self.compute_dtype)

    def _mean(self, inputs: Any, mask: Any) -> Any:
        """The mean of each channel, of what is not masked."""
        if mask is None:
            return self._average(inputs)
        inputs = float32_or_better(inputs)
        counts = ops.cast(ops.expand_dims(mask, -1), inputs.dtype)
        counts = ops.broadcast_to(counts, ops.shape(inputs))
        # What is masked may be anything, NaN included.
        kept = ops.where(counts > 0, inputs, 0.0)
        return ops.divide_no_nan(self._average(kept), self._average(counts))

    def _average(self, x: Any) -> Any:
        axes = [axis for axis in range(len(x.shape)) if axis != self.axis % len(x.shape)]
        if self.synchronized:
            return ops.moments(float32_or_better(x), axes, synchronized=True)[0]
        return mean(x, axes)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "center": self.center,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "moving_mean_initializer": keras.initializers.serialize(self.moving_mean_initializer),
            "beta_regularizer": keras.regularizers.serialize(self.beta_regularizer),
            "beta_constraint": keras.constraints.serialize(self.beta_constraint),
            "synchronized": self.synchronized,
        }
