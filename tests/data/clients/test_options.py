"""Numbers that mean nothing are refused when the data set is made, before anything is read."""

from math import inf, nan

import pytest

from fedrs_lightning.data import (
    IID,
    ByAttribute,
    Dirichlet,
    EuroSAT,
    FederatedDataset,
    OwnImages,
    Potsdam,
    Proportional,
    Shards,
)
from fedrs_lightning.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_samples": -5}, "min_samples must be at least 0, got -5"),
        ({"seed": -1}, "seed must be at least 0 or null, got -1"),
        ({"image_size": 1_000_000}, "image_size must be 1 to 16384 pixels or null, got 1000000"),
        ({"image_size": 0}, "image_size must be 1 to 16384"),
        ({"train_fraction": nan}, "train_fraction must be in"),
        ({"train_fraction": 1.5}, "train_fraction must be in"),
        ({"train_fraction": 0.0}, "train_fraction must be in"),
        ({"validation_fraction": -0.1}, "validation_fraction in"),
        ({"validation_fraction": nan}, "validation_fraction in"),
        ({"validation_fraction": 1.0}, "validation_fraction in"),
        ({"client_size": 0}, "client_size must be equal, or at least 1, got 0"),
        ({"client_size": "half"}, "client_size must be equal"),
    ],
)
def test_options_of_a_data_set(options, message):
    with pytest.raises(ConfigError, match=message):
        FederatedDataset(EuroSAT(), IID(2), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_size": 10**6}, "crop_size must be 1 to 16384 pixels, got 1000000"),
        ({"crop_size": 0}, "crop_size must be 1 to"),
        ({"test_overlap": -1}, "test_overlap must be in"),
        ({"random_crops_from": 10**6}, "random_crops_from must be crop_size=512 to 16384, got 1000000"),
        ({"random_crops_from": 100}, "random_crops_from must be crop_size=512 to 16384, got 100"),
    ],
)
def test_options_of_crops(options, message):
    with pytest.raises(ConfigError, match=message):
        FederatedDataset(Potsdam(), ByAttribute("tile"), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (lambda alpha=alpha: Dirichlet(3, alpha), "alpha must be > 0 and at most")
            for alpha in (nan, inf, -1, 0, 1e308)
        ),
        (lambda: Dirichlet(3, 0.5, min_samples=-5), "min_samples must be at least 0"),
        (lambda: Dirichlet(3, 0.5, max_draws=0), "max_draws at least 1"),
        (lambda: Dirichlet(0, 0.5), "num_clients must be at least 1, got 0"),
        (lambda: IID(-2), "num_clients must be at least 1, got -2"),
        (lambda: Shards(0), "num_clients must be at least 1"),
        (lambda: Shards(2, 0), "shards_per_client must be at least 1"),
        (lambda: Proportional(0), "num_clients must be at least 1"),
        *((lambda value=value: Proportional(2, [1.0, value]), "positive, finite") for value in (nan, inf, -1.0, 0.0)),
        *(
            (lambda value=value: own(scale=value), "scale must be above 0 and finite")
            for value in (nan, inf, -1.0, 0.0)
        ),
        (lambda: own(image_size=10**6), "image_size must be 1 to 16384 pixels or null, got 1000000"),
        (lambda: own(mean=[nan], std=[1.0]), "mean and std must be finite"),
        (lambda: own(mean=[0.0], std=[inf]), "mean and std must be finite"),
        (lambda: own(mean=[0.0], std=[-1.0]), "std above 0"),
    ],
)
def test_options_of_partitions_and_own_images(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def own(**options):
    return OwnImages(".", classes=["a"], in_channels=1, **options)


def test_more_clients_than_samples_are_refused_at_once():
    import numpy as np

    for partition in (IID(10**12), Proportional(10**12), Shards(10**12, 1), Dirichlet(10**12, 0.5, min_samples=0)):
        with pytest.raises(ConfigError, match="1000000000000 clients but only 5 training samples"):
            partition.split(np.zeros(5, np.int64), {}, np.random.default_rng(0))
