"""Tasks: network, loss and metrics in one LightningModule."""

from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.classification import ClassificationTask
from fedrs_lightning.tasks.multilabel import MultilabelTask
from fedrs_lightning.tasks.segmentation import SegmentationTask

__all__ = ["ClassificationTask", "MultilabelTask", "SegmentationTask", "Task"]
