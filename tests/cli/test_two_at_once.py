"""Two processes never write to one run directory: the same command twice, and a sweep that was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrs_lightning.results.store import RunStore

PATIENCE = 240.0
FEDRS = [sys.executable, "-m", "fedrs_lightning.cli.main"]


def start(command, name):
    with Path(f"{name}.out").open("wb") as out, Path(f"{name}.err").open("wb") as err:
        return subprocess.Popen([*FEDRS, *map(str, command)], stdout=out, stderr=err, start_new_session=True)


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def num_rounds(root):
    return sum(path.read_bytes().count(b"\n") for path in Path(root).glob("*/*/rounds.jsonl"))


@pytest.fixture
def slow(config, tmp_path, monkeypatch):
    """An experiment of many short rounds; the folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)
    config["schedule"] |= {"num_rounds": 30, "evaluate_every": 30}
    config["run"]["loggers"] = []
    return config.write()


def test_the_same_command_twice_and_again_after_a_kill(slow, tmp_path):
    command = ["fit", "--config", slow]
    first = start(command, "first")
    until(lambda: num_rounds("runs") >= 2)
    os.kill(first.pid, signal.SIGSTOP)  # so that it does not end before the second has looked
    second = start(command, "second")
    assert second.wait(PATIENCE) == 2
    (line,) = Path("second.err").read_text().splitlines()
    assert line.startswith("fedrs fit: runs/tiny/fedavg-s0-")
    assert f": another run is at work there (process {first.pid} of user " in line
    os.kill(first.pid, signal.SIGKILL)
    third = start(command, "third")  # at once, before anyone collects the first
    assert third.wait(PATIENCE) == 0, Path("third.err").read_text()
    assert "continues after round" in Path("third.err").read_text()
    first.wait()
    (path,) = Path("runs").glob("*/*/result.json")
    assert [record["round"] for record in RunStore(path.parent).rounds()] == list(range(1, 31))
    assert not list(path.parent.glob(".*"))


def test_runs_of_a_killed_sweep_end_and_the_same_sweep_continues(slow, tmp_path):
    command = ["sweep", "--config", slow, "--seeds", "0"]
    first = start(command, "first")
    until(lambda: num_rounds("runs") >= 2)
    child = json.loads(next(Path("runs").glob("*/*/.holder.json")).read_text())["pid"]
    os.kill(child, signal.SIGSTOP)
    second = start(command, "second")
    assert second.wait(PATIENCE) == 2
    assert "fedrs sweep: runs/sweep-logs: the same sweep is at work there (process " in Path("second.err").read_text()
    (log,) = Path("runs/sweep-logs").glob("*.log")
    other = start([*command, "--grid", "method=FedAvg"], "other")  # another sweep, whose only run is the same
    assert other.wait(PATIENCE) == 2
    assert "another run is at work there (process " in Path("other.err").read_text()

    os.kill(first.pid, signal.SIGKILL)
    os.kill(child, signal.SIGCONT)  # it finds that its parent is gone
    third = start(command, "third")
    assert third.wait(PATIENCE) == 0, Path("third.err").read_text()
    first.wait()
    (path,) = Path("runs").glob("*/*/result.json")
    assert [record["round"] for record in RunStore(path.parent).rounds()] == list(range(1, 31))
    assert "continues after round" in log.read_text()
