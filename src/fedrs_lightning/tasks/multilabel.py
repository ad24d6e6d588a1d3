"""Scene classification with several labels an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.models.classification import Backbone, Stem
from fedrs_lightning.models.weights import BandInit
from fedrs_lightning.nn.precision import in_at_least_float32
from fedrs_lightning.tasks.base import named_classes
from fedrs_lightning.tasks.classification import ClassificationTask, require_labels
from fedrs_lightning.types import Batch, Output


class MultilabelTask(ClassificationTask):
    """A residual network, binary cross-entropy and micro mAP. Batches hold `image` [B, C_in, H, W], `label` [B, C].

    A label, float32, is 1 for each class that the image shows and 0 elsewhere.

    Args:
        backbone: depth of the network.
        num_classes: number of classes C.
        in_channels: number of bands.
        width: channels of the first stage's 3x3 convolutions; 64 is the standard network, 16 suits small runs on a CPU.
        stem: `imagenet` (7x7 of stride 2, then pooling) or `small` (3x3 of stride 1, for images of 32 to 64 pixels).
        weights: local file (safetensors or torch state dict) to start from; random without one. Nothing is downloaded.
        band_init: filters for bands that the weights file does not have: `mean` of its filters, or `random`.
        class_names: names of the classes for the scores; numbers where none are given.
    """

    label_kind = "several_classes"

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        in_channels: int,
        width: int = 64,
        stem: Stem = "imagenet",
        weights: Path | None = None,
        band_init: BandInit = "mean",
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(backbone, num_classes, in_channels, width, stem, weights, band_init)
        self.class_names = named_classes(class_names, num_classes)

    def check_batch(self, batch: Batch) -> None:
        """Refuse pixels' classes, and a single class an image: `label` must be [B, C]."""
        require_labels(batch, self)
        if batch["label"].dim() != 2:
            remedy = "take task.class_path: ClassificationTask"
            raise ConfigError(f"MultilabelTask: the data have one class an image; {remedy}")

    def criterion(self, output: Output, batch: Batch) -> Tensor:
        """Mean binary cross-entropy over samples and classes."""
        logits = in_at_least_float32(output.logits)
        return F.binary_cross_entropy_with_logits(logits, batch["label"].to(logits.dtype))

    def metric(self) -> Metric:
        """Logits and labels of every sample."""
        return GatheredScores(self.num_classes).to(self.device)

    def update(self, metric: Metric, output: Output, batch: Batch) -> None:
        """Gather a batch."""
        metric.update(output.logits, batch["label"])

    def scores(self, metric: Metric) -> dict[str, float]:
        """`micro_map`, `macro_map`, `micro_f1`, `macro_f1` and `ap/<class>`, all in [0, 1].

        Micro takes the scores of all samples and classes as one list, macro the mean over the classes that have a
        positive label; `absent_classes` names the others, which have no `ap/<class>`. F1 is taken at a logit of 0,
        which is a probability of 0.5. Without any positive label mAP and macro F1 are nan.

        Raises:
            TrainingError: a logit is not a number.
        """
        scores, targets = gathered(metric)
        if bool(scores.isnan().any()):
            raise TrainingError("the network's scores are not numbers any more; lower optimizer.init_args.lr")
        present = targets.any(0).tolist()
        each = zip(self.class_names, scores.T, targets.T, strict=True)
        precision = {name: average_precision(*of_class) for name, *of_class in compress(each, present)}
        predicted = scores > 0
        hits, wrong = (predicted & targets).sum(0), (predicted ^ targets).sum(0)  # int64 [C]; wrong are FP and FN
        f1 = (2 * hits.double() / (2 * hits + wrong).double())[present]
        return {
            "micro_map": average_precision(scores.flatten(), targets.flatten()),
            "macro_map": _mean(list(precision.values())),
            "micro_f1": float(2 * hits.sum().double() / (2 * hits + wrong).sum().double()),
            "macro_f1": _mean(f1.tolist()),
            **{f"ap/{name}": value for name, value in precision.items()},
        }

    def absent_classes(self, metric: Metric) -> list[str]:
        """Names of the classes without a positive label, which the macro means leave out."""
        present = gathered(metric)[1].any(0).tolist()
        return [name for name, there in zip(self.class_names, present, strict=True) if not there]


class GatheredScores(Metric):
    """Keeps every sample's scores and labels, since a ranking does not add up over batches. `compute` returns both.

    Args:
        num_classes: C.
    """

    full_state_update = False
    is_differentiable = False
    scores: list[Tensor]
    targets: list[Tensor]

    def __init__(self, num_classes: int) -> None:
        super().__init__(sync_on_compute=False)
        self.num_classes = num_classes
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("targets", default=[], dist_reduce_fx="cat")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add samples: any scores [N, C] whose order counts, half precision as float32; `targets` [N, C], 0 or 1."""
        self.scores.append(in_at_least_float32(scores.detach()))
        self.targets.append(targets.to(torch.uint8))  # a process group gathers bytes everywhere, booleans not

    def compute(self) -> tuple[Tensor, Tensor]:
        """Scores [N, C] and targets bool [N, C], on the CPU."""
        return gathered(self)


def gathered(metric: Metric) -> tuple[Tensor, Tensor]:
    """Scores [N, C] and targets bool [N, C] of a `GatheredScores`, also a merged or synchronised one, on the CPU."""
    if not isinstance(metric, GatheredScores):
        raise TypeError("several labels need a GatheredScores")
    if not len(metric.scores):
        return torch.zeros(0, metric.num_classes), torch.zeros(0, metric.num_classes, dtype=torch.bool)
    return dim_zero_cat(metric.scores).cpu(), dim_zero_cat(metric.targets).cpu().bool()


def average_precision(scores: Tensor, targets: Tensor) -> float:
    """Sum over distinct scores, from high to low, of recall gained times precision; nan without a positive target.

    Equal scores are one threshold, so the order of the samples does not matter, and neither do batches, clients and
    ranks: the counts are integers and their ratios are summed with a single rounding.

    Args:
        scores: [N], compared in their own dtype and never squeezed through a sigmoid, which would make large ones
            equal.
        targets: bool [N].

    Examples:
        >>> average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, True]))  # (1 + 2/3) / 2
        0.8333333333333333
    """
    ordered, order = scores.sort(descending=True)
    last = torch.ones(len(ordered), dtype=torch.bool)  # the last sample of each threshold
    last[:-1] = ordered[1:] != ordered[:-1]
    hits = targets[order].cumsum(0)[last]  # int64: positives down to each threshold
    if not len(hits) or not hits[-1]:
        return float("nan")
    gained = hits.diff(prepend=hits.new_zeros(1))
    taken = last.nonzero()[:, 0] + 1  # samples down to each threshold
    products = (gained * hits).double() / taken.double()
    return math.fsum(products[gained > 0].tolist()) / int(hits[-1])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else float("nan")
