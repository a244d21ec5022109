"""Lipschitz rules for image layers: augmentation, which rests at inference, crops and resizes."""

import keras
import numpy as np
from keras import ops

from keras_parseval.analysis._batch_axis import check_known
from keras_parseval.analysis._operator_norms import separable_norm
from keras_parseval.analysis._rules import Constant, lipschitz_rule, operation_rule

_L = keras.layers
# Some are missing in older versions of Keras.
_AUGMENTATION = [
    getattr(_L, name)
    for name in (
        *("RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "RandomContrast"),
        *("RandomBrightness", "RandomShear", "RandomPerspective", "RandomElasticTransform"),
        *("RandomColorDegeneration", "RandomColorJitter", "RandomGrayscale", "RandomHue"),
        *("RandomSaturation", "RandomSharpness", "RandomGaussianBlur", "RandomInvert"),
        *("RandomPosterization", "RandomErasing", "RandAugment", "AugMix", "MixUp", "CutMix"),
        *("Solarization", "MaxNumBoundingBoxes"),
    )
    if hasattr(_L, name)
]


@lipschitz_rule(*_AUGMENTATION)
def _augmentation(layer, call):
    return Constant(1.0, "identity at inference")


@lipschitz_rule(_L.RandomCrop)
def _random_crop(layer, call):
    if call.input_shapes != (call.output_shape,):
        raise ValueError(
            "A `RandomCrop` leaves the image as it is at inference, so that the shapes after it "
            "are not those of the graph; crop the training data before the model, or use "
            f"`CenterCrop`. Received: layer '{layer.name}' with a crop from "
            f"{call.input_shapes[0]} to {call.output_shape}"
        )
    return Constant(1.0, "identity at inference")


@lipschitz_rule(_L.CenterCrop)
def _center_crop(layer, call):
    before, after = (_spatial(layer, each) for each in (call.input_shapes[0], call.output_shape))
    check_known(layer, before)
    if all(size >= cropped for size, cropped in zip(before, after)):
        return Constant(1.0, "moves or drops elements")
    return _resizing(layer, call)


@lipschitz_rule(_L.UpSampling2D)
def _upsampling(layer, call):
    if layer.interpolation != "nearest":
        return _resizing(layer, call)
    copies = layer.size[0] * layer.size[1]
    return Constant(1.0 if call.norm == "inf" else copies**0.5, f"repeats {copies} times")


@lipschitz_rule(_L.Resizing)
def _resizing(layer, call):
    # A copy, because the layer of the user need not see other images.
    config = {**layer.get_config(), "dtype": "float32"}
    copy = type(layer).from_config(config)
    return _interpolation(layer, copy, call)


@operation_rule("Resize")
def _resize_operation(operation, call):
    return _interpolation(operation, operation, call)


def _interpolation(layer, apply, call):
    sizes = _spatial(layer, call.input_shapes[0])
    check_known(layer, sizes)
    _check_floating(layer, call)
    axis = 1 if layer.data_format == "channels_first" else -1

    def on_one_channel(images):
        images = ops.convert_to_tensor(np.expand_dims(images, axis).astype("float32"))
        return ops.convert_to_numpy(apply(images)).take(0, axis=axis)

    norm = separable_norm(on_one_channel, sizes, call.norm)
    if norm is None:
        raise ValueError(
            "A resize must be linear, the same along every row and along every column, to have a "
            f"known Lipschitz constant. Received: '{layer.name}', which is not"
        )
    return Constant(norm, "norm of the interpolation")


def _check_floating(layer, call):
    images = [each for each in call.arguments.values() if isinstance(each, keras.KerasTensor)]
    if not all(keras.backend.is_float_dtype(each.dtype) for each in images):
        raise ValueError(
            "A resize of integers rounds, and has no Lipschitz constant; give the model inputs of "
            f"floating-point numbers. Received: '{layer.name}' on {images[0].dtype}"
        )


def _spatial(layer, shape):
    return shape[1:] if layer.data_format == "channels_first" else shape[:-1]
