"""Every method is a configuration: jsonargparse builds it from plain values and writes it down again."""

import pytest
from jsonargparse import ArgumentParser

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import (
    FPL,
    MOON,
    Centralised,
    FedAvg,
    FedAWA,
    FedBN,
    FedDAP,
    FedDC,
    FedGPS,
    FedMAD,
    FedProto,
    FedProx,
    FedSeg,
    LocalOnly,
)

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
        (FedProx, {"mu": 0.5}),
        (MOON, {"projection": False, "buffer": 2, "first_round": "use_global"}),
        (FedDC, {"server_rule": "paper", "clip": None}),
        (FedAWA, {"optimizer": "sgd", "lr": 0.1, "betas": [0.5, 0.9]}),
        (FedGPS, {"surrogate": None, "evaluate": "all", "clip": None}),
        (FedProto, {"weight": 0.5, "average_model": False}),
        (FPL, {"num_pixels": 9, "unbiased_reduction": "sum"}),
        (FedSeg, {"background_index": 1, "max_anchors": None}),
        (Centralised, {"keep_optimizer": False}),
        (LocalOnly, {}),
    ],
)
def test_methods_round_trip_through_a_config(method, arguments):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FedAvg, "method", required=True)
    config = parser.parse_object(
        {"method": {"class_path": f"{method.__module__}.{method.__name__}", "init_args": arguments}}
    )
    again = parser.parse_string(parser.dump(config, skip_none=False))
    assert again == config
    built = parser.instantiate(again).method
    assert type(built) is method
    assert vars(built) == vars(method(**arguments))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FedBN, {"what": "some"}, "what must be all, .* or .*, got 'some'"),
        (FedBN, {"select": "by_hand"}, "select must be by_type or by_name, got 'by_hand'"),
        (FedBN, {"norms": ["batch", "spectral"]}, "norms must be batch, .* or .*, got 'spectral'"),
        (FedMAD, {"power": -1.0}, "power: -1.0 is not a number of at least 0"),
        (FedMAD, {"eps": -1.0}, "eps: -1.0 is not a number of at least 0"),
        (FedMAD, {"negative": "flip"}, "negative must be .* or .*, got 'flip'"),
        (FedProx, {"mu": -1.0}, "mu: -1.0 is not a number of at least 0"),
        (MOON, {"temperature": -1.0}, "temperature: -1.0 is not a positive number"),
        (FedDC, {"alpha": -1.0}, "alpha: -1.0 is not a number of at least 0"),
        (FedDC, {"clip": 0.0}, "clip: 0.0 is not a positive number; null does not clip"),
        (FedDC, {"server_rule": "mine"}, "server_rule must be released or paper, got 'mine'"),
        (FedDC, {"state_scale": "mine"}, "state_scale must be step_count or none, got 'mine'"),
        (FedAWA, {"optimizer": "lion"}, "optimizer must be .* or .*, got 'lion'"),
        (FedAWA, {"lr": -1.0}, "lr: -1.0 is not a number of at least 0"),
        (FedAWA, {"weight_decay": float("inf")}, "weight_decay: inf is not a number of at least 0"),
        (FedAWA, {"gamma": 0.0}, "gamma: 0.0 is not a positive number"),
        (FedAWA, {"server_steps": 0}, "server_steps: 0 is below 1"),
        (FedAWA, {"betas": (0.9, 1.0)}, "are not two numbers in"),
        (FedGPS, {"surrogate": "photo"}, "surrogate must be gaussian or null, got 'photo'"),
        (FedGPS, {"evaluate": "last"}, "evaluate must be .* or .*, got 'last'"),
        (FedGPS, {"multilabel": "most"}, "multilabel must be .* or .*, got 'most'"),
        (FedGPS, {"rho": -0.1}, "rho: -0.1 is not a number of at least 0"),
        (FedGPS, {"temperature": 0.0}, "temperature: 0.0 is not a positive number"),
        (FedGPS, {"clip": -1.0}, "clip: -1.0 is not a positive number; null does not clip"),
        (FedGPS, {"surrogate_side": 0}, "surrogate_side: 0 is below 1"),
        (FedProto, {"weight": -1.0}, "weight: -1.0 is not a number of at least 0"),
        (FedProto, {"proto_weighting": "area"}, "proto_weighting must be .* or .*, got 'area'"),
        (FedProto, {"regulariser": "pixels"}, "regulariser must be .* or .*, got 'pixels'"),
        (FPL, {"temperature": 0.0}, "temperature: 0.0 is not a positive number"),
        (FPL, {"contrastive_weight": -1.0}, "contrastive_weight: -1.0 is not a number of at least 0"),
        (FPL, {"unbiased_weight": float("nan")}, "unbiased_weight: nan is not a number of at least 0"),
        (FPL, {"unbiased_reduction": "max"}, "unbiased_reduction must be .* or .*, got 'max'"),
        (FPL, {"num_pixels": 0}, "num_pixels: 0 is below 1"),
        (FedDAP, {**FEDDAP, "gate": "half"}, "gate must be .* or .*, got 'half'"),
        (FedDAP, {**FEDDAP, "lambda_inv": -1.0}, "lambda_inv: -1.0 is not a number of at least 0"),
        (FedDAP, {**FEDDAP, "temperature": 0.0}, "temperature: 0.0 is not a positive number"),
        (FedDAP, {**FEDDAP, "smoothing": 1.0}, "smoothing: 1.0 is not in"),
        (FedDAP, {**FEDDAP, "sync_every": 0}, "sync_every: 0 is below 1; null never synchronises"),
        (FedDAP, {**FEDDAP, "clustering": "finch"}, "num_clusters: 2 with clustering: finch"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(method, options, message):
    with pytest.raises(ConfigError, match=message):
        method(**options)
