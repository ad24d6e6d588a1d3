"""Where half precision ends: descriptors, prototypes, contrasts and scores need more digits than it has."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[None]:
    """No autocast on the tensor's device."""
    return torch.autocast(like.device.type, enabled=False)


def in_at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, in float32 where it has half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
