"""The singular values of kernels, and how far they are from a tight frame."""

from typing import Any

import numpy as np

from keras_parseval._kernel_readings import CONVOLUTION_READINGS, Convolutions, layout_in_use
from keras_parseval._layer_kernels import LayerKernel
from keras_parseval._validation import check_choice, check_flag
from keras_parseval.analysis._kernel_selection import measured_kernels, named_kernels


def singular_values(
    layer_or_model: Any, *, relative: bool = False, convolutions: Convolutions | None = None
) -> np.ndarray | dict[str, np.ndarray]:
    """The singular values of the kernels of a layer or model.

    Each kernel is read as a matrix with one row for each output unit, a grouped or depthwise
    kernel as one matrix for each group, a recurrent layer's as one for each gate, a transposed
    convolution as the convolution that it transposes. The target is the singular value that makes
    the product with the kernel 1-Lipschitz: `prod(ceil(kernel_size / strides))**-0.5` for
    convolutions, and 1 for all else. A kernel constrained by `kp.ParsevalTightFrame` is read as
    the constraint reads it, and has its `scale` for target. Where the constraint was not told that
    the kernel is none of a Dense layer or plain convolution, there is a warning, and the kernel is
    read as the layer computes with it.

    A convolution is also an operator, with singular values of its own, and a kernel constrained
    by `kp.ParsevalConvolution` is read as that. They are those of the convolution of an image with
    its ends joined, of `2 n - 1` points along an axis with `n` taps (times the stride): if they are
    all 1, they are so for every size of image. Their target is 1.

    By default the values are those of the matrix itself, as the name says, and as bounds on
    the layer need them. With `relative=True` they are divided by the target: 1 then means
    tight for every kernel, and Dense layers and convolutions can be compared.

    Args:
        layer_or_model: A built Keras layer or model. Layers inside models and other
            layers count, each once, the classifier too. Layers without a kernel that is read as a
            matrix are left out, but for weights that `kp.ParsevalTightFrame` constrains.
        relative: Whether to divide by the target. Defaults to `False`.
        convolutions: `"kernel"` to read all convolutions as flattened kernels, or `"operator"` to
            read them as operators (not depthwise ones, which are always read as kernels). By
            default each is read as its constraint reads it, or else as a kernel.
            Defaults to `None`.

    Returns:
        For a layer with one kernel, an array of float64: the values from the largest to
        the smallest, group after group. For anything that can hold several kernels, a model or
        a `SeparableConv2D`, a dictionary of such arrays. Its keys are the names of the layers,
        such as `"conv"`, or `"block/conv"` and `"attention/query"` for a layer inside another. A
        layer with two kernels has two, such as `"lstm/kernel"` and `"lstm/recurrent_kernel"`.
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
    check_choice("convolutions", convolutions, CONVOLUTION_READINGS)
    kernels = named_kernels(layer_or_model)
    values = {
        name: kernel_singular_values(kernel, relative, convolutions)
        for name, kernel in kernels.items()
    }
    (name, kernel), *others = kernels.items()
    return values[name] if not others and kernel.layer is layer_or_model else values


def tightness(
    layer_or_model: Any,
    *,
    layers: Any = None,
    per_layer: bool = False,
    convolutions: Convolutions | None = None,
) -> float | dict[str, float]:
    """How far the kernels of a layer or model are from a tight frame; 0 for a tight frame.

    For a kernel read as a matrix `W` this is `||W W^T / s^2 - I||_F / sqrt(n)`, with `s` the
    target of `kp.singular_values`, and `n` the shorter side of `W`, whose Gram matrix is taken:
    `W^T W` where there are more outputs than inputs. It is the root mean square of
    `t^2 / s^2 - 1` over the singular values `t`; for kernels that are several matrices over those
    of all of them.

    Args:
        layer_or_model: A built Keras layer or model, as in `kp.singular_values`.
        layers: The layers to measure: a layer or its name, or a list of such. By default
            those whose kernels are constrained to be tight; if none is, all
            layers with kernels but for the classifier, which is the layer after which only
            activations follow. Defaults to `None`.
        per_layer: Whether to return the values of all kernels, and not the worst of them alone.
            Defaults to `False`.
        convolutions: As in `kp.singular_values`. Defaults to `None`.

    Returns:
        The largest value of all kernels. With `per_layer=True` a dictionary of all values,
        with the keys of `kp.singular_values`.

    Example:

    ```python
    hidden = keras.layers.Dense(16, "relu", name="hidden", kernel_initializer=kp.TightFrame())
    model = keras.Sequential([keras.Input((40,)), hidden, keras.layers.Dense(3)])
    kp.tightness(model)  # 0 up to rounding
    kp.tightness(model, per_layer=True)  # {"hidden": 0 up to rounding}
    ```
    """
    check_flag("per_layer", per_layer)
    check_choice("convolutions", convolutions, CONVOLUTION_READINGS)
    kernels = measured_kernels(layer_or_model, layers)
    values = {name: kernel_tightness(kernel, convolutions) for name, kernel in kernels.items()}
    # NumPy's maximum is NaN where one of the values is.
    return values if per_layer else float(np.max(list(values.values())))


def kernel_singular_values(
    kernel: LayerKernel, relative: bool, convolutions: Convolutions | None = None
) -> np.ndarray:
    """The singular values of one `LayerKernel`."""
    matrices, target = _wide_matrices(kernel, convolutions)
    if not np.isfinite(matrices).all():
        return np.full(matrices[..., 0].size, np.nan)
    values = np.linalg.svd(matrices, compute_uv=False).ravel()
    return values if relative else values * target


def kernel_tightness(kernel: LayerKernel, convolutions: Convolutions | None = None) -> float:
    """The tightness of one `LayerKernel`."""
    matrices, _ = _wide_matrices(kernel, convolutions)
    if not np.isfinite(matrices).all():
        return float("nan")
    gram = matrices @ np.swapaxes(matrices.conj(), -1, -2)
    difference = np.abs(gram - np.eye(gram.shape[-1]))
    return float(np.sqrt(np.square(difference).sum(axis=-1).mean()))


def _wide_matrices(
    kernel: LayerKernel, convolutions: Convolutions | None
) -> tuple[np.ndarray, float]:
    """The matrices of a `LayerKernel` over their target, lying on their longer side; the target."""
    layout = layout_in_use(kernel, convolutions)
    matrices = layout.relative_matrices(kernel.variable)
    if matrices.shape[-2] > matrices.shape[-1]:
        matrices = np.swapaxes(matrices, -1, -2)
    return matrices, layout.target(tuple(kernel.variable.shape))
