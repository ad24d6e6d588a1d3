"""How many ranks a machine gets, which GPU each of them takes and how many threads. Pure functions, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedrs_lightning.engine.ranks.launch import Launch
from fedrs_lightning.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from fedrs_lightning.engine.settings import FabricSettings


@dataclass(frozen=True)
class Machine:
    """What this process may use of its machine.

    Attributes:
        gpus: CUDA devices that torch sees.
        cores: that this process may run on.
        allotted: cores that Slurm gave to the job or step here; None outside a job.
        per_task: cores that Slurm gives to a task, where that was asked for.
    """

    gpus: int
    cores: int
    allotted: int | None = None
    per_task: int | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], gpus: int, cores: int) -> Machine:
        """From what torch and the system count, and from Slurm's environment variables."""
        names = ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK")
        allotted, per_task = (int(environ[name]) if name in environ else None for name in names)
        return cls(gpus, cores, allotted, per_task)


@dataclass(frozen=True)
class Placement:
    """Ranks of this machine.

    Attributes:
        accelerator: `cpu` or `gpu`.
        devices: number of the GPU of each rank among those visible, all 0 on a CPU. Under srun and torchrun all 0 too:
            what the others see is known when they have met (`shared_devices`).
        num_nodes: machines.
        threads: CPU threads of a rank.
    """

    accelerator: Literal["cpu", "gpu"]
    devices: tuple[int, ...]
    num_nodes: int
    threads: int

    @property
    def ranks(self) -> int:
        """Number of ranks on this machine."""
        return len(self.devices)


def place(
    settings: FabricSettings, launch: Launch | None, machine: Machine, num_clients: int, node_rank: bool = False
) -> Placement:
    """Ranks of this machine.

    Args:
        settings: what was asked for.
        launch: who started this process, see `launch_of`.
        machine: what there is.
        num_clients: of a round; `auto` starts no more ranks than that.
        node_rank: whether the user says which of several machines this is, and starts `fedrs` on each.

    Raises:
        ConfigError: an accelerator or a number of devices that is not there.
        LaunchError: srun or torchrun started another number of ranks than asked for.
    """
    accelerator: Literal["cpu", "gpu"] = "cpu"
    if settings.accelerator == "gpu" or (settings.accelerator == "auto" and machine.gpus):
        accelerator = "gpu"
    if accelerator == "gpu" and not machine.gpus:
        problem = "fabric.accelerator=gpu, but torch sees no CUDA device"
        raise ConfigError(f"{problem}; use --fabric.accelerator cpu or install a CUDA build of torch")
    if launch is not None:
        _check_launch(settings, launch)
        devices: tuple[int, ...] = (0,) * launch.on_node
        num_nodes = len(launch.per_node)
    else:
        devices = _own_devices(settings, accelerator, machine, num_clients)
        num_nodes = 1 if settings.num_nodes == "auto" else settings.num_nodes
        if num_nodes > 1 and not node_rank:
            problem = f"fabric.num_nodes={num_nodes}, but this process was started alone"
            raise ConfigError(f"{problem}; start it with srun or torchrun, or leave fabric.num_nodes to auto")
    threads = settings.threads_per_rank
    if threads is None:
        threads = 1 if accelerator == "cpu" else _cores_of_a_rank(launch, machine, len(devices))
    return Placement(accelerator, devices, num_nodes, threads)


def _check_launch(settings: FabricSettings, launch: Launch) -> None:
    nodes = len(launch.per_node)
    if settings.num_nodes != "auto" and settings.num_nodes != nodes:
        problem = f"{launch.by} started ranks on {nodes} machine(s), but fabric.num_nodes={settings.num_nodes}"
        raise LaunchError(f"{problem}; leave fabric.num_nodes to auto")
    if settings.devices == "auto":
        return
    wanted, each = settings.devices * settings.ranks_per_device, settings.ranks_per_device
    for number in launch.per_node:
        if number != wanted:
            times = f" and fabric.ranks_per_device={each}" if each > 1 else ""
            problem = f"{launch.by} started {number} rank(s) on a machine, but fabric.devices={settings.devices}{times}"
            raise LaunchError(f"{problem}; leave fabric.devices to auto, or start {wanted} there")


def _own_devices(settings: FabricSettings, accelerator: str, machine: Machine, num_clients: int) -> tuple[int, ...]:
    each, clients, cores = settings.ranks_per_device, max(1, num_clients), _own_cores(machine)
    if settings.devices != "auto":
        devices, ranks = settings.devices, settings.devices * each
    elif accelerator == "gpu":
        devices = min(machine.gpus, clients)
        ranks = min(devices * each, clients)
    else:
        devices = max(1, min(cores, clients) // each)
        ranks = devices * each
    if accelerator == "cpu":
        return (0,) * ranks
    if devices > machine.gpus:
        problem = f"fabric.devices={devices}, but torch sees {machine.gpus} CUDA device(s)"
        raise ConfigError(f"{problem}; lower it or use auto")
    return tuple(rank * devices // ranks for rank in range(ranks))


def _own_cores(machine: Machine) -> int:
    """Slurm does not always bind a process to the cores that it was given."""
    return machine.cores if machine.allotted is None else max(1, min(machine.cores, machine.allotted))


def _cores_of_a_rank(launch: Launch | None, machine: Machine, ranks: int) -> int:
    if launch is None:
        return max(1, _own_cores(machine) // ranks)
    if launch.by == "srun" and machine.per_task is not None:
        return max(1, min(machine.cores, machine.per_task))
    # Cores that are the task's own are not divided among the tasks once more.
    allotted = machine.allotted if launch.by == "srun" and machine.allotted is not None else 0
    return machine.cores if machine.cores * ranks <= allotted else max(1, machine.cores // ranks)


def shared_devices(seen: Sequence[tuple[int, Sequence[str]]], ranks_per_device: int) -> list[int]:
    """GPU of every rank, as a number among those visible to it.

    A scheduler may show a task all GPUs of the machine, one that is its own (`--gpus-per-task=1`), or those next to its
    cores (`--gpu-bind=closest`), so that the same number means another GPU in every task. Ranks take the GPUs in their
    order, as few on one as there must be.

    Args:
        seen: in the order of ranks, number of the machine and identities of the GPUs visible to the rank.
        ranks_per_device: most ranks on a GPU.

    Raises:
        LaunchError: more ranks than the GPUs of a machine may hold.
    """
    ranks = Counter(node for node, _ in seen)
    gpus = {node: {gpu for other, visible in seen if other == node for gpu in visible} for node in ranks}
    taken: Counter[tuple[int, str]] = Counter()
    chosen = []
    for rank, (node, visible) in enumerate(seen):
        even = -(-ranks[node] // max(1, len(gpus[node])))
        free = [i for most in (even, ranks_per_device) for i, gpu in enumerate(visible) if taken[node, gpu] < most]
        if even > ranks_per_device or not free:
            problem = f"{ranks[node]} ranks on a machine with {len(gpus[node])} GPU(s), {len(visible)} visible to rank"
            remedy = "start one rank a GPU, or raise fabric.ranks_per_device"
            raise LaunchError(f"{problem} {rank}, and fabric.ranks_per_device={ranks_per_device}; {remedy}")
        chosen.append(free[0])
        taken[node, visible[free[0]]] += 1
    return chosen
