"""Metrics whose states are integer counts, so that they add up exactly over batches, clients and ranks.

torchmetrics keeps and merges the counts. The last ratio is taken here in float64: its own float32 ratios are off by up
to 3e-8, and a single client must not wait for other ranks inside `compute()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix

Absent = Literal["left_out", "zero", "labelled_only"]


def confusion_metric(num_classes: int, ignore_index: int | None = None) -> MulticlassConfusionMatrix:
    """A fresh metric with one int64 state `confmat` [C, C]: rows are labels, columns predictions.

    It takes scores [N, C, ...] or class indices [N, ...] as predictions; equal scores go to the lowest class.
    """
    return MulticlassConfusionMatrix(num_classes, ignore_index=ignore_index, validate_args=False, sync_on_compute=False)


def overall_accuracy(confusion: Tensor) -> float:
    """Share of samples whose predicted class is right, in [0, 1]; nan without samples. `confusion` int64 [C, C]."""
    return float(confusion.diagonal().sum().double() / confusion.sum().double())


def mean_class_accuracy(confusion: Tensor) -> float:
    """Mean over the classes in the labels of the share recognised; nan without samples. `confusion` int64 [C, C].

    Examples:
        >>> mean_class_accuracy(torch.tensor([[3, 1], [2, 2]]))
        0.625
    """
    support = confusion.sum(1)
    present = support > 0
    return float((confusion.diagonal()[present].double() / support[present].double()).mean())


def class_ious(confusion: Tensor) -> Tensor:
    """TP / (TP + FP + FN) of each class, float64 [C], from int64 [C, C]; nan for one neither labelled nor predicted."""
    hits = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - hits
    return hits.double() / union.double()  # 0 / 0 is nan


def mean_iou(confusion: Tensor, absent: Absent = "left_out", unscored: Sequence[int] = ()) -> float:
    """Mean of `class_ious`, in [0, 1]; nan without pixels.

    Args:
        confusion: int64 [C, C].
        absent: classes neither labelled nor predicted are `left_out` or count as `zero`; `labelled_only` takes the
            classes with labels alone.
        unscored: classes that the network knows but the mean leaves out, such as clutter.

    Examples:
        >>> mean_iou(torch.tensor([[2, 0, 0], [1, 1, 0], [0, 0, 0]]))  # (2/3 + 1/2) / 2
        0.5833333333333333
        >>> mean_iou(torch.tensor([[2, 0, 0], [1, 1, 0], [0, 0, 0]]), absent="zero")
        0.38888888888888884
    """
    if not bool(confusion.any()):
        return float("nan")
    scored = [number for number in range(len(confusion)) if number not in set(unscored)]
    ious, confusion = class_ious(confusion)[scored], confusion[scored]
    if absent == "zero":
        return float(ious.nan_to_num(0.0).mean())
    return float(ious[confusion.sum(1) > 0].mean() if absent == "labelled_only" else ious.nanmean())


def confusion_counts(metric: Metric) -> Tensor:
    """Counts of a `confusion_metric` as int64 [C, C] on the CPU."""
    counts = metric.metric_state["confmat"]
    if not isinstance(counts, Tensor) or counts.dtype != torch.int64:
        raise TypeError("a confusion metric has one int64 state")
    return counts.cpu()
