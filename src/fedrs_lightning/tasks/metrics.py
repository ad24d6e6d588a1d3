"""Metrics whose states are integer counts, so that they add up exactly over batches, clients and ranks.

torchmetrics keeps and merges the counts. They are taken here: its own way to count under deterministic kernels holds
C^2 numbers a pixel. So is the last ratio, in float64: its own float32 ratios are off by up to 3e-8, and a single client
must not wait for other ranks inside `compute()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from fedrs_lightning.errors import DataError
from fedrs_lightning.nn.precision import full_precision

Absent = Literal["left_out", "zero", "labelled_only"]

PIECE = 2**24
"""Entries of what is multiplied at a time on a GPU: no count of a piece is beyond what float32 holds exactly."""

STRANGE = 2**48
"""Taken from the first count where a label is no class: more than there are pixels."""


class ConfusionMatrix(Metric):
    """Counts in one int64 state `confmat` [C, C]: rows are labels, columns predictions. `compute` returns it.

    Args:
        num_classes: C.
        ignore_index: label that does not count; None counts all.
    """

    full_state_update = False
    is_differentiable = False
    confmat: Tensor

    def __init__(self, num_classes: int, ignore_index: int | None = None) -> None:
        super().__init__(sync_on_compute=False)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.add_state("confmat", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Count scores [N, C, ...], of which equal ones go to the lowest class, or classes [N, ...], against labels."""
        classes = predictions.argmax(1) if predictions.dim() == labels.dim() + 1 else predictions
        self.confmat += confusion(labels.flatten(), classes.flatten(), self.num_classes, self.ignore_index)

    def compute(self) -> Tensor:
        """The counts."""
        return self.confmat


def confusion(labels: Tensor, predictions: Tensor, num_classes: int, ignore_index: int | None) -> Tensor:
    """How often each label met each prediction, int64 [C, C].

    On a GPU it is a product of zeros and ones, piece by piece: exact in any precision, the same on every run, and never
    waited for. A label that is no class makes the first entry negative there, and an error of `confusion_counts`.

    Args:
        labels: int64 [N].
        predictions: int64 [N], in 0..C-1.
        num_classes: C.
        ignore_index: label that does not count.

    Raises:
        DataError: a label is neither a class nor `ignore_index`.
    """
    if labels.device.type == "cpu":
        counted = labels != ignore_index if ignore_index is not None else torch.ones_like(labels, dtype=torch.bool)
        known = labels[counted]
        if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < num_classes:
            raise DataError(_unknown(num_classes))
        places = known * num_classes + predictions[counted]
        return torch.bincount(places, minlength=num_classes**2).view(num_classes, num_classes)
    total = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=labels.device)
    numbers = torch.arange(num_classes, device=labels.device)
    size = max(1, PIECE // num_classes)
    with full_precision(labels):
        for own, seen in zip(labels.split(size), predictions.split(size), strict=True):
            rows = (own[:, None] == numbers).float()  # [size, C], zeros where a label does not count
            total += (rows.T @ (seen[:, None] == numbers).float()).long()
    strange = (labels < 0) | (labels >= num_classes)
    strange = strange if ignore_index is None else strange & (labels != ignore_index)
    total[0, 0] -= strange.any() * STRANGE
    return total


def _unknown(num_classes: int) -> str:
    problem = f"test data have a label that is none of the {num_classes} classes 0 to {num_classes - 1}, nor ignored"
    return f"{problem}; correct the labels, or task.init_args.num_classes and ignore_index"


def confusion_metric(num_classes: int, ignore_index: int | None = None) -> ConfusionMatrix:
    """A fresh metric that counts labels against predictions."""
    return ConfusionMatrix(num_classes, ignore_index)


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
    """Counts of a `ConfusionMatrix` as int64 [C, C] on the CPU.

    Raises:
        DataError: a label was neither a class nor ignored.
    """
    counts = metric.metric_state["confmat"]
    if not isinstance(counts, Tensor) or counts.dtype != torch.int64:
        raise TypeError("a confusion metric has one int64 state")
    counts = counts.cpu()
    if len(counts) and counts[0, 0] < 0:
        raise DataError(_unknown(len(counts)))
    return counts
