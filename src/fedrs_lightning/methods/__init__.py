"""Federated methods, one file each."""

from fedrs_lightning.methods.base import FedAvg

__all__ = ["FedAvg"]
