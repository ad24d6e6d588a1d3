"""Checkpoints: one safetensors file a round, with plain values as JSON in its header.

Nothing about random numbers is stored: streams are functions of (seed, round, client).
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import atomic_path, naming_the_place
from fedrs_lightning.states import digest
from fedrs_lightning.types import State

_NAME = re.compile(r"^round-(\d+)\.safetensors$")
_FORMAT = 1


@dataclass
class Checkpoint:
    """A finished round.

    Attributes:
        round: the last finished round; 0 before the first.
        server: the server state, on the CPU.
        index: newest memory version of each client.
        loggers: ids by which loggers continue the same run.
        best: round and value of the best validation result so far, or empty.
        config: hash of the configuration that the run has, or empty.
        logs: what `RunStore.fingerprint` gave when the round was logged, or empty.
    """

    round: int
    server: State
    index: dict[int, int] = field(default_factory=dict)
    loggers: dict[str, str] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    config: str = ""
    logs: dict[str, str] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: where they lie.
        keep: how many of the newest stay; at least two, so that a damaged one has a predecessor.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = Path(folder), max(2, keep)

    def path(self, round: int) -> Path:
        """File of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def rounds(self) -> list[int]:
        """Rounds that have a file, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self.folder.iterdir() if (found := _NAME.match(path.name)))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably; an existing one of the same round is replaced."""
        plain: dict[str, Any] = {name: value for name, value in vars(checkpoint).items() if name != "server"}
        plain |= {"format": _FORMAT}
        plain["digest"] = _digest(plain, checkpoint.server)
        path = self.path(checkpoint.round)
        with naming_the_place(path), atomic_path(path, durable=True) as temporary:
            tensors = {key: tensor.contiguous() for key, tensor in checkpoint.server.items()}
            save_file(tensors, temporary, metadata={"fedrs": json.dumps(plain)})

    def load(self, round: int) -> Checkpoint:
        """Read one checkpoint and verify its digest.

        Raises:
            RunError: the file is missing, cut short, altered, or of another format.
        """
        path = self.path(round)
        try:
            with safe_open(path, framework="pt") as file:
                plain = json.loads((file.metadata() or {})["fedrs"])
                server = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{path}: not a readable checkpoint ({error})") from None
        if plain.get("format") != _FORMAT:
            raise RunError(f"{path}: written by another version of this software")
        if plain.pop("digest", None) != _digest(plain, server):
            raise RunError(f"{path}: its content does not match its digest, the file is damaged")
        del plain["format"]
        plain["index"] = {int(client): version for client, version in plain["index"].items()}
        return Checkpoint(server=server, **plain)

    def index(self, round: int) -> dict[int, int]:
        """The memory versions that a checkpoint names; none for a damaged one, which nobody can resume from."""
        return {int(client): version for client, version in self._plain(round).get("index", {}).items()}

    def logger_ids(self) -> dict[str, str]:
        """Logger ids of the newest checkpoint that can be read; empty before the first."""
        found = (plain for round in reversed(self.rounds()) if (plain := self._plain(round)))
        return dict(next(found, {}).get("loggers", {}))

    def configs(self) -> dict[int, str]:
        """Hash of the configuration that each readable checkpoint belongs to, by round; only of those that know it."""
        found = {round: str(self._plain(round).get("config", "")) for round in self.rounds()}
        return {round: config for round, config in found.items() if config}

    def _plain(self, round: int) -> dict[str, Any]:
        try:
            with safe_open(self.path(round), framework="pt") as file:
                return dict(json.loads((file.metadata() or {})["fedrs"]))
        except (OSError, SafetensorError, KeyError, ValueError):
            return {}

    def newest(self, usable: Any = None) -> Checkpoint | None:
        """The newest checkpoint that reads back whole; a damaged one is named in a warning and passed over.

        Args:
            usable: called with a checkpoint; returns a reason to pass it over, or None.

        Raises:
            RunError: there are checkpoints but none is usable.
        """
        reasons: list[str] = []
        for round in reversed(self.rounds()):
            try:
                checkpoint = self.load(round)
                reason = usable(checkpoint) if usable is not None else None
            except RunError as error:
                reason = str(error)
            if reason is None:
                if reasons:
                    fallback = f"Falling back to the checkpoint of round {round}"
                    warnings.warn(f"{'; '.join(reasons)}. {fallback}", stacklevel=2)
                return checkpoint
            reasons.append(reason)
        if reasons:
            raise RunError(f"no usable checkpoint: {'; '.join(reasons)}. Delete {self.folder.parent} to start again")
        return None

    def prune(self, extra: set[int]) -> list[int]:
        """Delete all but the newest `keep` and those in `extra`; return the rounds that stay."""
        rounds = self.rounds()
        kept = set(rounds[-self.keep :]) | (extra & set(rounds))
        for round in rounds:
            if round not in kept:
                self.path(round).unlink(missing_ok=True)
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        return sorted(kept)


def _digest(plain: dict[str, Any], server: State) -> str:
    """SHA-256 over the plain values and the state: a damaged header is noticed as well as a damaged tensor."""
    values = json.dumps(json.loads(json.dumps(plain)), sort_keys=True)  # keys are text in the file
    return hashlib.sha256(f"{values}\0{digest(server)}".encode()).hexdigest()
