"""On PyTorch, simple functions in a form that is fast on processors."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Of fewer channels, PyTorch finds the maxima one by one in either order.
_MANY_CHANNELS = 8


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
