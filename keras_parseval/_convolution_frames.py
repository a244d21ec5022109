"""Steps towards convolutions that are tight frames as operators, and the way to the set.

The paper's retraction with `W` the convolution itself, and not its kernel as a flat matrix:
`K <- K + beta (K - P[K * K^T * K])`, where `*` is the composition of convolutions and `P` keeps the
taps of the kernel's own size. Fourier transforms turn the compositions into products of
small matrices, one for each frequency.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_parseval._backend import excess_images_by_hand
from keras_parseval._convolution_layout import ConvolutionLayout, Strides, TorusTransform
from keras_parseval._precision import keep_dtype
from keras_parseval._tight_frames import (
    retract_and_measure,
    spectral_error,
    step_until_close,
    take_step,
)
from keras_parseval._validation import check_beta, check_integer


@keep_dtype
def tight_convolution_step(
    kernel: Any, beta: float, strides: Strides = 1, groups: int = 1, steps: int = 1
) -> Any:
    """Steps of the retraction that makes a convolution a tight frame.

    All singular values of the convolution itself are drawn to 1, not those of its flattened
    kernel, so that it keeps its signal, whatever the size of the image. Each step is one of
    gradient descent on `||W W^T - I||_F**2` (with `W^T W` where there are more outputs than inputs)
    over the kernels of this size, and never raises it. Step sizes are lowered where they have to
    be, so that no start makes it diverge.

    Args:
        kernel: Tensor of shape `(*spatial, inputs, outputs)`, as Keras stores the kernels of
            convolutions; that of a transposed convolution is read as the convolution that it
            transposes. Dilation makes no difference.
        beta: Step size in (0, 0.5].
        strides: The strides of the layer: an integer, or one for each axis. Defaults to 1.
        groups: The groups of the layer. Defaults to 1.
        steps: Number of steps. Defaults to 1.

    Returns:
        Tensor with the shape and dtype of `kernel`.

    Example:

    ```python
    kernel = keras.random.normal((3, 3, 16, 32)) / 12
    for _ in range(20):
        kernel = kp.constraints.tight_convolution_step(kernel, beta=0.5)
    ```
    """
    check_integer("steps", steps, "a positive integer", lambda value: value > 0)
    return _step(kernel, check_beta(beta), ConvolutionLayout(strides, groups), steps)


@keep_dtype
def project_tight_convolution(
    kernel: Any, strides: Strides = 1, groups: int = 1, steps: int = 300
) -> Any:
    """A tight convolution near the given one, as near as steps of the retraction lead.

    There is no closed form for the nearest kernel of the same size, and from some kernels, square
    ones above all, no tight convolution is reached: the set falls apart into pieces that
    differ in how far they shift parts of their input. Measure what was reached. For a start
    that is tight take `kp.TightConvolution`.

    Args:
        kernel: As in `kp.constraints.tight_convolution_step`.
        strides: The strides of the layer. Defaults to 1.
        groups: The groups of the layer. Defaults to 1.
        steps: Number of steps at most. Defaults to 300.

    Returns:
        Tensor with the shape and dtype of `kernel`.

    Example:

    ```python
    kernel = kp.TightConvolution()((3, 3, 8, 16)) + 0.01 * keras.random.normal((3, 3, 8, 16))
    kernel = kp.constraints.project_tight_convolution(kernel, steps=50)
    ```
    """
    layout = ConvolutionLayout(strides, groups)
    check_integer("steps", steps, "a positive integer", lambda value: value > 0)

    def accelerated(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        # Nesterov's way: from a point ahead, and with no speed left once it leads uphill.
        here, before, speed = state
        ahead = here + speed / (speed + 3.0) * (here - before)
        there = _step(ahead, 0.5, layout, 1)
        uphill = ops.sum((ahead - there) * (there - here)) > 0
        return there, here, ops.where(uphill, 0.0, speed + 1.0)

    start = (kernel, kernel, ops.zeros((), kernel.dtype))
    return ops.fori_loop(0, steps, accelerated, start)[0]


@keep_dtype
def settle_convolution(kernel: Any, layout: ConvolutionLayout, most: int) -> Any:
    """Steps of full size until the singular values are within about 4% of 1, `most` at most."""
    shape = tuple(kernel.shape)
    step = _stepper(0.5, layout, shape)
    # What a step leaves cannot be told as for a matrix: the last one starts within 4%.
    taps = step_until_close(step, step(layout.to_taps(kernel)), 0.08, most - 1)
    return layout.to_kernel(taps, shape)


def _step(kernel: Any, beta: float, layout: ConvolutionLayout, steps: int) -> Any:
    shape = tuple(kernel.shape)
    taps = layout.to_taps(kernel)
    step = _stepper(beta, layout, shape)
    for _ in range(steps):
        taps, _ = step(taps)
    return layout.to_kernel(taps, shape)


def _stepper(
    beta: float, layout: ConvolutionLayout, shape: tuple[int, ...]
) -> Callable[[Any], tuple[Any, Any]]:
    """A step on taps of shape `(taps, groups, inputs, outputs)`.

    It also returns a bound on the error of the squared singular values before it.
    """
    counts = layout.taps_along(shape)
    check_not_depthwise(layout, shape)
    if math.prod(counts) == 1:
        return lambda taps: retract_and_measure(taps, beta, 1.0)
    transform = _transform_of(counts)
    support = layout.support(shape)

    def step(taps: Any) -> tuple[Any, Any]:
        shape = tuple(taps.shape)
        forward, backward = (
            ops.convert_to_tensor(matrix, dtype=taps.dtype)
            for matrix in (transform.forward, transform.backward)
        )
        waves = ops.reshape(forward @ ops.reshape(taps, (shape[0], -1)), (2, -1, *shape[1:]))
        images, error = _excess_images(waves[0], waves[1])
        images = ops.reshape(images, (forward.shape[0], -1))
        direction = ops.reshape(backward @ images, shape)
        if support is not None:
            direction = direction * ops.convert_to_tensor(support, dtype=taps.dtype)
        return take_step(taps, direction, beta, error), error

    return step


@functools.cache
def _transform_of(counts: tuple[int, ...]) -> TorusTransform:
    # What is not compiled would make it anew at every step.
    return TorusTransform(counts)


def _excess_images(real: Any, imaginary: Any) -> tuple[Any, Any]:
    """`(K K^H - I) K` of complex matrices, and a bound on the eigenvalues of `K K^H - I`.

    Args:
        real: Tensor of shape `(frequencies, groups, inputs, outputs)`.
        imaginary: The same.

    Returns:
        Tensor of shape `(2, frequencies, groups, inputs, outputs)`, the real and the
        imaginary part; and a tensor of shape `(groups, 1, 1)`.
    """
    by_hand = excess_images_by_hand(real, imaginary)
    if by_hand is not None:
        images, errors = by_hand
        return images, ops.max(errors, axis=0)
    tall = real.shape[-2] >= real.shape[-1]

    def gram(first: Any, second: Any) -> Any:
        # The kernel itself is not transposed, which a compiler for GPUs fails at.
        return _transposed(first) @ second if tall else second @ _transposed(first)

    def image(excess: Any, kernel: Any) -> Any:
        return kernel @ excess if tall else excess @ kernel

    # Two real products make the Hermitian Gram matrix, and three the product with it, where plain
    # arithmetic takes three and four.
    mixed = gram(real - imaginary, real + imaginary)
    mirrored = _transposed(mixed)
    identity = ops.eye(mixed.shape[-1], dtype=mixed.dtype)
    excess_real = (mixed + mirrored) / 2 + 2 * gram(imaginary, imaginary) - identity
    excess_imaginary = (mixed - mirrored) / 2
    # Their squares are finite, and a step from so far away is another one anyway.
    parts = [ops.clip(part, -1e18, 1e18) for part in (excess_real, excess_imaginary)]
    magnitudes = ops.sqrt(ops.square(parts[0]) + ops.square(parts[1]))
    shared = image(excess_real, real + imaginary)
    images = ops.stack(
        [
            shared - image(excess_real + excess_imaginary, imaginary),
            shared + image(excess_imaginary - excess_real, real),
        ]
    )
    return images, ops.max(spectral_error(magnitudes), axis=0)


def _transposed(matrices: Any) -> Any:
    return ops.swapaxes(matrices, -1, -2)


def check_not_depthwise(layout: ConvolutionLayout, shape: tuple[int, ...]) -> None:
    """Refuse kernels that are tight only where they shift their input."""
    if layout.is_only_shifts(shape):
        raise ValueError(
            "A convolution from one channel to one channel is a tight frame only if it shifts its "
            "input. For depthwise kernels take "
            '`kp.ParsevalTightFrame(groups="depthwise")`, for grouped ones '
            f"`kp.ParsevalTightFrame(groups={layout.groups})`. Received: shape={shape}, "
            f"groups={layout.groups}"
        )
