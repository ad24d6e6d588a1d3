"""Tasks: network, loss and metrics in one LightningModule. A task is loaded when it is first asked for."""

from typing import TYPE_CHECKING

from fedrs_lightning.lazy import lazy_imports

if TYPE_CHECKING:
    from fedrs_lightning.tasks.base import Task
    from fedrs_lightning.tasks.classification import ClassificationTask
    from fedrs_lightning.tasks.multilabel import MultilabelTask
    from fedrs_lightning.tasks.segmentation import SegmentationTask

__all__ = ["ClassificationTask", "MultilabelTask", "SegmentationTask", "Task"]

__getattr__ = lazy_imports(__name__, __file__)
