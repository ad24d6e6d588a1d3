"""A warning from the scheduler ends the run at the end of its round: saved, requeued, nothing lost.

SLURM sends SIGUSR1 some time before it takes the nodes away (`--signal=USR1@120`). The handler only sets a flag; at
the end of a round all ranks agree, so that none is left waiting.
"""

from __future__ import annotations

import os
import signal
import subprocess
from types import FrameType

import lightning as L
import torch
import torch.distributed as dist

from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.errors import RunError


class Preemption:
    """Listens for SIGUSR1 from its creation on."""

    def __init__(self) -> None:
        self.warned = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.warned = True

    def agreed(self, fabric: L.Fabric) -> bool:
        """True on all ranks when any rank was warned.

        Raises:
            LostContact: a rank is gone.
        """
        if fabric.world_size == 1:
            return self.warned
        warned = torch.tensor(int(self.warned))  # in host memory on every device: the group is gloo
        with contact():
            dist.all_reduce(warned, op=dist.ReduceOp.MAX)
        return bool(warned)


def requeue() -> str | None:
    """Put the running SLURM job back into the queue; returns its id, or None outside SLURM.

    Raises:
        RunError: scontrol refused.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    name = f"{array}_{task}" if array and task else job
    answer = subprocess.run(["scontrol", "requeue", name], capture_output=True, text=True, check=False)
    if answer.returncode:
        problem = f"scontrol requeue {name} failed: {answer.stderr.strip()}"
        raise RunError(f"{problem}; the round is saved, submit the job again to continue")
    return name
