"""Who starts the ranks of a run: `fedrs` itself, or srun and torchrun. Read from the environment, without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fedrs_lightning.engine.ranks.watch import RANK_ZERO

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Launch:
    """Ranks that srun or torchrun has started, as one of them sees them.

    Attributes:
        by: `srun` or `torchrun`.
        per_node: ranks on each machine.
        rank: of this process among all.
        local_rank: of this process among those of its machine.
        node: number of this machine.
        address: where rank 0 listens.
        port: where rank 0 listens.
        agent: whether the launcher listens there instead of rank 0.
    """

    by: str
    per_node: tuple[int, ...]
    rank: int
    local_rank: int
    node: int
    address: str
    port: int
    agent: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(self.per_node)

    @property
    def on_node(self) -> int:
        """Ranks on this machine."""
        return self.per_node[self.node]


def launch_of(environ: Mapping[str, str], on_terminal: bool) -> Launch | None:
    """What started this process together with others; None where it starts further ranks itself.

    Neither a batch script nor a step of one task starts ranks. A step of several tasks does, unless it is an
    interactive one (`srun --pty bash`), where this process has the terminal of the step's first task. srun hands the
    variables of the interactive step on to the steps that are started inside it, but not the terminal.

    Args:
        environ: environment variables.
        on_terminal: whether the process has a controlling terminal.
    """
    if RANK_ZERO in environ:
        return None
    if "TORCHELASTIC_RUN_ID" in environ:
        return _torchrun(environ)
    if "SLURM_STEP_ID" not in environ or int(environ.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return None
    if "SLURM_PTY_PORT" in environ and on_terminal:
        return None
    return _srun(environ)


def this_launch() -> Launch | None:
    """`launch_of` for this process."""
    return launch_of(os.environ, _on_terminal())


def _torchrun(environ: Mapping[str, str]) -> Launch:
    nodes = int(environ.get("GROUP_WORLD_SIZE", "1"))
    return Launch(
        "torchrun",
        (int(environ["LOCAL_WORLD_SIZE"]),) * nodes,
        int(environ["RANK"]),
        int(environ["LOCAL_RANK"]),
        int(environ.get("GROUP_RANK", "0")),
        environ.get("MASTER_ADDR", LOOPBACK),
        int(environ.get("MASTER_PORT", "29500")),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _srun(environ: Mapping[str, str]) -> Launch:
    per_node = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    first = LOOPBACK if len(per_node) == 1 else first_node(environ["SLURM_STEP_NODELIST"])
    # Jobs and steps that run side by side on a machine get other ports.
    port = 15000 + (17 * int(environ["SLURM_JOB_ID"]) + int(environ["SLURM_STEP_ID"])) % 15000
    return Launch(
        "srun",
        per_node,
        int(environ["SLURM_PROCID"]),
        int(environ["SLURM_LOCALID"]),
        int(environ["SLURM_NODEID"]),
        environ.get("MASTER_ADDR", first),
        int(environ.get("MASTER_PORT", port)),
    )


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Tasks of each machine, as Slurm abbreviates them.

    Examples:
        >>> tasks_per_node("2(x3),1")
        (2, 2, 2, 1)
    """
    counts: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(number)] * int(times or 1)
    return tuple(counts)


def first_node(names: str) -> str:
    """First machine of a list, as Slurm abbreviates it.

    Examples:
        >>> first_node("gpu[007-009,12],cpu1")
        'gpu007'
    """
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", names).split(",")[0]


def _on_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
