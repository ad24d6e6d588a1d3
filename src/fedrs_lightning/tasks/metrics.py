"""Metrics whose states are integer counts, so that they add up exactly over batches, clients and ranks.

torchmetrics keeps and merges the counts. The last ratio is taken here in float64: its own float32 ratios are off by up
to 3e-8, and a single client must not wait for other ranks inside `compute()`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix


def confusion_metric(num_classes: int, ignore_index: int | None = None) -> MulticlassConfusionMatrix:
    """A fresh metric with one int64 state `confmat` [C, C]: rows are labels, columns predictions.

    It takes scores [N, C, ...] or class indices [N, ...] as predictions; equal scores go to the lowest class.
    """
    return MulticlassConfusionMatrix(num_classes, ignore_index=ignore_index, validate_args=False, sync_on_compute=False)


def overall_accuracy(confusion: Tensor) -> float:
    """Share of samples whose predicted class is right, in [0, 1]; nan without samples. `confusion` int64 [C, C]."""
    return float(confusion.diagonal().sum().double() / confusion.sum().double())


def mean_class_accuracy(confusion: Tensor) -> float:
    """Mean over the classes that occur in the labels of the share recognised; nan without samples. `confusion` int64 [C, C]."""
    support = confusion.sum(1)
    present = support > 0
    return float((confusion.diagonal()[present].double() / support[present].double()).mean())


def confusion_counts(metric: Metric) -> Tensor:
    """Counts of a `confusion_metric` as int64 [C, C] on the CPU."""
    counts = metric.metric_state["confmat"]
    if not isinstance(counts, Tensor) or counts.dtype != torch.int64:
        raise TypeError("a confusion metric has one int64 state")
    return counts.cpu()
