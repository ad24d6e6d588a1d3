"""Where low precision ends: descriptors, prototypes, contrasts and scores need more digits than it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@contextlib.contextmanager
def full_precision(like: Tensor) -> Iterator[None]:
    """No autocast on the tensor's device, and no TF32 or bfloat16 inside float32 (`fabric.matmul_precision`).

    The gradients of what is computed inside are computed outside: `product` and `linear` keep them exact as well.
    """
    with torch.autocast(like.device.type, enabled=False), _exact_products():
        yield


def in_at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 where it has half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def product(first: Tensor, second: Tensor) -> Tensor:
    """Product of matrices whose values and gradients have full precision: [..., N, K] and [..., K, M] -> [..., N, M].

    Half precision becomes float32.
    """
    return _exactly(torch.matmul, in_at_least_float32(first), in_at_least_float32(second))


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Linear map whose values and gradients have full precision: [..., K] -> [..., N] by weight [N, K] and bias [N]."""
    return _exactly(F.linear, in_at_least_float32(inputs), weight, bias)


def pointwise(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """1x1 convolution in full precision, [B, C, h, w] -> [B, D, h, w] by weight [D, C] and bias [D].

    It is a product of matrices: cuDNN's kernels round to TF32 under a switch of their own, also in the backward pass.
    """
    pixels = product(weight.expand(len(maps), *weight.shape), maps.flatten(2))  # [B, D, h w]
    made = pixels.unflatten(2, maps.shape[2:])
    return made if bias is None else made + bias[:, None, None]


class FullLinear(nn.Linear):
    """`nn.Linear` in full precision."""

    def forward(self, input: Tensor) -> Tensor:
        """See `linear`."""
        return linear(input, self.weight, self.bias)


_lowered = False
"""Whether `full_precision` has raised torch's precision of products for a moment."""


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    global _lowered
    products, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = _lowered, cudnn.allow_tf32
    try:
        _lowered = _lowered or products != "highest"
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        _lowered, cudnn.allow_tf32 = before


def _exactly(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    like = next(tensor for tensor in tensors if tensor is not None)
    if not _lowered and torch.get_float32_matmul_precision() == "highest":
        with torch.autocast(like.device.type, enabled=False):
            return function(*tensors)
    made: Tensor = _Exactly.apply(function, *tensors)
    return made


class _Exactly(torch.autograd.Function):
    """A function whose gradient is computed under the same precision as its value, whenever that happens."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        like = next(tensor for tensor in tensors if tensor is not None)
        with full_precision(like):
            return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        pairs = zip(ctx.saved_tensors, needed, strict=True)
        inputs = [None if one is None else one.detach().requires_grad_(need) for one, need in pairs]
        wanted = [one for one, need in zip(inputs, needed, strict=True) if one is not None and need]
        with torch.enable_grad(), full_precision(gradients[0]):
            found = iter(torch.autograd.grad(ctx.function(*inputs), wanted, gradients[0]))
        return (None, *(next(found) if need else None for need in needed))
