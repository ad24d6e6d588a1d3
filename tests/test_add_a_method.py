"""docs/add-a-method.md: the code on the page, as it stands, through the engine and the command line."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.methods import FedAvg

from .engine.conftest import run

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "add-a-method.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The page's first block, imported from the file that the page names."""
    (tmp_path / "fedavgm.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fedavgm", raising=False)
    return importlib.import_module("fedavgm")


def test_it_is_short():
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) < 40


def test_two_rounds_through_the_engine(module, tmp_path):
    """The velocity is the mean update, then half of it more; federated averaging where there is no momentum."""
    one = run(lambda: module.FedAvgM(0.5), tmp_path / "one", num_rounds=2)
    again = run(lambda: module.FedAvgM(0.5), tmp_path / "two", num_rounds=2, world_size=2)
    assert one.round == 2
    assert again.digest == one.digest
    plain = run(FedAvg, tmp_path / "plain", num_rounds=2)
    none = run(lambda: module.FedAvgM(0.0), tmp_path / "none", num_rounds=2)
    velocities = {key for key in one.server if key.startswith("fedavgm/")}
    assert velocities
    # batch norm levels the scale of the weights, so rounding in round 1 stays rounding
    assert all(
        torch.allclose(none.server[key], value, atol=1e-3)
        for key, value in plain.server.items()
        if value.is_floating_point()
    )
    assert max(float((one.server[key] - plain.server[key]).abs().max()) for key in plain.server) > 1e-3
    assert one.history[0]["bytes"] == plain.history[0]["bytes"]  # the velocity does not travel


def test_the_pages_own_test(module):
    found = dict(vars(module))
    exec(compile(blocks("python")[1], "docs/add-a-method.md", "exec"), found)
    names = [name for name in found if name.startswith("test_")]
    assert names
    for name in names:
        found[name]()


def test_the_configuration_finds_the_class(module):
    method = yaml.safe_load(blocks("yaml")[0])["method"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(FedAvg, "method", required=True)
    built = parser.instantiate(parser.parse_object({"method": method})).method
    assert (type(built).__name__, built.momentum) == ("FedAvgM", 0.7)
    with pytest.raises(ConfigError, match="momentum: 1 is not in"):
        module.FedAvgM(1)


def test_hooks_on_the_page_are_the_hooks_there_are():
    named = set(re.findall(r"`(\w+)\((?:task|server|local)[^)]*\)`", PAGE.partition("## The other hooks")[2]))
    assert named <= set(dir(FedAvg))
    assert {
        "adapt",
        "private_keys",
        "init_server",
        "download",
        "loss",
        "local_step",
        "upload",
        "weights",
        "aggregate",
    } <= named
