"""Real processes: two ranks through the console script and torchrun, Ctrl-C, and ranks that die."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrs_lightning.results.store import RunStore

SCRIPT = Path(sys.executable).with_name("fedrs")
PATIENCE = 240.0
"""Seconds for what takes a few on a machine that is not shared."""
SOON = 60.0
"""Seconds after which no rank may be left."""

OPTIONS = [
    "--method",
    "FedBN",
    "--schedule.num_rounds",
    "5",
    "--schedule.clients_per_round",
    "2",
    "--run.loggers",
    "[csv]",
]


class Launch:
    """A command in a session of its own, with its outputs in files."""

    def __init__(self, folder, command):
        self.folder = folder
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID")
        }
        with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=variables, start_new_session=True
            )

    @property
    def out(self):
        return (self.folder / "out.txt").read_text()

    @property
    def err(self):
        return (self.folder / "err.txt").read_text()

    def until(self, words):
        end = time.monotonic() + PATIENCE
        while words not in self.err:
            assert self.process.poll() is None, self.err
            assert time.monotonic() < end, self.err
            time.sleep(0.02)

    def ranks(self):
        """Process ids of the ranks that rank 0 started, as soon as they are there."""
        end = time.monotonic() + PATIENCE
        while True:
            parents = {int(path.parent.name): fields(path) for path in Path("/proc").glob("[0-9]*/stat")}
            found = [
                pid
                for pid, (_, parent) in parents.items()
                if parent == self.process.pid and b"--fabric.devices=2" in command_line(pid)
            ]
            if found:
                return found
            assert self.process.poll() is None, self.err
            assert time.monotonic() < end, self.err
            time.sleep(0.02)

    def end(self, ranks=()):
        """Exit code, once this process and its ranks are gone, which must be soon."""
        start = time.monotonic()
        code = self.process.wait(SOON)
        while any(alive(pid) for pid in ranks):
            assert time.monotonic() - start < SOON, f"ranks {ranks} are still there"
            time.sleep(0.05)
        return code

    def done(self):
        code = self.process.wait(PATIENCE)
        assert code == 0, self.err
        return RunStore(re.search(r"^run directory: (.*)$", self.out, re.MULTILINE)[1])


def fields(path):
    """State and parent of a process, from its `stat` file; nothing of one that is gone."""
    try:
        state, parent = path.read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, int(parent)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def alive(pid):
    return fields(Path(f"/proc/{pid}/stat"))[0] != "Z"


@pytest.fixture
def launch(config, tmp_path):
    started = []

    def start(*options, command=(str(SCRIPT),), devices=2):
        folder = tmp_path / f"launch-{len(started)}"
        folder.mkdir()
        arguments = [
            "fit",
            "--config",
            str(config.path),
            "--run.root",
            str(tmp_path / "launched"),
            *OPTIONS,
            *map(str, options),
        ]
        started.append(Launch(folder, [*command, *arguments, f"--fabric.devices={devices}"]))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


@pytest.fixture
def reference(fit):
    """The same experiment on one rank in this process."""
    ran = fit(*OPTIONS)
    assert ran.code == 0, ran.err
    return ran


def same(store, reference):
    assert store.result()["digest"] == reference.digest
    assert store.history() == reference.store.history()
    assert store.clients() == reference.store.clients()


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


@needs_proc
def test_two_ranks_interrupted_and_continued(launch, reference):
    first = launch()
    first.until("round 2/5")
    ranks = first.ranks()
    assert len(ranks) == 1
    os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does: to all ranks at once
    assert first.end(ranks) == 130
    lines = [line for line in first.err.splitlines() if not line.startswith("round ")]
    assert lines == [
        "tiny/FedBN starts: 3 clients, 5 rounds, 2 rank(s)",
        "fedrs fit: interrupted; finished rounds are on disk, the same command continues from them",
    ]
    assert first.out == ""

    second = launch()
    store = second.done()
    assert re.match(r"tiny/FedBN continues after round [234]: 3 clients, 5 rounds, 2 rank\(s\)\n", second.err)
    same(store, reference)
    environment = store.environment()
    assert environment["world_size"] == 2
    assert environment["threads"] == 1
    assert len(environment["devices"]) == 2


@needs_proc
def test_ranks_that_die_take_all_others_with_them(launch, reference, fit, tmp_path):
    first = launch()
    first.until("round 1/5")
    (rank,) = first.ranks()
    os.kill(rank, signal.SIGKILL)
    assert first.end([rank]) == 2
    assert [line for line in first.err.splitlines() if not line.startswith(("round ", "tiny/"))] == [
        "fedrs fit: rank 1 was ended by SIGKILL; all ranks stop, finished rounds are on disk, the same command "
        "continues from them"
    ]

    second = launch()
    second.until(" continues after round ")
    (rank,) = second.ranks()
    os.kill(second.process.pid, signal.SIGKILL)
    assert second.end([rank]) == -signal.SIGKILL
    assert "Traceback" not in second.err
    assert not second.out

    third = fit(*OPTIONS, root=tmp_path / "launched")
    assert third.code == 0
    same(third.store, reference)


WATCH = """
import signal, subprocess, sys, time
from types import SimpleNamespace
from fedrs_lightning.engine.ranks.watch import RankWatch, before_ranks_end, watching_ranks

ranks = [subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
watch = RankWatch(ranks)
watch.patience = 1.0
fabric = SimpleNamespace(strategy=SimpleNamespace(launcher=SimpleNamespace(watch=watch)))
watch.begin()
if "compiled" in sys.argv:  # a thread that hears no signal, as while it waits for a rank in compiled code
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    alive = lambda: print("before the end:", *[rank.poll() for rank in ranks], flush=True)
    with watching_ranks(fabric), before_ranks_end(fabric, alive):
        print(*[rank.pid for rank in ranks], flush=True)
        time.sleep(100)
except Exception as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(3)
"""


@needs_proc
@pytest.mark.parametrize("place", ["python", "compiled"])
@pytest.mark.parametrize("event", ["death", "interrupt"])
def test_rank_zero_comes_back_wherever_it_is(place, event):
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    ranks = [int(word) for word in process.stdout.readline().split()]
    time.sleep(1.0)  # from its last Python instruction into the wait
    if event == "death":
        os.kill(ranks[1], signal.SIGKILL)
    else:
        os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SOON)
    # Ranks that are well may still be writing a round that has ended.
    assert out == ("before the end: None None\n" if (event, place) == ("interrupt", "compiled") else "")
    fate = (
        "rank 2 was ended by SIGKILL; all ranks stop, finished rounds are on disk, the same command continues from them"
    )
    interrupted = "interrupted; finished rounds are on disk, the same command continues from them"
    if event == "death":
        expected = (3, f"RunError {fate}\n") if place == "python" else (2, f"fedrs fit: {fate}\n")
        assert (process.returncode, err) == expected
        assert not alive(ranks[0])
    elif place == "compiled":
        assert (process.returncode, err) == (130, f"fedrs fit: {interrupted}\n")
        assert not any(map(alive, ranks))
    else:
        assert process.returncode in (130, -signal.SIGINT)
        assert "KeyboardInterrupt" in err  # the command says it in words
        for rank in ranks:  # real ranks follow rank 0 by themselves
            os.kill(rank, signal.SIGKILL)


@needs_proc
def test_a_started_rank_follows_rank_zero():
    follower = (
        "import os, time\nfrom fedrs_lightning.cli.process import follow_rank_zero\nfollow_rank_zero(0.05)\n"
        "print(os.getpid(), flush=True)\ntime.sleep(100)\n"
    )
    parent = (
        "import os, subprocess, sys, time\nfrom fedrs_lightning.engine.ranks.watch import RANK_ZERO\n"
        "os.environ[RANK_ZERO] = str(os.getpid())\nsubprocess.Popen([sys.executable, '-c', "
        f"{follower!r}])\ntime.sleep(100)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    rank = int(process.stdout.readline())
    os.kill(rank, signal.SIGINT)  # Ctrl-C comes to all; a started rank leaves it to rank 0
    time.sleep(0.3)
    assert alive(rank)
    process.kill()
    process.wait()
    end = time.monotonic() + SOON
    while alive(rank):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_error_of_all_ranks_is_told_once(launch):
    failing = launch("--optimizer", "torch.optim.SGD", "--optimizer.lr", "1e30", "--schedule.batch_size", 8)
    assert failing.process.wait(PATIENCE) == 2
    lines = failing.err.splitlines()
    assert len(lines) == 2, failing.err
    assert re.match(r"fedrs fit: client \d, round 1: loss term 'task' is (nan|inf)", lines[1])


def test_ranks_per_device_multiplies_the_ranks_of_a_cpu(launch, reference):
    store = launch("--fabric.ranks_per_device", 2, devices=1).done()
    same(store, reference)
    assert store.environment()["world_size"] == 2


def test_torchrun(launch, reference):
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "fedrs_lightning.cli.main",
    )
    ran = launch(command=torchrun)
    store = ran.done()
    same(store, reference)
    assert store.environment()["world_size"] == 2
    assert ran.out.count("run directory: ") == 1


def test_a_complete_run_ends_on_every_rank_of_an_external_launcher(fit, monkeypatch):
    assert fit().code == 0
    for name, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    ran = fit()
    assert (ran.code, ran.out, ran.err) == (0, "", "")
