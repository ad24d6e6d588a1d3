"""A real Slurm of one node in a temporary folder, where its programs are installed and the user is root.

Debian's packages are `slurm-wlm` and `munge`.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fedrs_lightning.results.store import RunStore
from fedrs_lightning.synth.eurosat.sample import EuroSATSample
from fedrs_lightning.synth.sample import write_sample

from ..cli.conftest import experiment

PROGRAMS = ("sbatch", "srun", "scontrol", "slurmctld", "slurmd", "munged")
PATIENCE = 240.0
"""Seconds for what takes a few on a machine that is not shared."""

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=tests Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Ran:
    """Exit code and both outputs of a command, and the folder of its runs."""

    code: int
    out: str
    err: str
    root: Path

    @property
    def store(self):
        (path,) = self.root.glob("*/*/environment.json")
        return RunStore(path.parent)

    @property
    def lines(self):
        """Of the error output, without Slurm's own and without progress."""
        return [
            line for line in self.err.splitlines() if line and not line.startswith(("srun: ", "slurmstepd: ", "round "))
        ]


def programs():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no Slurm here: {', '.join(missing)} not found")
    if os.getuid() != 0:
        pytest.skip("starting a Slurm needs root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two tasks need two cores")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Environment variables with which Slurm's commands find a cluster of this machine alone."""
    programs()
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool", "log", "munge"):
        (folder / name).mkdir(mode=0o755)
    key, host = folder / "munge" / "key", socket.gethostname().split(".")[0]
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, ports=free_ports(2), cpus=os.cpu_count()))
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    variables |= {"SLURM_CONF": str(conf)}
    munge = [f"--{name}-file={folder}/munge/{name}" for name in ("pid", "log", "seed")]
    daemons = [
        ["munged", "--force", "--foreground", f"--key-file={key}", f"--socket={folder}/munge/socket", *munge],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ]
    # With the tests the daemons go too, however those end.
    following = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    started = []
    log = (folder / "log" / "out.txt").open("w")
    try:
        for command in daemons:
            command[0] = str(shutil.which(command[0]))  # they start themselves again, by this name
            command = following + command
            started.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True))
            time.sleep(0.5)
        if not idle(variables):
            tails = [path.read_text()[-800:] for path in (folder / "log").iterdir()]
            pytest.skip("Slurm did not start here: " + " | ".join(tails))
        yield variables
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.close()


def idle(variables):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        answer = subprocess.run(
            ["sinfo", "-h", "-t", "idle", "-o", "%n"], env=variables, capture_output=True, text=True
        )
        if answer.stdout.strip():
            return True
        time.sleep(0.3)
    return False


@pytest.fixture(scope="session")
def fedrs(tmp_path_factory):
    """Command of a tiny run: one round, three clients, eight tiles a class."""
    folder = tmp_path_factory.mktemp("tiny")
    write_sample(folder / "eurosat", EuroSATSample(tiles=8))
    config = experiment(folder / "eurosat")
    config["data"]["cache_dir"] = str(folder / "cache")
    config |= {"schedule": {"num_rounds": 1, "batch_size": 16}, "fabric": {"accelerator": "cpu"}}
    config["run"]["loggers"] = []
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    return [sys.executable, "-m", "fedrs_lightning.cli.main", "fit", "--config", str(folder / "tiny.yaml")]
