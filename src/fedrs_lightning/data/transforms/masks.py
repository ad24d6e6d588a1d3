"""Batched augmentation, random crops and normalisation of images with masks, on the device the batch lies on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedrs_lightning.data.transforms.images import dihedral, draw_dihedral
from fedrs_lightning.types import Batch


class SegmentationTransform(nn.Module):
    """A crop of the packed window, flips and quarter turns of image and mask together, and (scale * x - mean) / std.

    Args:
        mean: [D, C] of each domain, in units of scale * stored value.
        std: [D, C], same unit, > 0.
        scale: factor on stored values, for example 1/255.
        classes: [D, K], which classes the labels of a domain can hold; None where all domains have the same. Batches
            then carry `classes` bool [B, K], for a softmax over the classes that a sample's data set knows.
        crop: side in pixels of what a network sees in training.
        window: side of the packed training windows, >= crop. Where it is larger, an epoch with draws takes a crop at
            random from each window, and one without draws the centre. Other sizes, as in test packs, stay whole.
        augment: whether epochs draw flips and quarter turns.
    """

    factor: Tensor
    offset: Tensor
    classes: Tensor | None

    def __init__(
        self,
        mean: Sequence[Sequence[float]],
        std: Sequence[Sequence[float]],
        scale: float,
        classes: Sequence[Sequence[bool]] | None,
        crop: int,
        window: int,
        augment: bool = True,
    ) -> None:
        super().__init__()
        deviation = torch.tensor(std, dtype=torch.float64)
        if not bool((deviation > 0).all()) or deviation.shape != torch.tensor(mean).shape or window < crop:
            raise ValueError(
                f"mean and std must be [D, C] with std > 0, and window >= crop, got {mean}, {std}, {window}, {crop}"
            )
        shift = -torch.tensor(mean, dtype=torch.float64) / deviation
        self.register_buffer("factor", (scale / deviation).float()[..., None, None], persistent=False)  # [D, C, 1, 1]
        self.register_buffer("offset", shift.float()[..., None, None], persistent=False)
        self.register_buffer(
            "classes", None if classes is None else torch.tensor(classes, dtype=torch.bool), persistent=False
        )
        self.crop, self.window, self.augment = crop, window, augment

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Draws of an epoch, one row a sample on the CPU: three for `dihedral`, then first row and column of the crop."""
        if not self.augment and self.window == self.crop:
            return None
        turns = (
            draw_dihedral(num_samples, generator).to(torch.int32)
            if self.augment
            else torch.zeros(num_samples, 3, dtype=torch.int32)
        )
        place = torch.randint(0, self.window - self.crop + 1, (num_samples, 2), generator=generator, dtype=torch.int32)
        return torch.cat([turns, place], dim=1)

    @torch.no_grad()
    def forward(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """`image` float32 [B, C, h, w] normalised, `mask` int64 [B, h, w], and `classes` where domains differ in them."""
        image, mask = batch["image"], batch["mask"][:, None]
        if self.window > self.crop and image.shape[-1] == self.window:
            centre = (self.window - self.crop) // 2
            place = torch.full((len(image), 2), centre, device=image.device) if draws is None else draws[:, 3:]
            image, mask = _cut(image, place, self.crop), _cut(mask, place, self.crop)
        if draws is not None and self.augment:
            image, mask = dihedral(image, draws), dihedral(mask, draws)
        domain = batch["domain"]
        pixels = image.to(torch.float32, copy=True)
        many = len(self.factor) > 1
        factor, offset = (self.factor[domain], self.offset[domain]) if many else (self.factor, self.offset)
        result = batch | {"image": pixels.mul_(factor).add_(offset), "mask": mask[:, 0].to(torch.int64)}
        return result if self.classes is None else result | {"classes": self.classes[domain]}


def _cut(image: Tensor, place: Tensor, side: int) -> Tensor:
    """A square of each sample: [B, C, H, W] and int [B, 2] first rows and columns to [B, C, side, side]."""
    if image.dtype == torch.uint16:  # most kernels lack uint16
        return _cut(image.view(torch.int16), place, side).view(torch.uint16)
    steps = torch.arange(side, device=image.device)
    rows, columns = place[:, :1].long() + steps, place[:, 1:].long() + steps  # [B, side]
    source = (rows[:, :, None] * image.shape[-1] + columns[:, None]).flatten(1)  # [B, side side]
    flat = image.flatten(2)
    return flat.gather(2, source[:, None].expand(-1, flat.shape[1], -1)).view(*image.shape[:2], side, side)
