"""A convolutional network that is 1-Lipschitz by construction, made to be certified."""

from collections.abc import Sequence
from typing import Any

import keras
from numpy.typing import ArrayLike

from keras_parseval._kernel_readings import Convolutions
from keras_parseval._validation import check_choice, check_flag, check_integer
from keras_parseval.constraints import tight_convolution, tight_frame
from keras_parseval.layers import BatchCentering, MaxMin
from keras_parseval.models._parts import image_input, normalise_pixels


def lipschitz_convnet(
    widths: Sequence[int] = (32, 64, 128),
    *,
    depth: int | Sequence[int] = 2,
    units: int = 256,
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    convolutions: Convolutions = "operator",
    beta: float = 0.5,
    centering: bool = True,
    mean: ArrayLike = 0.5,
    name: str | None = None,
) -> Any:
    """A convolutional network with a Lipschitz constant of 1, which keeps its signal.

    For each width, convolutions of 3 x 3 (as many as `depth` says) and one of 2 x 2 with stride 2,
    which halves the image; then a Dense layer and the classifier. All kernels are tight frames,
    the classifier's too, all activations are `kp.MaxMin`, and centring
    (`kp.layers.BatchCentering`) takes the place of batch normalisation. Train it with
    `kp.losses.MarginCrossentropy`, with a learning rate that falls to zero, and call
    `kp.tighten(model)` before you certify it.

    Args:
        widths: Number of filters at each size of the image. Defaults to `(32, 64, 128)`, about a
            million parameters for CIFAR-10.
        depth: Number of 3 x 3 convolutions at each size of the image: an integer, or one for
            each of the widths. Defaults to 2.
        units: Units of the Dense layer before the classifier. Defaults to 256.
        input_shape: Shape of an image, channels last, its sides multiples of 2 for each of the
            widths. Pixels go in as numbers in [0, 1]. Defaults to `(32, 32, 3)`.
        classes: Number of logits. Defaults to 10.
        convolutions: `"operator"` for convolutions that are tight themselves
            (`kp.ParsevalConvolution`), `"kernel"` for the paper's flattened kernels, which shrink
            their signal. Defaults to `"operator"`.
        beta: See `kp.ParsevalConvolution`. Defaults to 0.5.
        centering: Whether to subtract the mean of each channel. Biases take its place otherwise.
            Defaults to `True`.
        mean: What the first layer subtracts from the pixels: a number, or one for each channel.
            They are not divided by anything, which would change the constant. Defaults to 0.5.
        name: Name of the model. Defaults to `"lipschitz_convnet"`.

    Returns:
        A functional model that returns logits, uncompiled.

    Example:

    ```python
    model = kp.models.lipschitz_convnet((8, 16), units=32, input_shape=(8, 8, 1))
    model.compile("adam", kp.losses.MarginCrossentropy(0.3), metrics=["accuracy"])
    ```
    """
    widths = _check_sizes("widths", widths)
    depths = _check_depths(depth, len(widths))
    for argument, value in (("units", units), ("classes", classes)):
        check_integer(argument, value, "a positive integer", lambda value: value > 0)
    check_choice("convolutions", convolutions, ("kernel", "operator"))
    check_flag("centering", centering)
    inputs = image_input(input_shape, (3,))
    _check_sides(inputs.shape[1:3], len(widths))
    x = normalise_pixels(inputs, mean, 1.0)
    bias = not centering

    def activate(x: Any, prefix: str) -> Any:
        if centering:
            # A short memory, because the means of the last steps are those that fit the weights.
            x = BatchCentering(momentum=0.9, name=f"{prefix}_centering")(x)
        return MaxMin(name=f"{prefix}_maxmin")(x)

    def convolve(x: Any, filters: int, size: int, strides: int, prefix: str) -> Any:
        options = (
            tight_convolution(beta=beta, strides=strides)
            if convolutions == "operator"
            else tight_frame(beta=beta, scale="auto" if strides == 1 else 1.0)
        )
        layer = keras.layers.Conv2D(
            filters, size, strides, "same", use_bias=bias, name=prefix, **options
        )
        return activate(layer(x), prefix)

    for stage, width in enumerate(widths):
        for layer in range(depths[stage]):
            x = convolve(x, width, 3, 1, f"stage{stage + 1}_conv{layer + 1}")
        # The next stage's width, so that less is lost where the image is halved.
        x = convolve(x, [*widths, width][stage + 1], 2, 2, f"stage{stage + 1}_halve")
    x = keras.layers.Flatten(name="flatten")(x)
    x = activate(
        keras.layers.Dense(units, use_bias=bias, name="hidden", **tight_frame(beta=beta))(x),
        "hidden",
    )
    logits = keras.layers.Dense(classes, name="logits", **tight_frame(beta=beta))(x)
    return keras.Model(inputs, logits, name=name or "lipschitz_convnet")


def _check_sizes(name: str, sizes: Any) -> list[int]:
    rule = "a list of positive even integers, one for each size of the image"
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={sizes!r}")
    # MaxMin works on pairs of channels.
    return [
        check_integer(name, size, rule, lambda value: value > 0 and value % 2 == 0)
        for size in sizes
    ]


def _check_depths(depth: Any, sizes: int) -> list[int]:
    rule = "an integer of at least 0, or a list of them, one for each of the widths"
    depths = list(depth) if isinstance(depth, (list, tuple)) else [depth] * sizes
    if len(depths) != sizes:
        raise ValueError(f"`depth` must be {rule}, here {sizes}. Received: depth={depth!r}")
    return [check_integer("depth", each, rule, lambda value: value >= 0) for each in depths]


def _check_sides(sides: tuple[int, ...], halvings: int) -> None:
    if any(side % 2**halvings for side in sides):
        raise ValueError(
            f"The height and width of images must be multiples of {2**halvings}, because they are "
            f"halved {halvings} times; pad the images, or give fewer `widths`. "
            f"Received: {' x '.join(map(str, sides))}"
        )
