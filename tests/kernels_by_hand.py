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
    arguments: dict = dataclasses.field(default_factory=dict)  # scale, groups, axes
    prefix: str = "kernel"
    target: float = 1.0
    slices: Callable | None = None  # the matrices of a kernel that is stored in a way of its own

    def build(self, **options):
        """The layer, built; `options` are its initializer, constraint, ..."""
        layer = self.make_layer(
            use_bias=False, **{f"{self.prefix}_{key}": value for key, value in options.items()}
        )
        layer.build((None, *self.input_shape))
        return layer

    def kernel(self, layer):
        """The variable that the arguments speak of."""
        layer = layer.cell if isinstance(layer, layers.RNN) else layer
        has_two = isinstance(layer, layers.SeparableConv2D) or self.prefix == "recurrent"
        return getattr(layer, f"{self.prefix}_kernel") if has_two else layer.kernel

    @property
    def shape(self):
        return tuple(self.kernel(self.build()).shape)

    def matrices(self, kernel):
        """The matrices with one row for each output, by plain slicing."""
        kernel = np.asarray(keras.ops.convert_to_numpy(kernel), dtype="float64")
        if self.slices:
            return self.slices(kernel)
        groups = self.arguments.get("groups", 1)
        if groups == "depthwise":
            channels = [kernel[..., channel, :] for channel in range(kernel.shape[-2])]
            return [channel.reshape(-1, kernel.shape[-1]).T for channel in channels]
        if self.arguments.get("axes") == "...oi":
            return [np.stack([kernel[..., unit, :].ravel() for unit in range(kernel.shape[-2])])]
        size = kernel.shape[-1] // groups
        parts = [kernel[..., group * size : (group + 1) * size] for group in range(groups)]
        return [part.reshape(-1, size).T for part in parts]


def _einsum_dense(equation, output_shape):
    return lambda use_bias, **options: layers.EinsumDense(
        equation, output_shape=output_shape, **options
    )


def into_heads(kernel):
    """The matrix of a kernel `(inputs, heads, head size)`, with a row for each output."""
    _, heads, size = kernel.shape
    return [np.stack([kernel[:, head, unit] for head in range(heads) for unit in range(size)])]


def from_heads(kernel):
    """The matrix of a kernel `(heads, head size, outputs)`, with a row for each output."""
    return [np.stack([kernel[:, :, unit].ravel() for unit in range(kernel.shape[-1])])]


def _layer(layer_class, *args, **fixed):
    return lambda **options: layer_class(*args, **fixed, **options)


CASES = [
    KernelCase("dense_wide", _layer(layers.Dense, 16), (40,)),
    KernelCase("dense_tall", _layer(layers.Dense, 40), (16,)),
    KernelCase("dense_square", _layer(layers.Dense, 24), (24,)),
    KernelCase("dense_one_unit", _layer(layers.Dense, 1), (12,)),
    KernelCase("einsum_dense", _einsum_dense("ab,bc->ac", 24), (32,)),
    KernelCase(
        "einsum_into_heads",
        _einsum_dense("abc,cde->abde", (2, 3, 4)),
        (2, 10),
        {"axes": "ioo"},
        slices=into_heads,
    ),
    KernelCase(
        "einsum_from_heads",
        _einsum_dense("...cd,cde->...e", 8),
        (2, 3, 4),
        {"axes": "iio"},
        slices=from_heads,
    ),
    KernelCase(
        "einsum_shared",
        _einsum_dense("abc,bcd->abd", (3, 6)),
        (3, 4),
        {"axes": "gio"},
        slices=lambda kernel: [kernel[index].T for index in range(3)],
    ),
    KernelCase(
        "einsum_outputs_first",
        _einsum_dense("abc,dbec->ade", (4, 5)),
        (3, 6),
        {"axes": "oioi"},
        slices=lambda kernel: [
            np.stack([kernel[d, :, e, :].ravel() for d in range(4) for e in range(5)])
        ],
    ),
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
        {"axes": "...oi"},
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


def _gates(layer_class, gates, prefix):
    name = f"{layer_class.__name__}_{prefix}".lower()
    arguments = {"groups": gates} if gates > 1 else {}
    return KernelCase(name, _layer(layer_class, 6), (3, 8), arguments, prefix)


# Layers that are not linear: their kernels are constrained, which does not bound the layer.
RECURRENT_CASES = [
    _gates(layer_class, gates, prefix)
    for layer_class, gates in [(layers.SimpleRNN, 1), (layers.GRU, 3), (layers.LSTM, 4)]
    for prefix in ("kernel", "recurrent")
] + [
    KernelCase(
        f"convlstm1d_{prefix}",
        _layer(layers.ConvLSTM1D, 2, 3, padding="same"),
        (2, 4, 3),
        {"groups": 4},
        prefix,
        target=3**-0.5,
    )
    for prefix in ("kernel", "recurrent")
]
