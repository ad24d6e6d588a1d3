"""From stored pixels to what a network takes: one transform for images, bands of two resolutions, and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrs_lightning.data.transforms.dihedral import dihedral, draw_dihedral
from fedrs_lightning.types import Batch

Kernel = Literal["torch", "rsim"]
Rows = Sequence[Sequence[float]]


class Transform(nn.Module):
    """A crop of the stored window, flips and quarter turns, bands on one grid, resize, and (scale x - mean) / std.

    Whole batches at a time on the device they lie on, in this order; a mask goes through the first two steps with its
    image. Bicubic interpolation overshoots, also below zero, so resizing runs on float32; nothing is clipped. Bands
    that are not chosen are neither turned nor resized.

    Args:
        mean: [G, C] of each group and band, in units of scale * stored value. One group serves every sample; with
            several, the batch's `group` int64 [B] says which is each sample's.
        std: same shape and unit, > 0.
        scale: factor on stored values, for example 1/255.
        stored: names of the bands of each stored array of a batch, such as {"image": ("red", "green", "blue")}; None
            takes the array `image` as it is. The first array gives the grid.
        bands: names of the bands that a network takes, in its order; None takes those of `stored`.
        kernel: how coarser arrays come onto the grid, bicubic: `torch` with pixel corners on image corners
            (`align_corners=False`), which keeps coarse and fine bands registered; `rsim` with pixel centres on image
            corners (`align_corners=True`), as the authors' own reader of BigEarthNet does. On real bands the two differ
            by 4 to 8 % of their deviation on average.
        image_size: side in pixels of what a network sees; None keeps the grid's. Bilinear, antialiased when the image
            shrinks, `align_corners=False`. Not with masks.
        augment: whether `draw` yields flips and quarter turns.
        crop: side in pixels of what a network sees of a training window; None takes images whole.
        window: side of the stored training windows, >= crop. Where it is larger, an epoch with draws takes a crop at
            random from each window, and one without draws the centre. Images of other sizes, such as test crops, stay
            whole.
        classes: [D, K], which classes the masks of a domain can hold; None where all domains have the same. Batches
            then carry `classes` bool [B, K] by their `domain` int64 [B], for a softmax over what an archive knows.

    Raises:
        ValueError: shapes do not fit, a deviation is not positive, or a band is unknown or named twice.
    """

    factor: Tensor
    offset: Tensor
    classes: Tensor | None

    def __init__(
        self,
        mean: Rows,
        std: Rows,
        scale: float = 1.0,
        stored: Mapping[str, Sequence[str]] | None = None,
        bands: Sequence[str] | None = None,
        kernel: Kernel = "torch",
        image_size: int | None = None,
        augment: bool = True,
        crop: int | None = None,
        window: int | None = None,
        classes: Sequence[Sequence[bool]] | None = None,
    ) -> None:
        super().__init__()
        deviation, middle = torch.tensor(std, dtype=torch.float64), torch.tensor(mean, dtype=torch.float64)
        if deviation.dim() != 2 or middle.shape != deviation.shape or not bool((deviation > 0).all()):
            raise ValueError(f"mean and std must be [groups][bands] with std > 0, got {mean} and {std}")
        self.register_buffer("factor", (scale / deviation).float()[..., None, None], persistent=False)  # [G, C, 1, 1]
        self.register_buffer("offset", (-middle / deviation).float()[..., None, None], persistent=False)
        known = None if classes is None else torch.tensor(classes, dtype=torch.bool)
        self.register_buffer("classes", known, persistent=False)
        self.places = _places(stored, bands, deviation.shape[1])
        counts = {"image": deviation.shape[1]} if stored is None else {name: len(own) for name, own in stored.items()}
        for name, places in self.places.items():
            wanted = [place for _, place in places]
            some = torch.tensor(wanted, dtype=torch.int64) if wanted != list(range(counts[name])) else None
            self.register_buffer(self._chosen(name), some, persistent=False)
        self.aligned, self.image_size, self.augment = kernel == "rsim", image_size, augment
        self.crop, self.window = crop, window if window is not None else crop
        if crop is not None and (self.window is None or self.window < crop):
            raise ValueError(f"window must be at least crop={crop}, got {window}")

    @property
    def random_place(self) -> int:
        """Places along a side at which a random crop may start; 1 where there is none to draw."""
        return 1 if self.crop is None or self.window is None else self.window - self.crop + 1

    def draw(self, num_samples: int, generator: torch.Generator) -> Tensor | None:
        """Draws of an augmented epoch, one row a sample on the CPU; None where nothing is drawn.

        Three columns for `dihedral`, uint8; with random crops int32, and two more for the crop's first row and column.
        """
        if self.random_place == 1:
            return draw_dihedral(num_samples, generator) if self.augment else None
        turns = torch.zeros(num_samples, 3, dtype=torch.int32)
        if self.augment:
            turns = draw_dihedral(num_samples, generator).to(torch.int32)
        place = torch.randint(0, self.random_place, (num_samples, 2), generator=generator, dtype=torch.int32)
        return torch.cat([turns, place], dim=1)

    @torch.no_grad()
    def forward(self, batch: Batch, draws: Tensor | None = None) -> Batch:
        """The batch with `image` float32 [B, C, H, W] normalised; `mask`, if any, int64 [B, H, W].

        Args:
            batch: `gather` of a source, on this module's device. Its stored arrays and `group` are used up, other
                entries pass through.
            draws: rows of `draw` for the batch's samples, on the same device; None does not augment.
        """
        group = batch["group"] if len(self.factor) > 1 else slice(None)
        kept = {name: values for name, values in batch.items() if name not in self.places and name != "group"}
        if "mask" in batch:
            kept["mask"] = self._moved(batch["mask"][:, None], draws)[:, 0].to(torch.int64)
            if self.classes is not None:
                kept["classes"] = self.classes[batch["domain"]]
        pixels = self._pixels(batch, draws)
        if self.image_size is not None and tuple(pixels.shape[-2:]) != (self.image_size, self.image_size):
            size = (self.image_size, self.image_size)
            pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False, antialias=True)
        return kept | {"image": pixels.mul_(self.factor[group]).add_(self.offset[group])}

    def _pixels(self, batch: Batch, draws: Tensor | None) -> Tensor:
        """The bands that a network takes, float32 on one grid; new memory."""
        if len(self.places) == 1:
            name = next(iter(self.places))
            wanted = self._moved(self._bands(name, batch[name]), draws)
            return wanted.to(torch.float32, copy=True)
        size = next(batch[name] for name in self.places).shape[-2:]
        pixels: Tensor | None = None
        for name, places in self.places.items():
            if not places:
                continue
            wanted = self._moved(self._bands(name, batch[name]), draws)
            if wanted.shape[-2:] != size:
                wanted = F.interpolate(wanted.float(), size=tuple(size), mode="bicubic", align_corners=self.aligned)
            if pixels is None:
                shape = len(wanted), self.factor.shape[1], *size
                pixels = torch.empty(shape, dtype=torch.float32, device=wanted.device)
            for number, (channel, _) in enumerate(places):
                pixels[:, channel] = wanted[:, number]
        assert pixels is not None
        return pixels

    def _chosen(self, name: str) -> str:
        """Name of the buffer with the wanted channels of a stored array."""
        return f"channels_{list(self.places).index(name)}"

    def _bands(self, name: str, image: Tensor) -> Tensor:
        """The wanted channels of a stored array; moved as int16 where torch's kernels know no uint16.

        Their numbers lie on the device: a list would be copied there for every batch, and waited for.
        """
        wanted = getattr(self, self._chosen(name))
        if wanted is None:
            return image
        if image.dtype == torch.uint16:
            return image.view(torch.int16).index_select(1, wanted).view(torch.uint16)
        return image.index_select(1, wanted)

    def _moved(self, image: Tensor, draws: Tensor | None) -> Tensor:
        """Cut out of its window, flipped and turned."""
        if self.crop is not None and self.random_place > 1 and image.shape[-1] == self.window:
            centre = (self.random_place - 1) // 2
            place = torch.full((len(image), 2), centre, device=image.device) if draws is None else draws[:, 3:]
            image = _cut(image, place, self.crop)
        return dihedral(image, draws) if draws is not None and self.augment else image


def _places(
    stored: Mapping[str, Sequence[str]] | None, bands: Sequence[str] | None, count: int
) -> dict[str, list[tuple[int, int]]]:
    """Of each stored array, (channel of the network, channel of the array), in order of the former."""
    stored = {"image": [str(number) for number in range(count)]} if stored is None else stored
    wanted = [band for own in stored.values() for band in own] if bands is None else list(bands)
    found = {
        name: sorted((wanted.index(band), place) for place, band in enumerate(own) if band in wanted)
        for name, own in stored.items()
    }
    if sum(map(len, found.values())) != len(wanted) or len(wanted) != count:
        text = f"bands {wanted} are not all among the stored {dict(stored)}"
        raise ValueError(f"{text}, one is named twice, or statistics lack")
    return found


def _cut(image: Tensor, place: Tensor, side: int) -> Tensor:
    """A square of each sample: [B, C, H, W] and int [B, 2] first rows and columns to [B, C, side, side]."""
    if image.dtype == torch.uint16:  # most kernels lack uint16
        return _cut(image.view(torch.int16), place, side).view(torch.uint16)
    steps = torch.arange(side, device=image.device)
    rows, columns = place[:, :1].long() + steps, place[:, 1:].long() + steps  # [B, side]
    source = (rows[:, :, None] * image.shape[-1] + columns[:, None]).flatten(1)  # [B, side side]
    flat = image.flatten(2)
    return flat.gather(2, source[:, None].expand(-1, flat.shape[1], -1)).view(*image.shape[:2], side, side)
