"""The benchmark against a plain FedAvg measures one job: both ways end in the same network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def job(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import federated_job

    return federated_job


def test_plain_and_project_learn_the_same(job, tmp_path):
    folder = tmp_path / "job"
    job.write_job(job.Job(clients=3, images=8, side=16, rounds=2, width=8), folder)
    command = [sys.executable, str(BENCHMARKS / "federated_job.py")]
    free = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    ranks = [free | {"RANK": str(rank)} for rank in range(job.PROCESSES)]
    for way, started in (("plain", ranks), ("project", [free])):
        processes = [
            subprocess.Popen([*command, way, str(folder)], env=env, stderr=subprocess.PIPE, text=True)
            for env in started
        ]
        errors = [process.communicate()[1] for process in processes]
        assert not any(process.returncode for process in processes), errors
    assert 0 < job.apart(folder) < 1e-3  # 1e-5 here
