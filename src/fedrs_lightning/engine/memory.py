"""What each client keeps between rounds: one safetensors file per client and round, never written in place.

A crash in mid-round leaves files of a round that no checkpoint names; they are ignored and removed, so that a resumed
run reads exactly what the unbroken one read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import atomic_path, naming_the_place
from fedrs_lightning.types import State

_NAME = re.compile(r"^(\d+)\.r(\d+)\.safetensors$")


class ClientMemory:
    """Versioned memory of all clients in one folder that every rank sees.

    Attributes:
        index: newest committed round of each client that keeps anything; identical on all ranks, saved in checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index: dict[int, int] = {}

    def path(self, client_id: int, round: int) -> Path:
        """File of one version."""
        return self.folder / f"{client_id:06d}.r{round:05d}.safetensors"

    def load(self, client_id: int) -> State:
        """The committed memory of a client, on the CPU; empty for one that has kept nothing yet.

        Raises:
            RunError: the file that the index names is missing or damaged.
        """
        round = self.index.get(client_id)
        if round is None:
            return {}
        path = self.path(client_id, round)
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            problem = f"{path}: cannot read the memory of client {client_id} ({error})"
            raise RunError(f"{problem}; resume to fall back to an earlier checkpoint") from None

    def save(self, client_id: int, round: int, state: State) -> bool:
        """Write the version of `round`; it counts once `commit` names it. Returns whether there was anything."""
        if not state:
            return False
        path = self.path(client_id, round)
        with naming_the_place(path), atomic_path(path) as temporary:
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}, temporary)
        return True

    def commit(self, client_ids: Iterable[int], round: int) -> None:
        """Make the versions of `round` the current ones."""
        self.index.update(dict.fromkeys(client_ids, round))

    def missing(self, index: Mapping[int, int]) -> Path | None:
        """The first file of `index` that is absent or no whole safetensors file, or None."""
        for path in (self.path(client_id, round) for client_id, round in sorted(index.items())):
            try:
                with safe_open(path, framework="pt"):
                    pass
            except (OSError, SafetensorError):
                return path
        return None

    def prune(self, kept: Iterable[Mapping[int, int]]) -> None:
        """Delete every version that none of the kept indices names, and left-over temporary files."""
        names = {self.path(client_id, round).name for index in kept for client_id, round in index.items()}
        for path in self.folder.iterdir():
            if (_NAME.match(path.name) and path.name not in names) or path.suffix == ".tmp":
                path.unlink(missing_ok=True)
