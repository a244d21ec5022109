"""The networks of the paper, plain and Parseval."""

from typing import Any, Literal

import keras
from numpy.typing import ArrayLike

from keras_parseval._kernel_readings import Convolutions
from keras_parseval._validation import Rows, check_integer, check_number
from keras_parseval.models._parts import Parts, image_input, normalise_pixels, pad

Variant = Literal["vanilla", "parseval-oc", "parseval"]
VARIANTS: tuple[Variant, ...] = ("vanilla", "parseval-oc", "parseval")


def wide_resnet(
    depth: int,
    width: int,
    *,
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    variant: Variant = "parseval",
    convolutions: Convolutions = "kernel",
    beta: float | None = None,
    rows: Rows = "auto",
    unbiased: bool = False,
    floor: float = 0.1,
    dropout: float = 0.3,
    weight_decay: float = 5e-4,
    normalization: Literal["batch"] | None = "batch",
    activation: Literal["relu", "maxmin"] = "relu",
    mean: ArrayLike = 0.5,
    std: ArrayLike = 0.25,
    name: str | None = None,
) -> Any:
    """A wide residual network, as in the paper's experiments on CIFAR and SVHN.

    Zagoruyko and Komodakis' network with pre-activation: a convolution of 16
    filters, three groups of `(depth - 4) / 6` blocks with 16, 32 and 64 times
    `width` filters, the second and third of which halve the image, global
    average pooling and the classifier. The defaults are the paper's for CIFAR, but
    for `beta`.

    Args:
        depth: Number of layers, `6 n + 4`: 16, 28 and 40 are common.
        width: Factor on the number of filters.
        input_shape: Shape of an image, channels last. Pixels go in as numbers
            in [0, 1]. Defaults to `(32, 32, 3)`.
        classes: Number of logits. Defaults to 10.
        variant: `"vanilla"`: nothing is constrained, and all kernels have weight
            decay. `"parseval-oc"`: all hidden kernels start as tight frames
            (`kp.TightFrame`) and are held there (`kp.ParsevalTightFrame`, its
            scale fit to the strides); weight decay on the classifier alone.
            `"parseval"`: the residual sums are convex too (`kp.ConvexAdd`).
            Defaults to `"parseval"`.
        convolutions: `"kernel"` for tight flattened kernels, as in the paper, or `"operator"` for
            convolutions that are tight themselves (`kp.ParsevalConvolution`). Only the latter keep
            their signal without batch normalisation. Defaults to `"kernel"`.
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`, which are for flattened
            kernels alone. The paper's is 3e-4, which does not hold the frame over a short schedule.
            Defaults to `None`, the default of the constraint.
        rows: How many units of a layer take part in each step. Defaults to `"auto"`.
        unbiased: Whether `beta` makes up for the rows left out. Defaults to `False`.
        floor: See `kp.ConvexAdd`; the paper's is 0. Defaults to 0.1.
        dropout: Rate of the dropout between the two convolutions of a block. Defaults to 0.3.
        weight_decay: Factor of the weights in the update of SGD, before the
            learning rate. The regularizer is `L2(weight_decay / 2)`, because
            the gradient of a square has a factor of 2. Defaults to 5e-4.
        normalization: `"batch"`, or `None` for biases in its place. Batch
            normalisation rescales every channel, and undoes the Lipschitz bound.
            Without it flattened tight frames shrink what passes through them, block
            after block: deep networks learn slowly, or nothing in a few epochs. With
            `convolutions="operator"` they do not. Defaults to `"batch"`.
        activation: `"relu"`, or `"maxmin"` for `kp.MaxMin`. Defaults to `"relu"`.
        mean: What the first layer subtracts from the pixels: a number, or one for
            each channel. Defaults to 0.5.
        std: What it divides them by. It is fixed, and saved with the model. Defaults to 0.25.
        name: Name of the model. Defaults to one that tells its size.

    Returns:
        A functional model that returns logits, uncompiled.

    Example:

    ```python
    model = kp.models.wide_resnet(10, 2, convolutions="operator", normalization=None)
    ```
    """
    blocks = (_check_depth(depth) - 4) // 6
    check_integer("width", width, "a positive integer", lambda value: value > 0)
    options = (beta, rows, unbiased, weight_decay, normalization, activation)
    parts = Parts(variant, VARIANTS, *options, floor=floor, convolutions=convolutions)
    rate = check_number("dropout", dropout, "a rate in [0, 1)", lambda value: 0 <= value < 1)
    inputs = image_input(input_shape, (3,))
    x = normalise_pixels(inputs, mean, std)
    x = parts.convolution(16, 3, 1, "conv")(x)
    for group in range(3):
        for block in range(blocks):
            strides = 2 if group and not block else 1
            prefix = f"group{group + 1}_block{block + 1}_"
            x = _residual_block(parts, x, 16 * width * 2**group, strides, rate, prefix)
    x = parts.activate(x, "last_")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return parts.model(inputs, x, classes, name or f"wrn_{depth}_{width}")


def _residual_block(
    parts: Parts, x: Any, filters: int, strides: int, dropout: float, prefix: str
) -> Any:
    active = parts.activate(x, f"{prefix}first_")
    shortcut = x
    if strides > 1 or x.shape[-1] != filters:
        shortcut = parts.convolution(filters, 1, strides, f"{prefix}shortcut")(active)
    branch = parts.convolution(filters, 3, strides, f"{prefix}conv1")(active)
    if dropout:
        branch = keras.layers.Dropout(dropout, name=f"{prefix}dropout")(branch)
    branch = parts.activate(branch, f"{prefix}second_")
    branch = parts.convolution(filters, 3, 1, f"{prefix}conv2")(branch)
    return parts.merge(f"{prefix}sum")([branch, shortcut])


def fully_connected(
    hidden: int = 4,
    units: int = 2048,
    *,
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    variant: Literal["vanilla", "parseval"] = "parseval",
    beta: float | None = None,
    rows: Rows = "auto",
    unbiased: bool = False,
    weight_decay: float = 5e-4,
    normalization: Literal["batch"] | None = None,
    activation: Literal["relu", "maxmin"] = "relu",
    mean: ArrayLike = 0.5,
    std: ArrayLike = 0.25,
    pad_to: int | None = None,
    name: str | None = None,
) -> Any:
    """A fully connected network, as in the paper's experiments on MNIST and CIFAR-10.

    Args:
        hidden: Number of hidden layers. Defaults to 4.
        units: Units in each of them. Defaults to 2048.
        input_shape: Shape of an image, channels last, or of a vector. Pixels go in
            as numbers in [0, 1]. Defaults to `(32, 32, 3)`.
        classes: Number of logits. Defaults to 10.
        variant: `"vanilla"` or `"parseval"`, as in `kp.models.wide_resnet`; there
            are no sums here. Defaults to `"parseval"`.
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`. The
            paper does not tell the value for these networks. Defaults to `None`, the default of
            the constraint.
        rows: How many units of a layer take part in each step; the paper has 0.3.
            Defaults to `"auto"`.
        unbiased: Whether `beta` makes up for the rows left out. Defaults to `False`.
        weight_decay: As in `kp.models.wide_resnet`. Defaults to 5e-4.
        normalization: `None`, or `"batch"` for batch normalisation. Defaults to `None`.
        activation: `"relu"`, or `"maxmin"` for `kp.MaxMin`. Defaults to `"relu"`.
        mean: As in `kp.models.wide_resnet`. Defaults to 0.5.
        std: As in `kp.models.wide_resnet`. Defaults to 0.25.
        pad_to: Height and width to which images are padded with zeros, inside
            the model. The paper unrolls `32 x 32` pixels for MNIST too, whose
            images have 28 x 28. Defaults to `None`.
        name: Name of the model. Defaults to `"fully_connected"`.

    Returns:
        A functional model that returns logits, uncompiled.

    Example:

    ```python
    model = kp.models.fully_connected(2, 64, input_shape=(28, 28, 1), pad_to=32)
    ```
    """
    check_integer("hidden", hidden, "a positive integer", lambda value: value > 0)
    check_integer("units", units, "a positive integer", lambda value: value > 0)
    variants = ("vanilla", "parseval")
    parts = Parts(variant, variants, beta, rows, unbiased, weight_decay, normalization, activation)
    inputs = image_input(input_shape, (1, 3))
    x = inputs if pad_to is None else pad(inputs, pad_to)
    x = keras.layers.Flatten(name="flatten")(normalise_pixels(x, mean, std))
    for layer in range(hidden):
        x = parts.dense(units, f"hidden{layer + 1}")(x)
        x = parts.activate(x, f"hidden{layer + 1}_")
    return parts.model(inputs, x, classes, name or "fully_connected")


def _check_depth(depth: Any) -> int:
    rule = "an integer of the form 6 n + 4, for n blocks in each of the three groups"
    check_integer("depth", depth, rule, lambda value: True)
    nearest = 6 * max(1, round((depth - 4) / 6)) + 4
    if depth != nearest:
        raise ValueError(
            f"`depth` must be {rule}; {nearest} is the nearest. Received: depth={depth}"
        )
    return depth
