"""Batched augmentation, resize and normalisation on the device the batch lies on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrs_lightning.types import Batch


def draw_dihedral(num_samples: int, generator: torch.Generator) -> Tensor:
    """Uniform draws for `dihedral`: uint8 [N, 3] with flip left-right, flip top-bottom (0, 1) and quarter turns (0 to
    3).
    """
    return torch.randint(0, 256, (num_samples, 3), generator=generator, dtype=torch.uint8) & torch.tensor(
        [1, 1, 3], dtype=torch.uint8
    )


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
    # A quarter turn is a transposition followed by a top-bottom flip, and a transposition swaps the two flips before
    # it.
    left_right = torch.where(transposed, vertical, horizontal) ^ half
    top_bottom = torch.where(transposed, ~horizontal, vertical) ^ half
    code = 4 * transposed.long() + 2 * top_bottom.long() + left_right.long()
    flat = image.flatten(2)  # [B, C, H W]
    source = _orders(image.shape[-1], image.device)[code]  # [B, H W]
    return flat.gather(2, source[:, None].expand_as(flat)).view(image.shape)


@cache
def _orders(side: int, device: torch.device) -> Tensor:
    """For each of the eight codes, the source pixel of each pixel; int64 [8, H W]. One gather beats three masked
    copies.
    """
    pixels = torch.arange(side * side, device=device).view(side, side)
    orders = []
    for code in range(8):
        turned = pixels.T if code & 4 else pixels
        turned = turned.flip(0) if code & 2 else turned
        orders.append((turned.flip(1) if code & 1 else turned).reshape(-1))
    return torch.stack(orders)


class ImageTransform(nn.Module):
    """Flips and quarter turns, resize, and (scale * x - mean) / std per channel, in this order.

    Args:
        mean: per channel, in units of scale * stored value; or one such row a group, [G][C], where the batch's `group`
            int64 [B] says which is each sample's.
        std: same shape and unit, > 0.
        scale: factor on stored values, for example 1/255.
        image_size: side in pixels after resizing; None keeps the stored size. Bilinear on float32, antialiased when
            the image shrinks, pixel corners aligned with image corners (`align_corners=False`).
        augment: whether `draw` yields flips and quarter turns.
    """

    factor: Tensor
    offset: Tensor

    def __init__(
        self,
        mean: Sequence[float] | Sequence[Sequence[float]],
        std: Sequence[float] | Sequence[Sequence[float]],
        scale: float = 1.0,
        image_size: int | None = None,
        augment: bool = True,
    ) -> None:
        super().__init__()
        middle, deviation = (torch.tensor(values, dtype=torch.float64) for values in (mean, std))
        if middle.shape != deviation.shape or not bool((deviation > 0).all()):
            raise ValueError(
                f"mean and std need one entry a channel and std > 0, got mean={list(mean)}, std={list(std)}"
            )
        shape = (-1, middle.shape[-1], 1, 1)
        self.register_buffer("factor", (scale / deviation).float().view(shape), persistent=False)  # [G, C, 1, 1]
        self.register_buffer("offset", (-middle / deviation).float().view(shape), persistent=False)
        self.image_size, self.augment = image_size, augment

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Draws of an augmented epoch, uint8 [N, 3] on the CPU; None when augmentation is off."""
        return draw_dihedral(num_samples, generator) if self.augment else None

    @torch.no_grad()
    def forward(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """The batch with `image` float32 [B, C, H, W], normalised; other entries pass through."""
        image = batch["image"]
        if draws is not None:
            image = dihedral(image, draws)
        pixels = image.to(torch.float32)
        if self.image_size is not None and tuple(pixels.shape[-2:]) != (self.image_size, self.image_size):
            size = (self.image_size, self.image_size)
            pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=True)
        elif pixels is batch["image"]:
            pixels = pixels.clone()
        group = batch["group"] if len(self.factor) > 1 else slice(None)
        return batch | {"image": pixels.mul_(self.factor[group]).add_(self.offset[group])}
