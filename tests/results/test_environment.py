import json
import subprocess
import sys

import numpy
import pytest
import torch

from fedrs_lightning.results import environment as module
from fedrs_lightning.results.environment import environment, git_state


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "A")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", tmp_path, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "tracked.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git


def test_git_state_sees_changes_and_new_files(repository):
    folder, git = repository
    clean = {"commit": git("rev-parse", "HEAD"), "dirty": False}
    assert git_state(folder) == clean
    (folder / "new.py").touch()
    assert (git_state(folder), git_state(folder, untracked=True)) == (clean, clean | {"dirty": True})
    (folder / "tracked.py").write_text("a = 2\n")
    assert git_state(folder) == clean | {"dirty": True}


def test_a_package_that_is_not_tracked_does_not_take_the_commit_around_it(repository):
    folder, _ = repository
    package = folder / ".venv" / "fedrs_lightning"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert module._package_state(package) is None


def test_facts_without_git_and_inside_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setattr(sys, "argv", ["fedrs", "fit", "--run.label", "two words"])
    facts = json.loads(
        json.dumps(environment(world_size=2, precision="bf16-mixed", threads=3, devices=["A", "B"]), allow_nan=False)
    )
    assert facts["git"] == {"package": None, "working_directory": None}
    assert facts["slurm"] == {"slurm_job_id": "42"}
    assert facts["command"] == "fedrs fit --run.label 'two words'"
    assert (facts["world_size"], facts["precision"], facts["threads"], facts["devices"]) == (
        2,
        "bf16-mixed",
        3,
        ["A", "B"],
    )
    assert (facts["versions"]["torch"], facts["versions"]["numpy"]) == (torch.__version__, numpy.__version__)
    assert facts["cpu"]
    assert facts["cores"] >= 1


def test_defaults_ask_torch(monkeypatch):
    for name in module.SLURM:
        monkeypatch.delenv(name, raising=False)
    facts = environment()
    assert facts["threads"] == torch.get_num_threads()
    assert facts["devices"]
    assert facts["slurm"] is None
    assert facts["determinism"]["deterministic_algorithms"] is torch.are_deterministic_algorithms_enabled()
