"""Every kind of kernel the library supports, each sliced into its matrices by hand."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from keras import layers


@dataclasses.dataclass
class KernelCase:
    name: str
    make_layer: Callable  # takes the layer's kernel arguments, with the prefix of its kernel
    input_shape: tuple
    arguments: dict = dataclasses.field(default_factory=dict)  # scale, groups, output_axis
    prefix: str = "kernel"
    target: float = 1.0

    def build(self, **options):
        """The layer, built; `options` are its initializer, constraint, ..."""
        layer = self.make_layer(
            use_bias=False, **{f"{self.prefix}_{key}": value for key, value in options.items()}
        )
        layer.build((None, *self.input_shape))
        return layer

    def kernel(self, layer):
        """The variable that the arguments speak of."""
        separable = isinstance(layer, layers.SeparableConv2D)
        return getattr(layer, f"{self.prefix}_kernel") if separable else layer.kernel

    @property
    def shape(self):
        return tuple(self.kernel(self.build()).shape)

    def matrices(self, kernel):
        """The matrices with one row for each output, by plain slicing."""
        kernel = np.asarray(keras.ops.convert_to_numpy(kernel), dtype="float64")
        groups = self.arguments.get("groups", 1)
        if groups == "depthwise":
            channels = [kernel[..., channel, :] for channel in range(kernel.shape[-2])]
            return [channel.reshape(-1, kernel.shape[-1]).T for channel in channels]
        if self.arguments.get("output_axis", -1) == -2:
            return [np.stack([kernel[..., unit, :].ravel() for unit in range(kernel.shape[-2])])]
        size = kernel.shape[-1] // groups
        parts = [kernel[..., group * size : (group + 1) * size] for group in range(groups)]
        return [part.reshape(-1, size).T for part in parts]


def _einsum_dense(use_bias, **options):
    return layers.EinsumDense("ab,bc->ac", output_shape=24, **options)


def _layer(layer_class, *args, **fixed):
    return lambda **options: layer_class(*args, **fixed, **options)


CASES = [
    KernelCase("dense_wide", _layer(layers.Dense, 16), (40,)),
    KernelCase("dense_tall", _layer(layers.Dense, 40), (16,)),
    KernelCase("dense_square", _layer(layers.Dense, 24), (24,)),
    KernelCase("dense_one_unit", _layer(layers.Dense, 1), (12,)),
    KernelCase("einsum_dense", _einsum_dense, (32,)),
    KernelCase("conv1d", _layer(layers.Conv1D, 8, 3), (6, 4), target=3**-0.5),
    KernelCase(
        "conv1d_dilated",
        _layer(layers.Conv1D, 8, 3, dilation_rate=2, padding="same"),
        (8, 4),
        target=3**-0.5,
    ),
    KernelCase("conv2d", _layer(layers.Conv2D, 8, 3, padding="same"), (5, 5, 4), target=1 / 3),
    KernelCase("conv2d_tall", _layer(layers.Conv2D, 20, (3, 2)), (5, 5, 2), target=6**-0.5),
    KernelCase(
        "conv2d_strided",
        _layer(layers.Conv2D, 8, 3, strides=2, padding="same"),
        (6, 6, 4),
        {"scale": 0.5},  # prod(ceil(3 / 2))**-0.5
        target=0.5,
    ),
    KernelCase("conv3d", _layer(layers.Conv3D, 6, 2), (3, 3, 3, 2), target=8**-0.5),
    KernelCase(
        "conv2d_grouped",
        _layer(layers.Conv2D, 12, 3, groups=4, padding="same"),
        (4, 4, 8),
        {"groups": 4},
        target=1 / 3,
    ),
    KernelCase(
        "conv2d_transposed",
        _layer(layers.Conv2DTranspose, 6, 3, strides=2),
        (3, 3, 8),
        {"output_axis": -2},
        target=1 / 3,
    ),
    KernelCase(
        "depthwise2d",
        _layer(layers.DepthwiseConv2D, 3, depth_multiplier=2, padding="same"),
        (4, 4, 6),
        {"groups": "depthwise"},
        "depthwise",
        target=1 / 3,
    ),
    KernelCase(
        "depthwise1d",
        _layer(layers.DepthwiseConv1D, 4),
        (6, 3),
        {"groups": "depthwise"},
        "depthwise",
        target=0.5,
    ),
    KernelCase(
        "separable_depthwise",
        _layer(layers.SeparableConv2D, 8, 3),
        (5, 5, 4),
        {"groups": "depthwise"},
        "depthwise",
        target=1 / 3,
    ),
    KernelCase(
        "separable_pointwise", _layer(layers.SeparableConv2D, 8, 3), (5, 5, 4), {}, "pointwise"
    ),
]
