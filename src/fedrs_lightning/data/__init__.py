"""Data sets, partitions, packs and loaders. The names here are those that configs use as short class names."""

from fedrs_lightning.data.archives.bigearthnet.archive import BigEarthNet
from fedrs_lightning.data.archives.eurosat.archive import EuroSAT
from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.archives.loveda.archive import LoveDA
from fedrs_lightning.data.archives.own.domains import FolderDomains
from fedrs_lightning.data.archives.own.images import FolderClassification
from fedrs_lightning.data.archives.own.rasters import FolderSegmentation
from fedrs_lightning.data.archives.tiles import TileDataset
from fedrs_lightning.data.batches.loading import ClientLoader, plan_batches
from fedrs_lightning.data.clients.domains import Domain, Domains
from fedrs_lightning.data.clients.federated import ClientSplit, FederatedDataset, Federation, SampleSource, Transform
from fedrs_lightning.data.clients.partition import IID, ByAttribute, Dirichlet, Partition, Shards

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
