"""Scene classification: one class an image."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.models.classification import Backbone, ResNet, Stem
from fedrs_lightning.models.weights import BandInit
from fedrs_lightning.nn.surgery import MODEL
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.metrics import confusion_counts, confusion_metric, mean_class_accuracy, overall_accuracy
from fedrs_lightning.types import Batch, Output


class ClassificationTask(Task):
    """A residual network, cross-entropy, overall accuracy. Batches hold `image` [B, C_in, H, W], `label` int64 [B].

    Args:
        backbone: depth of the network.
        num_classes: number of classes C.
        in_channels: number of bands.
        width: channels of the first stage's 3x3 convolutions; 64 is the standard network, 16 suits small runs on a CPU.
        stem: `imagenet` (7x7 of stride 2, then pooling) or `small` (3x3 of stride 1, for images of 32 to 64 pixels).
        weights: local file (safetensors or torch state dict) to start from; random without one. Nothing is downloaded.
        band_init: filters for bands that the weights file does not have: `mean` of its filters, or `random`.
        label_smoothing: share of the target that is spread over all classes, in [0, 1).
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        in_channels: int,
        width: int = 64,
        stem: Stem = "imagenet",
        weights: Path | None = None,
        band_init: BandInit = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ConfigError(f"label_smoothing: {label_smoothing} is not in [0, 1)")
        self.model = ResNet(backbone, num_classes, in_channels, width, stem, weights, band_init)
        self.num_classes, self.label_smoothing = num_classes, label_smoothing

    def head_keys(self) -> set[str]:
        """Weight and bias of the classifier."""
        return {key for key in self.model_state() if key.startswith(f"{MODEL}fc.")}

    def check_batch(self, batch: Batch) -> None:
        """Refuse pixels' classes, and several labels an image: `label` must be int64 [B]."""
        require_labels(batch, self)
        if batch["label"].dim() != 1:
            remedy = "take task.class_path: MultilabelTask"
            raise ConfigError(f"ClassificationTask: the data have several labels an image; {remedy}")

    def criterion(self, output: Output, batch: Batch) -> Tensor:
        """Mean cross-entropy of the batch."""
        return F.cross_entropy(output.logits, batch["label"], label_smoothing=self.label_smoothing)

    def metric(self) -> Metric:
        """Confusion counts int64 [C, C]."""
        return confusion_metric(self.num_classes).to(self.device)

    def update(self, metric: Metric, output: Output, batch: Batch) -> None:
        """Count labels against the classes of highest score."""
        metric.update(output.logits, batch["label"])

    def scores(self, metric: Metric) -> dict[str, float]:
        """`overall_accuracy`, and `mean_class_accuracy` over the classes that occur in the labels; both in [0, 1]."""
        counts = confusion_counts(metric)
        return {"overall_accuracy": overall_accuracy(counts), "mean_class_accuracy": mean_class_accuracy(counts)}


def require_labels(batch: Batch, task: Task) -> None:
    """Refuse data without labels of whole images."""
    if "label" not in batch:
        remedy = "take task.class_path: SegmentationTask"
        raise ConfigError(f"{type(task).__name__}: the data have classes of pixels, not of images; {remedy}")
