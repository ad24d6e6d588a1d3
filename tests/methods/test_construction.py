"""Every method is a configuration: jsonargparse builds it from plain values and writes it down again."""

import pytest
from jsonargparse import ArgumentParser

from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.methods.bounds import Centralised, LocalOnly
from fedrs_lightning.methods.fedbn import FedBN
from fedrs_lightning.methods.feddap import FedDAP
from fedrs_lightning.methods.fedmad import FedMAD

from .conftest import FEDDAP


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (FedAvg, {"weighting": "uniform"}),
        (FedBN, {"what": "affine_only", "norms": ["batch", "layer"]}),
        (FedMAD, {"power": 0.5, "order": ["layer1.0", "layer2.1"], "num_layers": 2, "upload": "delta"}),
        (FedMAD, {"order": "last_n", "placement": "post_bn"}),
        (FedDAP, {**FEDDAP, "gate": "fixed"}),
        (FedDAP, {**FEDDAP, "sync_every": None, "clustering": "finch", "num_clusters": None}),
        (Centralised, {"keep_optimizer": False}),
        (LocalOnly, {}),
    ],
)
def test_methods_round_trip_through_a_config(method, arguments):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FedAvg, "method", required=True)
    config = parser.parse_object({"method": {"class_path": f"{method.__module__}.{method.__name__}", "init_args": arguments}})
    again = parser.parse_string(parser.dump(config))
    assert again == config
    built = parser.instantiate(again).method
    assert type(built) is method
    assert vars(built) == vars(method(**arguments))
