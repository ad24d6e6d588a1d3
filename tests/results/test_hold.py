"""One process at a time holds a folder: real processes, dead holders, holders on other machines."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedrs_lightning.errors import RunError
from fedrs_lightning.results import hold
from fedrs_lightning.results.hold import Hold

BUSY = "another run is at work there"
HOLDER = """
import sys, time
from pathlib import Path
from fedrs_lightning.errors import RunError
from fedrs_lightning.results.hold import Hold
folder, start, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
print("ready", flush=True)
while not start.exists():
    time.sleep(0.001)
try:
    with Hold(folder, "another run is at work there"):
        print("held", flush=True)
        time.sleep(seconds)
except RunError as error:
    print(error, flush=True)
"""


def holder(folder, start, seconds=60.0):
    words = [sys.executable, "-c", HOLDER, str(folder), str(start), str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def marker(pid, host, seconds):
    return f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken=abc\nduration={seconds!r}\nstart=1\n"


@pytest.mark.parametrize("left", [None, "dead", "empty", "garbage"])
def test_of_many_at_once_exactly_one_holds(tmp_path, left):
    folder, start = tmp_path / "run", tmp_path / "start"
    if left is not None:
        folder.mkdir()
        dead = subprocess.Popen(["true"])
        dead.wait()
        texts = {"dead": marker(dead.pid, hold._this_host(), hold.SILENCE), "empty": "", "garbage": "\0\1" * 40}
        (folder / ".lock").write_text(texts[left])
    processes = [holder(folder, start) for _ in range(8)]
    start.touch()
    try:
        lines = [process.stdout.readline() for process in processes[:-1]]
        lines.append(processes[-1].stdout.readline())
        assert lines.count("held\n") == 1
        winner = processes[lines.index("held\n")]
        refused = [line for line in lines if line != "held\n"]
        assert all(line.startswith(f"{folder}: {BUSY} (process {winner.pid}") for line in refused), lines
        assert any(" of user " in line and " since 2" in line for line in refused)
        # Killed and not yet collected by its parent, as under a container's first process: free at once.
        winner.kill()
        time.sleep(0.1)
        before = time.monotonic()
        with Hold(folder, BUSY):
            assert time.monotonic() - before < 5
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert list(folder.iterdir()) == []


def test_a_stopped_process_still_holds(tmp_path):
    process = holder(tmp_path / "run", tmp_path)
    assert process.stdout.readline() == "held\n"
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RunError, match=f"{BUSY} .process {process.pid} of user"), Hold(tmp_path / "run", BUSY):
            pass
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("alive", [True, False])
def test_a_holder_on_another_machine_is_known_by_its_signs_of_life(tmp_path, monkeypatch, capsys, alive):
    monkeypatch.setattr(hold, "SILENCE", 3.0)
    monkeypatch.setattr(hold, "_HEARTBEAT", 1.0)
    lock = tmp_path / ".lock"
    lock.write_text(marker(os.getpid(), "node-7", 3.0))  # our own number, which says nothing about another machine
    ended = threading.Event()

    def beat():
        while not ended.wait(1.0):
            lock.touch()

    beats = threading.Thread(target=beat)
    if alive:
        beats.start()
    before = time.monotonic()
    if alive:
        try:
            with (
                pytest.raises(RunError, match=rf"{BUSY} \(process {os.getpid()} on node-7\); wait"),
                Hold(tmp_path, BUSY),
            ):
                pass
        finally:
            ended.set()
            beats.join()
    else:
        with Hold(tmp_path, BUSY):
            assert time.monotonic() - before >= 3.0
            assert f"host={hold._this_host()}" in lock.read_text()
    assert f"process {os.getpid()} on node-7 holds it; watching up to 3 s" in capsys.readouterr().err


@pytest.mark.parametrize(("loss", "words"), [("removed", "was removed"), ("taken", "has taken over the folder")])
def test_who_loses_the_folder_learns_it(tmp_path, monkeypatch, loss, words):
    monkeypatch.setattr(hold, "_HEARTBEAT", 0.1)
    with Hold(tmp_path, BUSY) as held:
        held.require()
        lock = tmp_path / ".lock"
        lock.unlink()
        if loss == "taken":
            lock.write_text(marker(1, "node-7", hold.SILENCE))
        end = time.monotonic() + 30
        while held.lost is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        with pytest.raises(RunError, match=words):
            held.require()
    assert lock.exists() == (loss == "taken")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    Path(tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/run: Not a directory"), Hold(tmp_path / "file" / "run", BUSY):
        pass
