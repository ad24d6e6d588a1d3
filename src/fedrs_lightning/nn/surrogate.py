"""Labelled surrogate images that contain no real data: one Gaussian a class, the same for everybody."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrs_lightning.nn.interpolation import bilinear
from fedrs_lightning.nn.precision import full_precision
from fedrs_lightning.seeding import torch_stream


def class_means(
    seed: int, num_classes: int, bands: int, side: int, std: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Coarse mean images of all classes, N(0, std^2) in every pixel, float32 [C, bands, side, side].

    Args:
        seed: names the surrogate data; no other seed enters.
        num_classes: C.
        bands: of the images.
        side: pixels along a side before they are enlarged.
        std: of the means.
        device: where they are wanted; it is not waited for.
    """
    device, form = torch.device(device), (num_classes, bands, side, side)
    drawn = torch.randn(form, generator=torch_stream("surrogate", seed), pin_memory=device.type == "cuda")
    return std * drawn.to(device, non_blocking=True)


def draw(means: Tensor, labels: Tensor, size: tuple[int, int], noise: float) -> Tensor:
    """One image a label: the class's mean enlarged to `size` (bilinear) plus N(0, noise^2) from the current stream.

    Args:
        means: [C, bands, side, side].
        labels: int64 [B].
        size: height and width.
        noise: standard deviation.

    Returns:
        float32 [B, bands, H, W] on the device of `means`.
    """
    images = bilinear(means, size)[labels]
    return images + noise * torch.randn(images.shape, device=images.device)


def supervised_contrast(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020, arXiv:2004.11362) of features, scaled to unit length here.

    For each row the mean over its positives of -log softmax among all other rows; a row without a positive adds 0 and
    counts in the mean over rows.

    Args:
        features: [N, D].
        labels: int64 [N], or bool [N, N] with True where two rows are positives.
        temperature: > 0.
    """
    with full_precision(features):
        rows = F.normalize(features, dim=1)
        own = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        positive = (labels[:, None] == labels if labels.ndim == 1 else labels) & ~own
        similarity = rows @ rows.T / temperature
        others = similarity.masked_fill(own, torch.finfo(similarity.dtype).min)  # finite: no nan for one row
        log_share = F.log_softmax(others, dim=1)
        total = torch.where(positive, log_share, 0.0).sum(1)
        return -(total / positive.sum(1).clamp(min=1)).mean()
