"""Flips and quarter turns of whole batches, exact in any type."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def draw_dihedral(num_samples: int, generator: torch.Generator) -> Tensor:
    """Draws for `dihedral`: uint8 [N, 3], flip left-right and flip top-bottom (0 or 1) and quarter turns (0 to 3)."""
    drawn = torch.randint(0, 256, (num_samples, 3), generator=generator, dtype=torch.uint8)
    return drawn & torch.tensor([1, 1, 3], dtype=torch.uint8)


def dihedral(image: Tensor, draws: Tensor) -> Tensor:
    """Flip left-right, then top-bottom, then turn counter-clockwise, each sample by its own draws; exact in any dtype.

    Args:
        image: [B, C, H, W]; H = W, as a quarter turn would change the shape otherwise.
        draws: uint8 [B, 3] of `draw_dihedral`, on the image's device.
    """
    if image.shape[-1] != image.shape[-2]:
        raise ValueError(f"quarter turns need square images, got {image.shape[-2]} x {image.shape[-1]}")
    if image.dtype == torch.uint16:  # most kernels lack uint16; moving its bits needs none of its arithmetic
        return dihedral(image.view(torch.int16), draws).view(torch.uint16)
    horizontal, vertical = draws[:, 0].bool(), draws[:, 1].bool()
    transposed, half = (draws[:, 2] % 2).bool(), draws[:, 2] >= 2
    # A quarter turn is a transposition, then a top-bottom flip; a transposition swaps the two flips before it.
    left_right = torch.where(transposed, vertical, horizontal) ^ half
    top_bottom = torch.where(transposed, ~horizontal, vertical) ^ half
    code = 4 * transposed.long() + 2 * top_bottom.long() + left_right.long()
    flat = image.flatten(2)  # [B, C, H W]
    source = _orders(image.shape[-1], image.device)[code]  # [B, H W]
    return flat.gather(2, source[:, None].expand_as(flat)).view(image.shape)


@cache
def _orders(side: int, device: torch.device) -> Tensor:
    """Source of each pixel for each of the eight codes, int64 [8, H W]: one gather beats three masked copies."""
    pixels = torch.arange(side * side, device=device).view(side, side)
    orders = []
    for code in range(8):
        turned = pixels.T if code & 4 else pixels
        turned = turned.flip(0) if code & 2 else turned
        orders.append((turned.flip(1) if code & 1 else turned).reshape(-1))
    return torch.stack(orders)
