"""The confusion matrix where deterministic kernels are asked for: the counts of the CPU, little memory, no waiting."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch.utils._python_dispatch import TorchDispatchMode

from fedrs_lightning.errors import DataError
from fedrs_lightning.tasks import metrics
from fedrs_lightning.tasks.metrics import confusion_counts, confusion_metric

from .pretended import LEDGER, apart, device

CASES = list(itertools.product(((2, 64), (7, 2**24), (7, 7 * 1000), (45, 45 * 7)), (False, True)))
"""Classes and entries of a piece, and whether autocast is on."""


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.nbytes = max(self.nbytes, result.numel() * result.element_size())
        return result


def sample(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels of three images."""
    stream, shape = torch.Generator().manual_seed(0), (3, 40, 50)
    labels = torch.randint(0, classes, shape, generator=stream)
    labels[torch.rand(shape, generator=stream) < 0.2] = 255
    return torch.randn(shape[0], classes, *shape[1:], generator=stream), labels


def count_all() -> dict[str, Any]:
    torch.use_deterministic_algorithms(True)
    found: dict[str, Any] = {"counts": []}
    whole = metrics.PIECE
    for (classes, metrics.PIECE), half in CASES:
        scores, labels = (values.to(device()) for values in sample(classes))
        metric = confusion_metric(classes, 255).to(device())
        LEDGER.clear()
        with torch.autocast("pretended", torch.bfloat16, enabled=half):
            for part in (slice(0, 1), slice(1, 3)):
                metric.update(scores[part], labels[part])
        waits = sum(LEDGER.waits.values())
        found["counts"].append((confusion_counts(metric).tolist(), waits))
    metrics.PIECE = whole
    for side in (200, 2000):
        metric = confusion_metric(20).to(device())
        labels = torch.zeros(1, side, side, dtype=torch.int64, device=device())
        with Largest() as largest:
            metric.update(labels, labels)
        found[side] = largest.nbytes, int(confusion_counts(metric)[0, 0])
    for label in (-1, 3):
        metric = confusion_metric(3, 255).to(device())
        for _ in range(9):
            metric.update(torch.zeros(3, dtype=torch.int64).to(device()), torch.tensor([0, label, 255]).to(device()))
        with pytest.raises(DataError, match="none of the 3 classes 0 to 2"):
            confusion_counts(metric)
    return found


def test_counts_on_the_device():
    """Those of scikit-learn, whatever the pieces and also under autocast; memory of the order of the mask, not of C^2
    numbers a pixel; a label that is no class is told when the counts are read.
    """
    found = apart(count_all)
    for ((classes, _), half), (counts, waits) in zip(CASES, found["counts"], strict=True):
        scores, labels = sample(classes)
        kept = labels != 255
        expected = confusion_matrix(labels[kept], scores.argmax(1)[kept], labels=range(classes))
        assert (counts, waits) == (expected.tolist(), 0), (classes, half)
    for side in (200, 2000):
        nbytes, count = found[side]
        assert count == side**2
        assert nbytes <= min(4 * 20 * side**2, max(4 * metrics.PIECE, 8 * side**2))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class(label):
    labels = torch.tensor([0, label, 255])
    with pytest.raises(DataError, match="none of the 3 classes 0 to 2"):
        confusion_metric(3, 255).update(torch.zeros(3, dtype=torch.int64), labels)
