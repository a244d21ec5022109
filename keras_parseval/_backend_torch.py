"""On PyTorch, simple functions in a form that is fast on processors."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from keras_parseval._lending import give

# Of fewer channels, PyTorch finds the maxima one by one in either order.
_MANY_CHANNELS = 8


def input_gradient(objective: Callable[[Any], tuple[Any, Any]], x: Any) -> tuple[Any, Any]:
    """The gradient of a scalar at `x`, `None` if there is none, and what else there is."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value, other = objective(x)
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, x, allow_unused=True)
    return gradient, keras.tree.map_structure(lambda tensor: tensor.detach(), other)


def mean(x: Any, axes: Sequence[int]) -> Any:
    """The mean along axes, in float32 or better."""
    return _Mean.apply(x, tuple(axes))


class _Mean(torch.autograd.Function):
    """PyTorch's own converts as it adds, which takes four times as long as one after the other.

    And it writes its gradient out in full, where a view will do.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x, axes):
        return x.to(torch.promote_types(x.dtype, torch.float32)).mean(axes)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, axes = inputs
        give(ctx, shape=x.shape, dtype=x.dtype, axes=axes)

    @staticmethod
    def backward(ctx, gradient):
        count = math.prod(ctx.shape[axis] for axis in ctx.axes)
        for axis in sorted(ctx.axes):
            gradient = gradient.unsqueeze(axis)
        return (gradient / count).to(ctx.dtype).expand(ctx.shape), None


def subtract(x: Any, shift: Any) -> Any:
    """`x - shift` in the dtype of `x`, with a `shift` that may be more precise.

    To convert all of `x` takes ten times as long. Two parts hold what one would lose.
    """
    if x.dtype == shift.dtype:
        return x - shift
    high = shift.to(x.dtype)
    low = (shift - high).detach().to(x.dtype)
    return x + -high + -low


def retract_and_measure(gram: Any, matrix: Any, beta: float, scale: float) -> tuple[Any, Any]:
    """One step, and a bound on the error before it, with few passes over the numbers.

    The step of `_tight_frames`, with its limits and bounds, which are applied before the last
    product.

    Args:
        gram: The smaller Gram matrix of `matrix`, which is changed in place.
        matrix: Tensor of shape `(..., n, d)`.
        beta: Step size in (0, 0.5].
        scale: The singular value to aim at.
    """
    if scale != 1.0:
        gram /= scale**2
    gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    norm = torch.linalg.vector_norm
    row_sums = norm(gram, 1, dim=-1, keepdim=True).amax(dim=-2, keepdim=True)
    error = torch.minimum(row_sums, norm(gram, 2, dim=(-2, -1), keepdim=True))
    largest = 1.0 + error
    limit = torch.maximum(0.5 / error, 1.0 / (largest + largest.sqrt())).clamp(max=beta)
    # Of what is far too large, a half.
    too_large = (error > 1e12) & error.isfinite()
    move = gram * -limit.masked_fill(too_large, 0.0)
    move.diagonal(dim1=-2, dim2=-1).sub_(0.5 * too_large[..., 0])
    left, right = (move, matrix) if matrix.shape[-2] <= matrix.shape[-1] else (matrix, move)
    if matrix.dim() == 2:
        return torch.addmm(matrix, left, right), error
    return matrix + left @ right, error


def excess_images(real: Any, imaginary: Any) -> tuple[Any, Any]:
    """`(K K^H - I) K` and a bound on the eigenvalues of `K K^H - I`, with few passes.

    The arithmetic of `_convolution_frames`, in place. Sums go with the products they belong to.

    Args:
        real: Tensor of shape `(frequencies, groups, inputs, outputs)`.
        imaginary: The same.

    Returns:
        Tensor of shape `(2, frequencies, groups, inputs, outputs)`, and one of shape
        `(frequencies, groups, 1, 1)`.
    """
    shape = real.shape
    real, imaginary = (part.reshape(-1, *shape[-2:]) for part in (real, imaginary))
    total, tall = real + imaginary, shape[-2] >= shape[-1]

    def gram(first: Any, second: Any) -> Any:
        return first.mT @ second if tall else second @ first.mT

    def add_image(start: Any, excess: Any, kernel: Any) -> Any:
        left, right = (kernel, excess) if tall else (excess, kernel)
        return torch.baddbmm(start, left, right)

    mixed, excess_real = gram(real - imaginary, total), gram(imaginary, imaginary).mul_(2.0)
    excess_real.add_(mixed, alpha=0.5).add_(mixed.mT, alpha=0.5)
    excess_real.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    excess_imaginary = (mixed - mixed.mT).mul_(0.5)
    for part in (excess_real, excess_imaginary):
        part.clamp_(-1e18, 1e18)
    squares = (excess_real * excess_real).addcmul_(excess_imaginary, excess_imaginary)
    frobenius = squares.sum((-2, -1), keepdim=True).sqrt_()
    row_sums = squares.sqrt_().sum(-1, keepdim=True).amax(-2, keepdim=True)
    shared = total @ excess_real if tall else excess_real @ total
    images = torch.stack(
        [
            add_image(shared, (excess_real + excess_imaginary).neg_(), imaginary),
            add_image(shared, excess_imaginary.sub_(excess_real), real),
        ]
    )
    error = torch.minimum(row_sums, frobenius)
    return images.reshape(2, *shape), error.reshape(*shape[:-2], 1, 1)


def every(x: Any, stride: int) -> Any:
    """Every so many numbers of a tensor, in order, as a tensor of rank 1.

    To flatten a transposed one would copy all of it.
    """
    places = torch.arange(0, x.numel(), stride, device=x.device)
    return x[torch.unravel_index(places, x.shape)]


def sort_pairs(x: Any) -> Any | None:
    """Pairs of neighbours along the last axis, the larger first; `None` for numbers of 8 bytes.

    PyTorch is slow with every second number. Here a pair is taken for one integer, whose halves
    change places, so that what is read and written lies together.
    """
    if x.element_size() > 4 or sys.byteorder != "little":
        return None
    return _Exchange.apply(x, _out_of_order(x.detach()))


# For numbers of 2 and of 4 bytes: an integer that holds two, and a number of that size.
_PAIRS = {2: (torch.int32, torch.float32), 4: (torch.int64, torch.float64)}


def _out_of_order(x: Any) -> Any:
    """For each pair an integer, all bits of which are 1 if its first number is the smaller."""
    integer, number = _PAIRS[x.element_size()]
    pairs, bits = x.contiguous().view(integer), 8 * x.element_size()
    # A number followed by zeros is a number of twice the size, and these have the same order.
    first = pairs << bits
    second = pairs & (-1 << bits)
    difference = torch.sub(first.view(number), second.view(number), out=second.view(number))
    return difference.view(integer).bitwise_right_shift_(2 * bits - 1)


class _Exchange(torch.autograd.Function):
    """Lets the two numbers of a pair change places, and their gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, chosen):
        bits = 8 * x.element_size()
        pairs = x.contiguous().view(chosen.dtype)
        exchanged = (pairs >> bits).bitwise_and_((1 << bits) - 1)
        exchanged.bitwise_or_(pairs << bits)
        # Twice the exclusive or is the same again. `where` takes five times as long.
        exchanged.bitwise_xor_(pairs).bitwise_and_(chosen).bitwise_xor_(pairs)
        return exchanged.view(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        return _Exchange.apply(gradient, *ctx.saved_tensors), None


class FastPooling(TorchFunctionMode):
    """Within this context, max-pooling of images has their channels last in memory.

    Keras copies them to lie first, and PyTorch then takes up to ten times as long, and as long
    again for what it passes the gradient to. A second copy costs less than that.
    """

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function in (torch.max_pool2d, functional.max_pool2d) and _are_pooled_slowly(*arguments):
            images, *others = arguments
            arguments = images.contiguous(memory_format=torch.channels_last), *others
        return function(*arguments, **(options or {}))


def _are_pooled_slowly(images: Any = None, *_: Any) -> bool:
    batch = images is not None and images.ndim == 4
    return batch and images.device.type == "cpu" and images.shape[1] >= _MANY_CHANNELS
