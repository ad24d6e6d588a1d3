"""Bands of two resolutions on one grid: augmentation, bicubic resize and normalisation of whole batches on their
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrs_lightning.data.transforms.images import dihedral, draw_dihedral
from fedrs_lightning.types import Batch

Kernel = Literal["torch", "rsim"]
FINE, COARSE, GROUP = "image10", "image20", "group"


class BandTransform(nn.Module):
    """Flips and quarter turns, bicubic resize of the coarse bands to the fine grid, (x - mean) / std, in this order.

    Bicubic interpolation overshoots, also below zero, so it runs on float32; nothing is clipped. Bands that are not
    chosen are neither turned nor resized.

    Args:
        stored: names of the bands of `image10` and of `image20`, in their stored order.
        bands: names of the bands that a network takes, in its order.
        mean: of each group and band of `bands`, [G][C], in stored units. One group serves every sample; with several,
            the batch's `group` int64 [B] says which is each sample's.
        std: same shape, > 0.
        kernel: `torch` interpolates with pixel corners on image corners (`align_corners=False`), which keeps coarse and
            fine bands registered; `rsim` with pixel centres on image corners (`align_corners=True`), as the authors'
            own reader of BigEarthNet does. On real bands the two differ by 4 to 8 % of their deviation on average.
        image_size: side in pixels of what a network sees; null keeps that of the fine bands. Bilinear on float32 after
            the coarse bands are on the fine grid, antialiased when the image shrinks, `align_corners=False`.
        augment: whether `draw` yields flips and quarter turns.
    """

    factor: Tensor
    offset: Tensor

    def __init__(
        self,
        stored: tuple[Sequence[str], Sequence[str]],
        bands: Sequence[str],
        mean: Sequence[Sequence[float]],
        std: Sequence[Sequence[float]],
        kernel: Kernel = "torch",
        image_size: int | None = None,
        augment: bool = True,
    ) -> None:
        super().__init__()
        deviation, middle = torch.tensor(std, dtype=torch.float64), torch.tensor(mean, dtype=torch.float64)
        if (
            deviation.shape != (len(mean), len(bands))
            or middle.shape != deviation.shape
            or not bool((deviation > 0).all())
        ):
            raise ValueError(f"mean and std must be [groups][{len(bands)} bands] with std > 0, got {mean} and {std}")
        self.register_buffer(
            "factor", deviation.reciprocal().float()[..., None, None], persistent=False
        )  # [G, C, 1, 1]
        self.register_buffer("offset", (-middle / deviation).float()[..., None, None], persistent=False)
        self.places = [
            [(bands.index(band), place) for place, band in enumerate(own) if band in bands] for own in stored
        ]
        if sum(map(len, self.places)) != len(bands):
            raise ValueError(f"bands {list(bands)} are not all among the stored {stored}, or one is named twice")
        self.aligned, self.image_size, self.augment = kernel == "rsim", image_size, augment

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Draws of an augmented epoch, uint8 [N, 3] on the CPU; None when augmentation is off."""
        return draw_dihedral(num_samples, generator) if self.augment else None

    @torch.no_grad()
    def forward(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """`image10` and `image20` (uint16 [B, C, H, W] and [B, C', h, w]) to `image` float32 [B, len(bands), H, W];
        labels pass through.
        """
        fine, coarse = batch[FINE], batch[COARSE]
        size = tuple(fine.shape[-2:])
        pixels = torch.empty((len(fine), sum(map(len, self.places)), *size), dtype=torch.float32, device=fine.device)
        for stored, places in zip((fine, coarse), self.places, strict=True):
            if places:
                wanted = _channels(stored, [place for _, place in places])
                if draws is not None:
                    wanted = dihedral(wanted, draws)
                if tuple(wanted.shape[-2:]) != size:
                    wanted = F.interpolate(wanted.float(), size=size, mode="bicubic", align_corners=self.aligned)
                for number, (channel, _) in enumerate(places):
                    pixels[:, channel] = wanted[:, number]
        if self.image_size is not None and self.image_size != size[0]:
            side = (self.image_size, self.image_size)
            pixels = F.interpolate(pixels, size=side, mode="bilinear", align_corners=False, antialias=True)
        group = batch[GROUP] if len(self.factor) > 1 else slice(None)
        pixels.mul_(self.factor[group]).add_(self.offset[group])
        return {name: values for name, values in batch.items() if name not in (FINE, COARSE, GROUP)} | {"image": pixels}


def _channels(image: Tensor, wanted: list[int]) -> Tensor:
    """Some channels; moved as int16 where torch's kernels know no uint16."""
    if wanted == list(range(image.shape[1])):
        return image
    if image.dtype == torch.uint16:
        return image.view(torch.int16)[:, wanted].view(torch.uint16)
    return image[:, wanted]
