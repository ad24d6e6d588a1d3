"""Tasks: network, loss and metrics in one LightningModule."""

from fedrs_lightning.tasks.base import Task
from fedrs_lightning.tasks.classification import ClassificationTask

__all__ = ["ClassificationTask", "Task"]
