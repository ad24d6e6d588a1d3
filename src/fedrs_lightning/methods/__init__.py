"""Federated methods, one file each. A method is loaded when it is first asked for."""

from typing import TYPE_CHECKING

from fedrs_lightning.lazy import lazy_imports

if TYPE_CHECKING:
    from fedrs_lightning.methods.base import FedAvg
    from fedrs_lightning.methods.bounds import Centralised, LocalOnly
    from fedrs_lightning.methods.fedawa import FedAWA
    from fedrs_lightning.methods.fedbn import FedBN
    from fedrs_lightning.methods.feddap import FedDAP
    from fedrs_lightning.methods.feddc import FedDC
    from fedrs_lightning.methods.fedgps import FedGPS
    from fedrs_lightning.methods.fedmad import FedMAD
    from fedrs_lightning.methods.fedproto import FedProto
    from fedrs_lightning.methods.fedprox import FedProx
    from fedrs_lightning.methods.fedseg import FedSeg
    from fedrs_lightning.methods.fpl import FPL
    from fedrs_lightning.methods.moon import MOON

__all__ = [
    "FPL",
    "MOON",
    "Centralised",
    "FedAWA",
    "FedAvg",
    "FedBN",
    "FedDAP",
    "FedDC",
    "FedGPS",
    "FedMAD",
    "FedProto",
    "FedProx",
    "FedSeg",
    "LocalOnly",
]

__getattr__ = lazy_imports(__name__, __file__)
