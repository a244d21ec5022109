"""The singular values of kernels, and how far they are from a tight frame."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._keras_internals import layers_by_path
from keras_parseval._layer_kernels import LayerKernel, is_parseval, layer_kernels
from keras_parseval._validation import check_flag


def singular_values(
    layer_or_model: Any, *, relative: bool = False
) -> np.ndarray | dict[str, np.ndarray]:
    """The singular values of the kernels of a layer or model.

    Each kernel is read as a matrix with one row for each output unit, a grouped or depthwise
    kernel as one matrix for each group, a transposed convolution as the convolution that it
    transposes. The target is the singular value that makes the layer 1-Lipschitz: 1 for Dense
    layers, `prod(ceil(kernel_size / strides))**-0.5` for convolutions. A kernel constrained by
    `kp.ParsevalTightFrame` is read as the constraint reads it, and has its `scale` for target.

    By default the values are those of the matrix itself, as the name says, and as bounds on
    the layer need them. With `relative=True` they are divided by the target: 1 then means
    tight for every kernel, and Dense layers and convolutions can be compared.

    Args:
        layer_or_model: A built Keras layer or model. Layers inside models and other
            layers count, each once. Layers without a kernel that is read as a matrix are
            left out.
        relative: Whether to divide by the target. Defaults to `False`.

    Returns:
        For a layer with one kernel, an array of float64: the values from the largest to
        the smallest, group after group. For anything that can hold several kernels, a model or
        a `SeparableConv2D`, a dictionary of such arrays. Its keys are the names of the layers,
        such as `"conv"`, or `"block/conv"` for a layer inside another; a separable layer has two,
        `"conv/depthwise_kernel"` and `"conv/pointwise_kernel"`.
        A kernel that is not finite has NaN for singular values.

    Example:

    ```python
    layer = keras.layers.Conv2D(8, 3, kernel_initializer=kp.TightFrame())
    model = keras.Sequential([keras.Input((8, 8, 4)), layer])
    kp.singular_values(layer)  # eight times 1/3
    kp.singular_values(model, relative=True)  # {"conv2d": eight times 1}
    ```
    """
    check_flag("relative", relative)
    return _measure(layer_or_model, lambda kernel: kernel_singular_values(kernel, relative))


def tightness(layer_or_model: Any) -> float | dict[str, float]:
    """How far the kernels of a layer or model are from a tight frame; 0 for a tight frame.

    For a kernel read as a matrix `W` this is `||W W^T / s^2 - I||_F / sqrt(n)`, with `s` the
    target of `kp.singular_values`, and `n` the shorter side of `W`, whose Gram matrix is taken:
    `W^T W` where there are more outputs than inputs. It is the root mean square of
    `t^2 / s^2 - 1` over the singular values `t`; for grouped and depthwise kernels over those of
    all groups.

    Args:
        layer_or_model: A built Keras layer or model, as in `kp.singular_values`.

    Returns:
        A number for a layer with one kernel, and otherwise a dictionary of
        numbers, with the keys of `kp.singular_values`.

    Example:

    ```python
    layer = keras.layers.Dense(16, kernel_initializer=kp.TightFrame())
    layer.build((None, 40))
    kp.tightness(layer)  # 0 up to rounding
    ```
    """
    return _measure(layer_or_model, kernel_tightness)


def kernel_singular_values(kernel: LayerKernel, relative: bool) -> np.ndarray:
    """The singular values of one `LayerKernel`."""
    matrices, target = _wide_matrices(kernel)
    if not np.isfinite(matrices).all():
        return np.full(matrices[..., 0].size, np.nan)
    values = np.linalg.svd(matrices, compute_uv=False).ravel()
    return values / target if relative else values


def kernel_tightness(kernel: LayerKernel) -> float:
    """The tightness of one `LayerKernel`."""
    matrices, target = _wide_matrices(kernel)
    if not np.isfinite(matrices).all():
        return float("nan")
    gram = matrices @ np.swapaxes(matrices, -1, -2)
    difference = gram / target**2 - np.eye(gram.shape[-1])
    return float(np.sqrt(np.square(difference).sum(axis=-1).mean()))


def named_kernels(layer_or_model: Any) -> dict[str, LayerKernel]:
    """All kernels that a layer or model holds, by name, or an error if there is none.

    Returns:
        Dictionary of `LayerKernel`.
    """
    if not isinstance(layer_or_model, keras.layers.Layer):
        raise TypeError(
            "Singular values are those of a Keras layer or model; for a matrix use "
            f"`numpy.linalg.svd`. Received: {layer_or_model!r}"
        )
    named: dict[str, LayerKernel] = {}
    for path, layer in layers_by_path(layer_or_model):
        kernels = layer_kernels(layer)
        for kernel in kernels:
            _check_readable(kernel)
            name = path if len(kernels) == 1 else f"{path}/{kernel.attribute}"
            if name in named:
                raise ValueError(
                    "Layers must have names of their own, to be told apart; pass `name` to one "
                    f"of them. Received: two layers named '{name}'"
                )
            named[name] = kernel
    if not named:
        raise ValueError(
            "There must be the kernel of a Dense, a convolution, or an EinsumDense that multiplies "
            f"by a matrix. Received: '{layer_or_model.name}' of type "
            f"{type(layer_or_model).__name__}, which has no kernel that is read as a matrix"
        )
    return named


def select_kernels(model: Any, layers: Any) -> dict[str, LayerKernel]:
    """Those of the kernels of a model that belong to the given layers.

    Args:
        model: A built Keras model.
        layers: `None` for all kernels; a layer or its name, or a list of such. A
            name stands for all kernels of the layer, and of those inside it.

    Returns:
        Dictionary of `LayerKernel`.
    """
    named = named_kernels(model)
    if layers is None:
        return named
    layers = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not layers:
        raise ValueError("`layers` must name at least one layer, or be None. Received: layers=[]")
    paths = {id(layer): path for path, layer in layers_by_path(model)}
    selected: dict[str, LayerKernel] = {}
    for layer in layers:
        path = layer if isinstance(layer, str) else paths.get(id(layer))
        inside = {
            name: kernel
            for name, kernel in named.items()
            if path is not None and f"{name}/".startswith(f"{path}/")
        }
        if not inside:
            raise ValueError(
                "`layers` must name layers of the model that have a kernel read as a matrix, "
                f"among them {', '.join(named)}. Received: {layer!r}"
            )
        selected.update(inside)
    return selected


def _measure(layer_or_model: Any, measure: Callable[[LayerKernel], Any]) -> Any:
    """What `measure` says of the one kernel of a layer, or of each by name."""
    kernels = named_kernels(layer_or_model)
    values = {name: measure(kernel) for name, kernel in kernels.items()}
    (name, kernel), *others = kernels.items()
    return values[name] if not others and kernel.layer is layer_or_model else values


def _wide_matrices(kernel: LayerKernel) -> tuple[np.ndarray, float]:
    """The matrices of a `LayerKernel`, lying on their longer side, and the target."""
    layout = kernel.constraint.layout if is_parseval(kernel) else kernel.layout
    matrices = ops.convert_to_numpy(layout.to_matrices(kernel.variable)).astype("float64")
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = np.swapaxes(matrices, -1, -2)
    return matrices, layout.target(tuple(kernel.variable.shape))


def _check_readable(kernel: LayerKernel) -> None:
    layer = kernel.layer
    if not layer.built:
        raise ValueError(
            "A layer must be built to have a kernel; call the model on data first, or start it "
            f"with `keras.Input`. Received: layer '{layer.name}', which is not built"
        )
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(kernel.variable.dtype)):
        raise ValueError(
            "A kernel must consist of floating-point numbers; measure the model before it is "
            f"quantized. Received: layer '{layer.name}' with dtype={kernel.variable.dtype}"
        )
