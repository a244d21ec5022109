"""The networks of the paper, plain and Parseval."""

import keras
import numpy as np

from keras_parseval._validation import check_choice, check_integer, check_number
from keras_parseval.constrained import check_rows_fit, constrain_kernel
from keras_parseval.constraints import ParsevalTightFrame
from keras_parseval.initializers import TightFrame
from keras_parseval.layer_kernels import layer_kernels
from keras_parseval.layers import ConvexAdd, MaxMin
from keras_parseval.recipes import PAPER as PAPER

ARMS = ("vanilla", "parseval-oc", "parseval")


def wide_resnet(
    depth,
    width,
    input_shape=(32, 32, 3),
    classes=10,
    arm="parseval",
    beta=0.1,
    rows=1.0,
    unbiased=False,
    dropout=0.3,
    weight_decay=5e-4,
    normalization="batch",
    activation="relu",
    mean=0.5,
    std=0.25,
    name=None,
):
    """A wide residual network, as in the paper's experiments on CIFAR and SVHN.

    Zagoruyko and Komodakis' network with pre-activation: a convolution of 16
    filters, three groups of `(depth - 4) / 6` blocks with 16, 32 and 64 times
    `width` filters, the second and third of which halve the image, global
    average pooling and the classifier. The defaults are the paper's for CIFAR, but
    for `beta`; `kp.models.PAPER` has the paper's for every data set.

    Args:
        depth: Number of layers, `6 n + 4`: 16, 28 and 40 are common.
        width: Factor on the number of filters.
        input_shape: Shape of an image, channels last. Pixels go in as numbers
            in [0, 1].
        classes: Number of logits.
        arm: `"vanilla"`: nothing is constrained, and all kernels have weight
            decay. `"parseval-oc"`: all hidden kernels start as tight frames
            (`kp.TightFrame`) and are held there (`kp.ParsevalTightFrame`, its
            scale fit to the strides); weight decay on the classifier alone.
            `"parseval"`: the residual sums are convex too (`kp.ConvexAdd`).
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`. The
            paper's is 3e-4, which does not hold the frame over a short schedule.
        rows: How many units of a layer take part in each step.
        unbiased: Whether `beta` makes up for the rows left out.
        dropout: Rate of the dropout between the two convolutions of a block.
        weight_decay: Factor of the weights in the update of SGD, before the
            learning rate. The regularizer is `L2(weight_decay / 2)`, because
            the gradient of a square has a factor of 2.
        normalization: `"batch"`, or `None` for biases in its place. Batch
            normalisation rescales every channel, and undoes the Lipschitz bound.
            Without it Parseval networks shrink what passes through them, block
            after block: deep ones learn slowly, or nothing in a few epochs.
        activation: `"relu"`, or `"maxmin"` for `kp.MaxMin`.
        mean: What the first layer subtracts from the pixels: a number, or one for
            each channel.
        std: What it divides them by. It is fixed, and saved with the model.
        name: Name of the model.

    Returns:
        A functional model that returns logits, uncompiled.

    Example:

    ```python
    model = kp.models.wide_resnet(10, 2, arm="parseval", normalization=None)
    ```
    """
    blocks = (_check_depth(depth) - 4) // 6
    check_integer("width", width, "a positive integer", lambda value: value > 0)
    parts = _Parts(arm, ARMS, beta, rows, unbiased, weight_decay, normalization, activation)
    rate = check_number("dropout", dropout, "a rate in [0, 1)", lambda value: 0 <= value < 1)
    inputs = _image_input(input_shape, (3,))
    x = _normalise_pixels(inputs, mean, std)
    x = parts.convolution(16, 3, 1, "conv")(x)
    for group in range(3):
        for block in range(blocks):
            strides = 2 if group and not block else 1
            prefix = f"group{group + 1}_block{block + 1}_"
            x = _residual_block(parts, x, 16 * width * 2**group, strides, rate, prefix)
    x = parts.activate(x, "last_")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return parts.model(inputs, x, classes, name or f"wrn_{depth}_{width}")


def _residual_block(parts, x, filters, strides, dropout, prefix):
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
    hidden=4,
    units=2048,
    input_shape=(32, 32, 3),
    classes=10,
    arm="parseval",
    beta=0.1,
    rows=0.3,
    unbiased=False,
    weight_decay=5e-4,
    normalization=None,
    activation="relu",
    mean=0.5,
    std=0.25,
    pad_to=None,
    name=None,
):
    """A fully connected network, as in the paper's experiments on MNIST and CIFAR-10.

    Args:
        hidden: Number of hidden layers.
        units: Units in each of them.
        input_shape: Shape of an image, channels last, or of a vector. Pixels go in
            as numbers in [0, 1].
        classes: Number of logits.
        arm: `"vanilla"` or `"parseval"`, as in `kp.models.wide_resnet`; there
            are no sums here.
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`. The
            paper does not tell the value for these networks.
        rows: How many units of a layer take part in each step.
        unbiased: Whether `beta` makes up for the rows left out.
        weight_decay: As in `kp.models.wide_resnet`.
        normalization: `None`, or `"batch"` for batch normalisation.
        activation: `"relu"`, or `"maxmin"` for `kp.MaxMin`.
        mean: As in `kp.models.wide_resnet`.
        std: As in `kp.models.wide_resnet`.
        pad_to: Height and width to which images are padded with zeros, inside
            the model. The paper unrolls `32 x 32` pixels for MNIST too, whose
            images have 28 x 28.
        name: Name of the model.

    Returns:
        A functional model that returns logits, uncompiled.

    Example:

    ```python
    model = kp.models.fully_connected(2, 64, input_shape=(28, 28, 1), pad_to=32)
    ```
    """
    check_integer("hidden", hidden, "a positive integer", lambda value: value > 0)
    check_integer("units", units, "a positive integer", lambda value: value > 0)
    arms = ("vanilla", "parseval")
    parts = _Parts(arm, arms, beta, rows, unbiased, weight_decay, normalization, activation)
    inputs = _image_input(input_shape, (1, 3))
    x = inputs if pad_to is None else _pad(inputs, pad_to)
    x = keras.layers.Flatten(name="flatten")(_normalise_pixels(x, mean, std))
    for layer in range(hidden):
        x = parts.dense(units, f"hidden{layer + 1}")(x)
        x = parts.activate(x, f"hidden{layer + 1}_")
    return parts.model(inputs, x, classes, name or "fully_connected")


class _Parts:
    """Makes the layers of one arm, so that the builders say only how they are connected."""

    def __init__(self, arm, arms, beta, rows, unbiased, weight_decay, normalization, activation):
        self.arm = check_choice("arm", arm, arms)
        self.options = {"beta": beta, "rows": rows, "unbiased": unbiased}
        ParsevalTightFrame(**self.options)
        self.weight_decay = check_number(
            "weight_decay", weight_decay, "a number of at least 0", lambda value: value >= 0
        )
        self.normalization = check_choice("normalization", normalization, ("batch", None))
        self.activation = check_choice("activation", activation, ("relu", "maxmin"))

    def convolution(self, filters, size, strides, name):
        bias = self.normalization is None
        return self._hidden(
            keras.layers.Conv2D(filters, size, strides, "same", use_bias=bias, name=name)
        )

    def dense(self, units, name):
        bias = self.normalization is None
        return self._hidden(keras.layers.Dense(units, use_bias=bias, name=name))

    def _hidden(self, layer):
        (kernel,) = layer_kernels(layer)
        if self.arm == "vanilla":
            layer.kernel_initializer = keras.initializers.HeNormal()
            layer.kernel_regularizer = self._decay()
        else:
            layer.kernel_initializer = TightFrame(**kernel.layout.get_config())
            constrain_kernel(kernel, **self.options)
        return layer

    def model(self, inputs, features, classes, name):
        """The whole model, with the classifier put on top of its features."""
        check_integer("classes", classes, "a positive integer", lambda value: value > 0)
        logits = keras.layers.Dense(classes, kernel_regularizer=self._decay(), name="logits")
        model = keras.Model(inputs, logits(features), name=name)
        kernels = [kernel for layer in model.layers for kernel in layer_kernels(layer)]
        check_rows_fit(self.options["rows"], [each for each in kernels if each.constraint])
        return model

    def _decay(self):
        return keras.regularizers.L2(self.weight_decay / 2) if self.weight_decay else None

    def activate(self, x, prefix):
        if self.normalization == "batch":
            layer = keras.layers.BatchNormalization(
                momentum=0.9, epsilon=1e-5, name=f"{prefix}normalization"
            )
            x = layer(x)
        if self.activation == "maxmin":
            return MaxMin(name=f"{prefix}maxmin")(x)
        return keras.layers.ReLU(name=f"{prefix}relu")(x)

    def merge(self, name):
        return ConvexAdd(name=name) if self.arm == "parseval" else keras.layers.Add(name=name)


def _check_depth(depth):
    rule = "an integer of the form 6 n + 4, for n blocks in each of the three groups"
    check_integer("depth", depth, rule, lambda value: True)
    nearest = 6 * max(1, round((depth - 4) / 6)) + 4
    if depth != nearest:
        raise ValueError(
            f"`depth` must be {rule}; {nearest} is the nearest. Received: depth={depth}"
        )
    return depth


def _image_input(input_shape, ranks):
    shape = tuple(input_shape)
    if len(shape) not in ranks or not all(isinstance(size, int) and size > 0 for size in shape):
        vector = " or (features,)" if 1 in ranks else ""
        raise ValueError(
            f"`input_shape` must be (height, width, channels){vector}, in positive integers. "
            f"Received: input_shape={input_shape}"
        )
    return keras.Input(shape, name="pixels")


def _normalise_pixels(x, mean, std):
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


def _pad(x, side):
    check_integer(
        "pad_to",
        side,
        "the side of an image, no smaller than the height and width of the input",
        lambda value: len(x.shape) == 4 and value >= max(x.shape[1:3]),
    )
    margins = [((side - size) // 2, (side - size + 1) // 2) for size in x.shape[1:3]]
    return keras.layers.ZeroPadding2D(margins, name="pad")(x)
