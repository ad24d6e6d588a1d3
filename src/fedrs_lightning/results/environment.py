"""What a run ran on: versions, source state, machine. Written beside the results, so that a number can be traced."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import fedrs_lightning

_TORCH = ("torch", "torchvision", "lightning", "torchmetrics")
LIBRARIES = (*_TORCH, "numpy", "jsonargparse", "safetensors", "pillow", "rasterio")
_JOB = ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "RESTART_COUNT", "JOB_NODELIST", "NTASKS")
SLURM = tuple(f"SLURM_{name}" for name in _JOB)


def environment(
    world_size: int = 1, precision: str = "32-true", threads: int | None = None, devices: Sequence[str] | None = None
) -> dict[str, Any]:
    """Facts about software and machine, as plain JSON values. Never fails because git is missing.

    Args:
        world_size: number of ranks.
        precision: Fabric's word for it, for example `bf16-mixed`.
        threads: CPU threads a rank; None asks torch.
        devices: names of the devices of all ranks; None lists the GPUs this process sees, or the CPU.

    Returns:
        What the keys say; under `git` a state is null outside a repository, `slurm` is null outside a job.
    """
    import torch

    cpu = cpu_model()
    if devices is None:
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] or [cpu]
    package = Path(fedrs_lightning.__file__).resolve().parent
    return {
        "versions": versions(),
        "git": {"package": _package_state(package), "working_directory": git_state(Path.cwd())},
        "devices": list(devices),
        "cpu": cpu,
        "cores": available_cores(),
        "world_size": world_size,
        "threads": torch.get_num_threads() if threads is None else threads,
        "precision": precision,
        "determinism": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
        "host": socket.gethostname(),
        "system": platform.platform(),
        "command": shlex.join(sys.argv),
        "slurm": {name.lower(): os.environ[name] for name in SLURM if name in os.environ} or None,
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, of this package and of the libraries that decide a result; None when not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "fedrs-lightning": fedrs_lightning.__version__}
    for name in LIBRARIES:
        try:
            # A loaded library says more than its package does: torch's 2.14.1+cu130 names the build.
            found[name] = str(getattr(sys.modules.get(name), "__version__", None) or metadata.version(name))
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(folder: Path, *, untracked: bool = False) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside a repository or without git.

    Args:
        folder: the repository is looked up from here.
        untracked: count new files below `folder` as a difference too, and look only below `folder`.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    where = ["--untracked-files=normal", "--", "."] if untracked else ["--untracked-files=no"]
    changes = _git(folder, "status", "--porcelain", *where)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def cpu_model() -> str:
    """Name of the processor as the system spells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _package_state(package: Path) -> dict[str, Any] | None:
    # An installed copy may lie inside somebody's repository (.venv): only a tracked package belongs to its commit.
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py") is not None
    return git_state(package, untracked=True) if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    # Optional locks off: reading the state must not get in the way of a commit made at the same moment.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
