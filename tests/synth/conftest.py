"""Samples that several tests read, and a cache of the test's own."""

from pathlib import Path

import pytest

from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDRS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> Path:
    """EuroSAT, 20 tiles of each class, two domains. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "sample"
    write_sample(out, EuroSATSample(domains=2))
    return out


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    """BigEarthNet, ten summer patches of each of the eight countries and five more. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "archive"
    write_sample(out, BigEarthNetSample())
    return out
