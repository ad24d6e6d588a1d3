"""A small federated experiment on synthetic tiles, run through the command's own `main`."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fedrs_lightning.cli.main import main
from fedrs_lightning.engine.callbacks import ProgressBars
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample


@dataclass
class Ran:
    """One call of `fedrs fit`: exit code, both outputs, and the run it named or was given."""

    code: int
    out: str
    err: str
    store: RunStore

    @property
    def line(self):
        """The one line of an error: exit code 2, nothing else on either output."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.out == ""
        lines = [
            line
            for line in self.err.splitlines()
            if not line.startswith(("warning: ", "round ")) and " starts: " not in line
        ]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("fedrs fit: ")
        return lines[0].removeprefix("fedrs fit: ")

    @property
    def digest(self):
        assert self.code == 0, self.err
        return self.store.result()["digest"]


@pytest.fixture(scope="session")
def tiles(tmp_path_factory):
    """Eight synthetic tiles a class. Read only."""
    folder = tmp_path_factory.mktemp("tiles") / "eurosat"
    write_sample(folder, EuroSATSample(tiles=8))
    return folder


@pytest.fixture(scope="session")
def pack_cache(tmp_path_factory):
    """Where packed tiles are kept during the tests, away from the user's own cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def own_tiles(tiles, tmp_path):
    """A copy of the tiles to damage."""
    return Path(shutil.copytree(tiles, tmp_path / "eurosat"))


def experiment(tiles):
    return {
        "data": {
            "root": str(tiles),
            "archive": {"class_path": "EuroSAT"},
            "image_size": 16,
            "partition": {"class_path": "IID", "init_args": {"num_clients": 3}},
        },
        "task": {
            "class_path": "ClassificationTask",
            "init_args": {"backbone": "resnet18", "width": 4, "stem": "small"},
        },
        "method": "FedAvg",
        "schedule": {"num_rounds": 3, "batch_size": 16, "evaluate_every": 2},
        "fabric": {"accelerator": "cpu", "devices": 1},
        "run": {"plot": False},
    }


@pytest.fixture
def config(tiles, pack_cache, tmp_path, monkeypatch):
    """The experiment as a file; a test may change the mapping and call `write`."""
    monkeypatch.setenv("FEDRS_CACHE", str(pack_cache))
    monkeypatch.setenv("COLUMNS", "100")

    class Config(dict):
        path = tmp_path / "tiny.yaml"

        def write(self):
            self.path.write_text(yaml.safe_dump(dict(self), sort_keys=False))
            return str(self.path)

    made = Config(experiment(tiles))
    made.write()
    return made


@pytest.fixture
def fit(config, tmp_path, capsys):
    """`fit(*options)` runs `fedrs fit --config tiny.yaml *options` in this process."""

    def run(*options, config_file=config.path, root=tmp_path / "runs"):
        capsys.readouterr()
        arguments = [] if config_file is None else ["--config", str(config_file)]
        code = main(["fit", *arguments, "--run.root", str(root), *map(str, options)])
        out, err = capsys.readouterr()
        named = [
            line.removeprefix("run directory: ") for line in out.splitlines() if line.startswith("run directory: ")
        ]
        made = [Path(named[0])] if named else sorted(root.glob("*/*/config.yaml"), key=os.path.getmtime)
        store = RunStore(made[-1] if named or not made else made[-1].parent) if made else RunStore(root)
        return Ran(code, out, err, store)

    return run


@pytest.fixture
def stop(monkeypatch):
    """`stop(after, error)` makes the next run raise once its round `after` is on the disk, as a crash would."""

    def arrange(after, error=KeyboardInterrupt):
        with_bars = ProgressBars.on_round_end

        def on_round_end(self, engine, record):
            with_bars(self, engine, record)
            if record["round"] == after:
                monkeypatch.setattr(ProgressBars, "on_round_end", with_bars)
                raise error

        monkeypatch.setattr(ProgressBars, "on_round_end", on_round_end)

    return arrange
