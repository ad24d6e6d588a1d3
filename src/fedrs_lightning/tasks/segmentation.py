"""Segmentation: one class a pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from fedrs_lightning.errors import ConfigError, check_choices
from fedrs_lightning.models.segmentation import Architecture, DeepFeature, Encoder, SegmentationNetwork
from fedrs_lightning.models.weights import BandInit
from fedrs_lightning.nn.surgery import MODEL
from fedrs_lightning.tasks.base import Task, named_classes
from fedrs_lightning.tasks.metrics import (
    Absent,
    class_ious,
    confusion_counts,
    confusion_metric,
    mean_class_accuracy,
    mean_iou,
    overall_accuracy,
)
from fedrs_lightning.types import Batch, Output

PixelLoss = Literal["ce", "ce_dice"]


class SegmentationTask(Task):
    """A segmentation network, its pixel loss and mIoU. Batches hold `image` [B, C_in, H, W] and `mask` int64 [B, H, W].

    `unscored` names classes that count in the loss and the confusion matrix but not in mIoU (clutter trained as a
    class); a batch's `classes` bool [B, C] says which classes its samples' data sets have, where label spaces differ.

    Args:
        architecture: deeplabv3plus, fpn, unet or segformer.
        encoder: resnet18, resnet34 or resnet50; mit_b0 for segformer.
        num_classes: number of classes C.
        in_channels: number of bands.
        loss: `ce`, mean cross-entropy over the labelled pixels, or `ce_dice`, that plus the Dice loss of the classes
            that occur in the batch.
        ignore_index: label of pixels that count nowhere.
        absent: classes neither labelled nor predicted are `left_out` of the mean IoU, or count as `zero`.
            `labelled_only` leaves out every class without a labelled pixel, so that predicting it costs nothing of its
            own.
        class_names: names of the classes for the scores; numbers where none are given.
        decoder_channels: channels of the decoder's output; null takes the architecture's standard.
        encoder_width: channels of a residual network's first stage; 64 is the standard, 16 suits small runs on a CPU.
        deep: deep feature for methods: last stage of the `encoder`, or the output of the `aspp` of deeplabv3plus.
        weights: local file (safetensors or torch state dict) with encoder weights to start from; random without one.
            Nothing is downloaded.
        band_init: filters for bands that the weights file does not have: `mean` of its filters, or `random`.
    """

    label_kind = "pixel_classes"

    def __init__(
        self,
        architecture: Architecture,
        encoder: Encoder,
        num_classes: int,
        in_channels: int,
        loss: PixelLoss,
        ignore_index: int = 255,
        absent: Absent = "left_out",
        class_names: Sequence[str] | None = None,
        decoder_channels: int | None = None,
        encoder_width: int = 64,
        deep: DeepFeature = "encoder",
        weights: Path | None = None,
        band_init: BandInit = "mean",
    ) -> None:
        super().__init__()
        check_choices(SegmentationTask.__init__, locals())
        if 0 <= ignore_index < num_classes:
            raise ConfigError(
                f"ignore_index: {ignore_index} is one of {num_classes} classes; take another, such as 255"
            )
        form = num_classes, in_channels, decoder_channels, encoder_width, deep
        self.model = SegmentationNetwork(architecture, encoder, *form, weights, band_init)
        self.num_classes, self.loss, self.ignore_index, self.absent = num_classes, loss, ignore_index, absent
        self.unscored: tuple[int, ...] = ()
        self.class_names = named_classes(class_names, num_classes)

    def head_keys(self) -> set[str]:
        """Weight and bias of the segmentation head."""
        return {key for key in self.model_state() if key.startswith(f"{MODEL}segmentation_head.")}

    def check_batch(self, batch: Batch) -> None:
        """Refuse classes of whole images: there must be a `mask`."""
        if "mask" not in batch:
            remedy = "take ClassificationTask or MultilabelTask"
            raise ConfigError(f"SegmentationTask: the data have classes of images, not of pixels; {remedy}")

    def criterion(self, output: Output, batch: Batch) -> Tensor:
        """Mean loss over the labelled pixels of the batch; 0 with zero gradient where there is none."""
        logits = offered_classes(output.logits, batch)
        loss = pixel_cross_entropy(logits, batch["mask"], self.ignore_index)
        return loss + dice_loss(logits, batch["mask"], self.ignore_index) if self.loss == "ce_dice" else loss

    def metric(self) -> Metric:
        """Confusion counts int64 [C, C] of the labelled pixels."""
        return confusion_metric(self.num_classes, self.ignore_index).to(self.device)

    def update(self, metric: Metric, output: Output, batch: Batch) -> None:
        """Count labels against the classes of highest score."""
        metric.update(offered_classes(output.logits, batch), batch["mask"])

    def scores(self, metric: Metric) -> dict[str, float]:
        """`miou`, `pixel_accuracy`, `mean_class_accuracy` (over labelled classes) and `iou/<class>`, all in [0, 1].

        There is an `iou/<class>` for each class that is labelled or predicted; `absent_classes` names the others.
        Without a single labelled pixel the first three are nan.
        """
        counts = confusion_counts(metric)
        ious = dict(zip(self.class_names, class_ious(counts).tolist(), strict=True))
        scores = {
            "miou": mean_iou(counts, self.absent, self.unscored),
            "pixel_accuracy": overall_accuracy(counts),
            "mean_class_accuracy": mean_class_accuracy(counts),
        }
        return scores | {f"iou/{name}": iou for name, iou in ious.items() if not math.isnan(iou)}

    def absent_classes(self, metric: Metric) -> list[str]:
        """Names of the classes that are neither labelled nor predicted, and so have no IoU."""
        ious = class_ious(confusion_counts(metric))
        return [name for name, iou in zip(self.class_names, ious.tolist(), strict=True) if math.isnan(iou)]


def offered_classes(logits: Tensor, batch: Batch) -> Tensor:
    """Logits [B, C, H, W] with the classes that a sample's own data set does not have out of reach.

    Only batches of a union of label spaces say which these are: `classes`, bool [B, C]. Elsewhere nothing changes.
    """
    if "classes" not in batch:
        return logits
    return torch.where(batch["classes"][:, :, None, None], logits, torch.finfo(logits.dtype).min)


def pixel_cross_entropy(logits: Tensor, mask: Tensor, ignore_index: int) -> Tensor:
    """Mean cross-entropy over the labelled pixels, 0 where there is none.

    Pixels are rows: the kernel for maps has no deterministic form on a GPU, the one for rows has.

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W].
        ignore_index: label of pixels that do not count.
    """
    rows, labels = logits.permute(0, 2, 3, 1).flatten(0, 2), mask.flatten()  # [B H W, C], [B H W]
    total = F.cross_entropy(rows, labels, ignore_index=ignore_index, reduction="sum")
    return total / (labels != ignore_index).sum().clamp(min=1)


def dice_loss(logits: Tensor, mask: Tensor, ignore_index: int) -> Tensor:
    """One minus the soft Dice overlap of a batch (Milletari et al., 2016), mean over the classes that its labels show.

    With p_c the softmax and t_c the indicator of class c over the labelled pixels of the batch:
    1 - 2 sum p_c t_c / (sum p_c + sum t_c). A batch without labelled pixels gives 0.

    Args:
        logits: [B, C, H, W].
        mask: int64 [B, H, W].
        ignore_index: label of pixels that do not count.
    """
    labelled = (mask != ignore_index).flatten()[:, None]  # [B H W, 1]
    target = F.one_hot(mask.flatten().where(labelled[:, 0], 0), logits.shape[1]) * labelled  # [B H W, C]
    probability = logits.float().softmax(1).permute(0, 2, 3, 1).flatten(0, 2) * labelled
    occurs = target.sum(0)
    overlap = 2 * (probability * target).sum(0) / (probability.sum(0) + occurs).clamp(min=1e-12)
    present = occurs > 0
    return ((1 - overlap) * present).sum() / present.sum().clamp(min=1)
