"""Data sets, partitions, packs and loaders. The names here are those that configs use as short class names."""

from fedrs_lightning.data.datasets.eurosat import EuroSAT
from fedrs_lightning.data.federated import ClientSplit, FederatedDataset, Federation, SampleSource, Transform
from fedrs_lightning.data.loading import ClientLoader, plan_batches
from fedrs_lightning.data.partition import IID, ByAttribute, Dirichlet, Partition, Shards

__all__ = [
    "IID",
    "ByAttribute",
    "ClientLoader",
    "ClientSplit",
    "Dirichlet",
    "EuroSAT",
    "FederatedDataset",
    "Federation",
    "Partition",
    "SampleSource",
    "Shards",
    "Transform",
    "plan_batches",
]
