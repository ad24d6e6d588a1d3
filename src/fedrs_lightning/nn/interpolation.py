"""Bilinear interpolation whose gradient is the same on every run, on a GPU too: two small products of matrices.

torch's own kernel adds gradients on a GPU in no fixed order. Where deterministic kernels are asked for it takes a form
by indices instead, which sorts every one of them. Rows and columns are interpolated one after the other here, each by a
matrix with two entries a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedrs_lightning.nn.precision import full_precision, in_at_least_float32


def bilinear(maps: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """`F.interpolate`, bilinear, [B, C, H, W] -> [B, C, *size]; in the separable form where that is `wanted`."""
    if wanted(maps.device):
        return separable(maps, size, align_corners)
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=align_corners)


def separable(maps: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Bilinear interpolation as two products: rows' weights times maps times columns' weights.

    Equal to `F.interpolate` up to rounding. Half precision is interpolated in float32, and under autocast stays so.

    Args:
        maps: [B, C, H, W].
        size: height and width of the result.
        align_corners: as in `F.interpolate`.
    """
    with full_precision(maps):
        wide = in_at_least_float32(maps)
        rows, columns = (
            interpolation_weights(old, new, align_corners, wide.dtype, wide.device)
            for old, new in zip(maps.shape[-2:], size, strict=True)
        )
        result = rows @ (wide @ columns.T)
    return result if torch.is_autocast_enabled(maps.device.type) else result.to(maps.dtype)


@lru_cache(maxsize=64)
def interpolation_weights(old: int, new: int, align_corners: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weight of each old place in each new one, [new, old]; lines sum to one. Kept, as steps repeat the same sizes."""
    with torch.inference_mode(False), torch.no_grad():
        places = torch.arange(new, dtype=torch.float64, device=device)
        if align_corners:
            source = places * ((old - 1) / (new - 1) if new > 1 else 0.0)
        else:
            source = ((places + 0.5) * (old / new) - 0.5).clamp(min=0.0)
        near = (source[:, None] - torch.arange(old, dtype=torch.float64, device=device)).abs()
        weights = (1 - near).clamp(min=0.0)
        # behind the last centre there is nothing to interpolate with
        weights[:, -1] = torch.where(source > old - 1, 1.0, weights[:, -1])
        return weights.to(dtype)


def wanted(device: torch.device) -> bool:
    """Whether torch's kernel would not be deterministic on the device, although that is asked for."""
    return device.type != "cpu" and torch.are_deterministic_algorithms_enabled()


def deterministic_interpolation(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, `F.interpolate` takes the separable form where it is `wanted`; for networks from libraries."""
    return nullcontext() if torch.compiler.is_compiling() or not wanted(device) else _Separable()


class _Separable(TorchFunctionMode):
    """Bilinear calls of `F.interpolate` for a size, or a whole factor, become products; all others stay."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is F.interpolate and len(args) == 1:
            size = _size(args[0], options.get("size"), options.get("scale_factor"))
            if options.get("mode") == "bilinear" and not options.get("antialias") and size is not None:
                return separable(args[0], size, bool(options.get("align_corners")))
        return func(*args, **options)


def _size(maps: Tensor, size: Any, factor: Any) -> tuple[int, int] | None:
    """Height and width of the result; None where a factor is not whole, which torch takes another way."""
    height, width = maps.shape[-2:]
    if size is not None:
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    factors = factor if isinstance(factor, (tuple, list)) else (factor, factor)
    if any(value is None or float(value) != int(value) for value in factors):
        return None
    return height * int(factors[0]), width * int(factors[1])
