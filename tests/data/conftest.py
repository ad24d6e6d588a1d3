"""A synthetic sample of two domains, and a cache of the test's own."""

import shutil
from pathlib import Path

import pytest

from fedrs_lightning.data.synth.eurosat import EuroSATSample, write_sample


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDRS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> Path:
    """20 tiles of each class, two domains. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "sample"
    write_sample(out, EuroSATSample(domains=2))
    return out


@pytest.fixture
def copied(sample, tmp_path) -> Path:
    """A copy of the sample that a test may damage."""
    return Path(shutil.copytree(sample, tmp_path / "copied"))
