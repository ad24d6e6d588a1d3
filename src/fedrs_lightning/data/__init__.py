"""Archives, and the clients that have their samples. The names here are those that configs use as short class names.

A module is loaded when its name is first asked for.
"""

from typing import TYPE_CHECKING

from fedrs_lightning.lazy import lazy_imports

if TYPE_CHECKING:
    from fedrs_lightning.data.archives.archive import Archive, ImageArchive, ImageListing, TileArchive, TileListing
    from fedrs_lightning.data.archives.bigearthnet.archive import BigEarthNet
    from fedrs_lightning.data.archives.eurosat.archive import EuroSAT
    from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
    from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
    from fedrs_lightning.data.archives.loveda.archive import LoveDA
    from fedrs_lightning.data.archives.own.images import OwnImages
    from fedrs_lightning.data.archives.own.rasters import OwnRasters
    from fedrs_lightning.data.batches.loading import ClientLoader, plan_batches
    from fedrs_lightning.data.clients.dataset import FederatedDataset
    from fedrs_lightning.data.clients.domain import Domain
    from fedrs_lightning.data.clients.federation import ClientSplit, Federation, SampleSource
    from fedrs_lightning.data.clients.partition import IID, ByAttribute, Dirichlet, Partition, Proportional, Shards

__all__ = [
    "IID",
    "Archive",
    "BigEarthNet",
    "ByAttribute",
    "ClientLoader",
    "ClientSplit",
    "Dirichlet",
    "Domain",
    "EuroSAT",
    "FederatedDataset",
    "Federation",
    "ImageArchive",
    "ImageListing",
    "LoveDA",
    "OwnImages",
    "OwnRasters",
    "Partition",
    "Potsdam",
    "Proportional",
    "SampleSource",
    "Shards",
    "TileArchive",
    "TileListing",
    "Vaihingen",
    "plan_batches",
]

__getattr__ = lazy_imports(__name__, __file__)
