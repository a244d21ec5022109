"""On PyTorch, simple functions in a form that is fast on processors."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# With fewer channels, to bring those of a place together takes longer than it saves.
_FEW_CHANNELS = 4


def input_gradient(objective: Callable[[Any], tuple[Any, Any]], x: Any) -> tuple[Any, Any]:
    """The gradient of a scalar at `x`, `None` if there is none, and what else there is."""
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        value, other = objective(x)
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, x, allow_unused=True)
    return gradient, keras.tree.map_structure(lambda tensor: tensor.detach(), other)


class FastMaxPooling(TorchFunctionMode):
    """Within this context, max-pooling of images has the channels of a place together in memory.

    The numbers are the same. Keras moves channels apart for pooling, where PyTorch takes four to
    five times as long on processors, and two to four times with the gradient.
    """

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function is functional.max_pool2d:
            x, *others = arguments
            if x.is_cpu and x.dim() == 4 and x.shape[1] >= _FEW_CHANNELS:
                arguments = (x.contiguous(memory_format=torch.channels_last), *others)
        return function(*arguments, **(options or {}))


def mean(x: Any, axes: Sequence[int]) -> Any:
    """The mean along axes, in float32 or better.

    The gradient of PyTorch's own mean is written out in full, and converted.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    return torch.sum(x, tuple(axes), dtype=precise) / math.prod(x.shape[axis] for axis in axes)


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

    The step of `_tight_frames`, with its limits and bounds. They are applied before the last
    product, which is finite then from wherever the step starts.

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
    limit = torch.minimum(0.5 / error, 1.0 / (largest + largest.sqrt()))
    move = gram * -limit.clamp(max=beta)
    left, right = (move, matrix) if matrix.shape[-2] <= matrix.shape[-1] else (matrix, move)
    if matrix.dim() == 2:
        return torch.addmm(matrix, left, right), error
    return matrix + left @ right, error


def every(x: Any, stride: int) -> Any:
    """Every so many numbers of a tensor, in order, as a tensor of rank 1.

    To flatten a transposed one would copy all of it.
    """
    places = torch.arange(0, x.numel(), stride, device=x.device)
    return x[torch.unravel_index(places, x.shape)]


def sort_pair(first: Any, second: Any) -> tuple[Any, Any]:
    """The larger and the smaller of two tensors, number by number."""
    # PyTorch is slow with numbers that do not lie together.
    return _SortPair.apply(first.contiguous(), second.contiguous())[:2]


class _SortPair(torch.autograd.Function):
    """PyTorch's own gradients share ties, which takes six times as long as all the rest."""

    generate_vmap_rule = True

    @staticmethod
    def forward(first, second):
        return torch.maximum(first, second), torch.minimum(first, second), first >= second

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[-1])
        ctx.save_for_backward(output[-1])

    @staticmethod
    def backward(ctx, larger, smaller, _):
        (in_order,) = ctx.saved_tensors
        # Where they are not in order, all bits are exchanged: `where` takes five times as long.
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[larger.element_size()]
        dtype = larger.dtype
        larger, smaller = (each.contiguous().view(bits) for each in (larger, smaller))
        exchanged = (larger ^ smaller) & (in_order.to(bits) - 1)
        return (larger ^ exchanged).view(dtype), (smaller ^ exchanged).view(dtype)
