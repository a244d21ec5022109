"""The layers that the networks of the paper are made of, plain and Parseval."""

from typing import Any

import keras
import numpy as np

from keras_parseval._layer_kernels import (
    check_rows_fit,
    check_strength,
    constrain_kernel,
    layer_kernels,
)
from keras_parseval._lending import give
from keras_parseval._validation import Rows, check_choice, check_floor, check_integer, check_number
from keras_parseval.constraints import ParsevalConvolution, ParsevalTightFrame
from keras_parseval.initializers import TightConvolution, TightFrame
from keras_parseval.layers import ConvexAdd, MaxMin


class Parts:
    """Makes the layers of one variant, so that the builders say only how they are connected."""

    def __init__(
        self,
        variant: str,
        variants: tuple[Any, ...],
        beta: float | None,
        rows: Rows,
        unbiased: bool,
        weight_decay: float,
        normalization: str | None,
        activation: str,
        floor: float = 0.0,
        convolutions: str = "kernel",
    ):
        self.variant = check_choice("variant", variant, variants)
        self.options = check_strength(beta, rows, unbiased)
        self.weight_decay = check_number(
            "weight_decay", weight_decay, "a number of at least 0", lambda value: value >= 0
        )
        self.normalization = check_choice("normalization", normalization, ("batch", None))
        self.floor = check_floor(floor)
        check_choice("convolutions", convolutions, ("kernel", "operator"))
        self.constraint = ParsevalConvolution if convolutions == "operator" else ParsevalTightFrame
        self.activation = check_choice("activation", activation, ("relu", "maxmin"))

    def convolution(self, filters: int, size: int, strides: int, name: str) -> Any:
        bias = self.normalization is None
        return self._hidden(
            keras.layers.Conv2D(filters, size, strides, "same", use_bias=bias, name=name)
        )

    def dense(self, units: int, name: str) -> Any:
        bias = self.normalization is None
        return self._hidden(keras.layers.Dense(units, use_bias=bias, name=name))

    def _hidden(self, layer: Any) -> Any:
        (kernel,) = layer_kernels(layer)
        if self.variant == "vanilla":
            start: Any = keras.initializers.HeNormal()
            give(layer, kernel_initializer=start, kernel_regularizer=self._decay())
        else:
            constrain_kernel(kernel, self.constraint, **self.options)
            constraint = kernel.constraint
            convolution = isinstance(constraint, ParsevalConvolution)
            start = (TightConvolution if convolution else TightFrame)(
                **constraint.layout.get_config()
            )
            give(layer, kernel_initializer=start)
        return layer

    def model(self, inputs: Any, features: Any, classes: int, name: str) -> Any:
        """The whole model, with the classifier put on top of its features."""
        check_integer("classes", classes, "a positive integer", lambda value: value > 0)
        logits = keras.layers.Dense(classes, kernel_regularizer=self._decay(), name="logits")
        model = keras.Model(inputs, logits(features), name=name)
        kernels = [kernel for layer in model.layers for kernel in layer_kernels(layer)]
        check_rows_fit(self.options["rows"], [each for each in kernels if each.constraint])
        return model

    def _decay(self) -> Any:
        return keras.regularizers.L2(self.weight_decay / 2) if self.weight_decay else None

    def activate(self, x: Any, prefix: str) -> Any:
        if self.normalization == "batch":
            layer = keras.layers.BatchNormalization(
                momentum=0.9, epsilon=1e-5, name=f"{prefix}normalization"
            )
            x = layer(x)
        if self.activation == "maxmin":
            return MaxMin(name=f"{prefix}maxmin")(x)
        return keras.layers.ReLU(name=f"{prefix}relu")(x)

    def merge(self, name: str) -> Any:
        if self.variant == "parseval":
            return ConvexAdd(floor=self.floor, name=name)
        return keras.layers.Add(name=name)


def image_input(input_shape: Any, ranks: tuple[int, ...]) -> Any:
    """The input of a model that takes pixels, or an error."""
    shape = tuple(input_shape)
    if len(shape) not in ranks or not all(isinstance(size, int) and size > 0 for size in shape):
        vector = " or (features,)" if 1 in ranks else ""
        raise ValueError(
            f"`input_shape` must be (height, width, channels){vector}, in positive integers. "
            f"Received: input_shape={input_shape}"
        )
    return keras.Input(shape, name="pixels")


def normalise_pixels(x: Any, mean: Any, std: Any) -> Any:
    """Pixels, less their mean, in units of their deviation."""
    channels = x.shape[-1]
    mean, std = np.asarray(mean, "float64"), np.asarray(std, "float64")
    for name, values in (("mean", mean), ("std", std)):
        if values.shape not in ((), (channels,)) or not np.isfinite(values).all():
            raise ValueError(
                f"`{name}` must be a finite number, or one for each of the {channels} channels. "
                f"Received: {name}={values.tolist()}"
            )
    if (std <= 0).any():
        raise ValueError(f"`std` must be positive. Received: std={std.tolist()}")
    # One for each channel, because older versions of Keras do not take a single number.
    mean = np.broadcast_to(mean, channels).tolist()
    variance = np.broadcast_to(np.square(std), channels).tolist()
    return keras.layers.Normalization(mean=mean, variance=variance, name="normalise")(x)


def pad(x: Any, side: Any) -> Any:
    """Images with zeros around them, so many pixels high and wide."""
    check_integer(
        "pad_to",
        side,
        "the side of an image, no smaller than the height and width of the input",
        lambda value: len(x.shape) == 4 and value >= max(x.shape[1:3]),
    )
    margins = [((side - size) // 2, (side - size + 1) // 2) for size in x.shape[1:3]]
    return keras.layers.ZeroPadding2D(margins, name="pad")(x)
