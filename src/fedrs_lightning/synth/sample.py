"""A sample: what decides its bytes, and the folder it fills. The folder appears whole or not at all."""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from fedrs_lightning import __version__
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.files import read_json, write_json

MARKER = "SYNTHETIC.json"


class Sample(ABC):
    """Everything that decides the bytes of a sample; data sets derive frozen dataclasses from it.

    Attributes:
        seed: of all draws.
        spectral_shift: S in [0, 1].
        spatial_shift: T in [0, 1].
        defects: names of the faults to plant.
    """

    seed: int
    spectral_shift: float
    spatial_shift: float
    defects: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("spectral_shift", "spatial_shift"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the data set."""

    @abstractmethod
    def count(self) -> int:
        """How many tiles or patches there are."""

    @abstractmethod
    def paint(self, folder: Path, *args: Any, **options: Any) -> Iterator[None]:
        """Fill a folder; a step for each tile or patch."""

    @abstractmethod
    def plant(self, folder: Path) -> None:
        """Plant the defects into a folder that is filled."""


def write_sample(out: Path, sample: Sample, command: Sequence[str] = (), **options: Any) -> bool:
    """Write a whole sample with its `SYNTHETIC.json`, in which `command` is recorded; `options` are for its `paint`.

    The folder appears by one rename when everything is written; it may exist when it is empty. Gives False where it
    already holds this very sample.

    Raises:
        DataError: `out` holds something else, or cannot be written.
    """
    marker: dict[str, Any] = {"synthetic": True, "dataset": sample.title, "generator": f"fedrs-lightning {__version__}"}
    marker["command"] = " ".join(command)
    marker["parameters"] = asdict(sample) | {"defects": list(sample.defects)}  # type: ignore[call-overload]
    if out.exists():
        marked = (out / MARKER).is_file()
        if marked and read_json(out / MARKER) | {"command": marker["command"]} == marker:
            return False
        if not out.is_dir() or any(out.iterdir()):
            held = "another synthetic sample" if marked else "other things"
            raise DataError(f"{out}: exists and holds {held}; give another --out, or remove it")
    building = out.parent / f".{out.name}.{uuid.uuid4().hex[:12]}.building"
    console = Console(stderr=True)
    try:
        building.mkdir(parents=True)
        write_json(building / MARKER, marker)
        steps = sample.paint(building, **options)
        silent = not console.is_terminal
        for _ in track(steps, "painting", sample.count(), console=console, disable=silent, transient=True):
            pass
        sample.plant(building)
        if out.is_dir():
            out.rmdir()
        building.rename(out)
    except OSError as error:
        text = f"{error.filename or out}: cannot write the sample ({error.strerror})"
        raise DataError(f"{text}; free space or give another --out") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return True
