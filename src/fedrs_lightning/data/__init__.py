"""Data sets, partitions, packs and loaders. The names here are those that configs use as short class names.

A module is loaded when its name is first asked for.
"""

from typing import TYPE_CHECKING

from fedrs_lightning.lazy import lazy_imports

if TYPE_CHECKING:
    from fedrs_lightning.data.datasets.bigearthnet import BigEarthNet
    from fedrs_lightning.data.datasets.eurosat import EuroSAT
    from fedrs_lightning.data.datasets.folder_classification import FolderClassification
    from fedrs_lightning.data.datasets.folder_domains import FolderDomains
    from fedrs_lightning.data.datasets.folder_segmentation import FolderSegmentation
    from fedrs_lightning.data.datasets.loveda import LoveDA
    from fedrs_lightning.data.datasets.potsdam import Potsdam
    from fedrs_lightning.data.datasets.vaihingen import Vaihingen
    from fedrs_lightning.data.domains import Domain, Domains
    from fedrs_lightning.data.federated import ClientSplit, FederatedDataset, Federation, SampleSource, Transform
    from fedrs_lightning.data.loading import ClientLoader, plan_batches
    from fedrs_lightning.data.partition import IID, ByAttribute, Dirichlet, Partition, Shards
    from fedrs_lightning.data.tiles import TileDataset

__all__ = [
    "IID",
    "BigEarthNet",
    "ByAttribute",
    "ClientLoader",
    "ClientSplit",
    "Dirichlet",
    "Domain",
    "Domains",
    "EuroSAT",
    "FederatedDataset",
    "Federation",
    "FolderClassification",
    "FolderDomains",
    "FolderSegmentation",
    "LoveDA",
    "Partition",
    "Potsdam",
    "SampleSource",
    "Shards",
    "TileDataset",
    "Transform",
    "Vaihingen",
    "plan_batches",
]

__getattr__ = lazy_imports(__name__, __file__)
