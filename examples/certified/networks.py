"""Networks of the same shape as `kp.models.lipschitz_convnet`, with other layers in it."""

import keras

import keras_parseval as kp


def with_scale_of_paper(model):
    """A copy of a model with flattened frames of the default scale, `prod(kernel_size)**-0.5`.

    The paper does not consider strides: wherever an image is halved, so is the signal.
    """

    def clone(layer):
        frame = kp.tight_frame(beta=0.5) if isinstance(layer, keras.layers.Conv2D) else {}
        return type(layer).from_config(layer.get_config() | frame)

    return keras.models.clone_model(model, clone_function=clone)


def plain(model):
    """What one would train without certificates: free kernels, batch normalisation, and ReLU."""

    def clone(layer):
        if isinstance(layer, kp.layers.BatchCentering):
            return keras.layers.BatchNormalization(name=layer.name)
        if isinstance(layer, kp.MaxMin):
            return keras.layers.ReLU(name=layer.name)
        free = {"kernel_constraint": None, "kernel_initializer": "he_normal"}
        return type(layer).from_config(layer.get_config() | (free if _has_kernel(layer) else {}))

    return keras.models.clone_model(model, clone_function=clone)


def with_layers_of(library):
    """A change of a model: its kernels come from the layers of another library, on PyTorch.

    Args:
        library: `"orthogonium"`, for its adaptive orthogonal convolutions, or `"torchlip"`, for
            the spectral layers of deel-torchlip.
    """

    def change(model):
        if keras.backend.backend() != "torch":
            raise ValueError(
                f"The layers of {library} must have the PyTorch backend; set KERAS_BACKEND=torch. "
                f"Received: {keras.backend.backend()}"
            )
        make = {"orthogonium": _orthogonium, "torchlip": _torchlip}[library]

        def clone(layer):
            if _has_kernel(layer):
                return KernelOfModule(make(layer), layer)
            return type(layer).from_config(layer.get_config())

        return keras.models.clone_model(model, clone_function=clone)

    return change


class KernelOfModule(keras.layers.TorchModuleWrapper):
    """A Conv2D or Dense layer whose kernel is the `weight` of a PyTorch module.

    Kernels are computed in float32, whatever the layer computes in.

    Args:
        module: The module, which computes its weight from parameters of its own.
        layer: The built Keras layer that it takes the place of.
    """

    def __init__(self, module, layer):
        super().__init__(module, name=layer.name, output_shape=layer.output.shape)
        self.layer_class = type(layer)
        free = {"kernel_constraint": None, "kernel_initializer": "zeros", "dtype": "float32"}
        self.layer_config = layer.get_config() | free
        self.bias = self.add_weight((layer.output.shape[-1],)) if layer.use_bias else None
        # They share memory with the module's, so that a checkpoint has them.
        self.states = [keras.Variable(each, trainable=False) for each in module.buffers()]

    def call(self, inputs, training=None):
        self.module.train(bool(training))
        kernel = keras.ops.cast(self.kernel(), inputs.dtype)
        if self.layer_class is keras.layers.Dense:
            outputs = keras.ops.matmul(inputs, kernel)
        else:
            strides = self.layer_config["strides"]
            outputs = keras.ops.conv(inputs, kernel, strides, self.layer_config["padding"])
        return outputs if self.bias is None else outputs + self.bias

    def kernel(self):
        """The kernel in the layout of Keras."""
        weight = self.module.weight
        axes = (1, 0) if len(weight.shape) == 2 else (2, 3, 1, 0)
        return keras.ops.transpose(weight, axes)


def _orthogonium(layer):
    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
    from orthogonium.layers.linear import OrthoLinear

    *size, channels, filters = layer.kernel.shape
    if not size:
        return OrthoLinear(channels, filters, bias=False)
    # The padding is Keras's, and only the weight of the module is used.
    options = {"padding": 0, "bias": False}
    return AdaptiveOrthoConv2d(channels, filters, size[0], layer.strides[0], **options)


def _torchlip(layer):
    from deel.torchlip import SpectralConv2d, SpectralLinear

    *size, channels, filters = layer.kernel.shape
    if not size:
        return SpectralLinear(channels, filters, bias=False)
    return SpectralConv2d(channels, filters, tuple(size), layer.strides, bias=False)


def finished(model):
    """A compiled copy in float32, of Keras's layers and those of this library alone."""

    def clone(layer):
        if isinstance(layer, KernelOfModule):
            return layer.layer_class.from_config(layer.layer_config)
        return type(layer).from_config(layer.get_config() | {"dtype": "float32"})

    copy = keras.models.clone_model(model, clone_function=clone)
    for ours, theirs in zip(copy.layers, model.layers, strict=True):
        if isinstance(theirs, KernelOfModule):
            theirs.module.eval()
            biases = [] if theirs.bias is None else [theirs.bias]
            ours.set_weights(
                [keras.ops.convert_to_numpy(each) for each in (theirs.kernel(), *biases)]
            )
        else:
            ours.set_weights(theirs.get_weights())
    copy.compile("sgd", model.loss, metrics=["accuracy"])
    return copy


def _has_kernel(layer):
    return isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
