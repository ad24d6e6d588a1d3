"""What each client keeps between rounds: one safetensors file per client and round, never written in place.

Files are written behind from a snapshot. A rank keeps the newest memories of its own clients at hand, within a budget,
and waits for a file that another rank has not finished yet. A crash in mid-round leaves files of a round that no
checkpoint names; they are ignored and removed, so that a resumed run reads exactly what the unbroken one read. Every
file carries the digest of its content together with its client and round, which is compared whenever it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedrs_lightning.engine.writing import Writer
from fedrs_lightning.errors import RunError
from fedrs_lightning.files import atomic_path, naming_the_place, write_text
from fedrs_lightning.flat import placed
from fedrs_lightning.states import digest, nbytes
from fedrs_lightning.types import State

_NAME = re.compile(r"^(\d+)\.r(\d+)\.safetensors$")
_FAILED = ".failed"
_SEAL = "fedrs"

PATIENCE = 600.0
"""Seconds without any progress, after which a file of another rank is waited for no longer."""

GRACE = 2.0
"""The same while the run ends by an error, when the other rank may be gone."""


@dataclass
class _Kept:
    """A memory at hand."""

    round: int
    state: State
    size: int


class ClientMemory:
    """Versioned memory of all clients in one folder that every rank sees.

    Args:
        folder: for the files.
        writer: of this rank; none writes at once.
        budget: bytes of memories that this rank keeps at hand, on the device where they were made. Beyond it, one
            memory at a time waits in host memory for the writer.

    Attributes:
        index: newest committed round of each client that keeps anything; identical on all ranks, saved in checkpoints.
        homes: ranks on which clients trained last, since this run was started; identical on all ranks.
        settled: last round whose files are all there; later ones may still be on their way.
    """

    def __init__(self, folder: Path, writer: Writer | None = None, budget: float = 0.0) -> None:
        self.folder, self.writer, self.budget = Path(folder), writer or Writer(behind=False), budget
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index: dict[int, int] = {}
        self.homes: dict[int, int] = {}
        self.settled = 0
        self._kept: dict[int, _Kept] = {}
        self._passing: tuple[int, _Kept, Future[bool]] | None = None  # beyond the budget, on its way to the file

    def path(self, client_id: int, round: int) -> Path:
        """File of one version."""
        return self.folder / f"{client_id:06d}.r{round:05d}.safetensors"

    def load(self, client_id: int) -> State:
        """The committed memory of a client, not to be written to; empty for one that has kept nothing yet.

        Its tensors lie where they were made, or on the CPU.

        Raises:
            RunError: the file that the index names is missing or damaged, or another rank does not finish it.
        """
        round = self.index.get(client_id)
        if round is None:
            return {}
        for kept in self._at_hand(client_id):
            if kept.round == round:
                return kept.state
        path = self.path(client_id, round)
        if round > self.settled:
            with self.writer.waiting():
                self.wait_for([path])
        try:
            return _read(path, client_id, round)
        except (OSError, SafetensorError, ValueError) as error:
            problem = f"{path}: cannot read the memory of client {client_id} ({error})"
            raise RunError(f"{problem}; resume to fall back to an earlier checkpoint") from None

    def save(self, client_id: int, round: int, state: State) -> bool:
        """Hand in a copy as the version of `round`, which counts once `commit` names it; False for an empty state.

        Raises:
            RunError: earlier work of the writer has failed.
        """
        if not state:
            return False
        size = nbytes(state)
        self._kept.pop(client_id, None)
        stays = sum(kept.size for kept in self._kept.values()) + size <= self.budget
        if not stays and self._passing is not None:
            self.writer.wait(self._passing[2])
            self._passing = None
        kept = _Kept(round, _snapshot(state, on_host=not stays), size)
        path = self.path(client_id, round)
        done = self.writer.submit(partial(_write, path, client_id, round, _host_copy(kept.state)))
        if stays:
            self._kept[client_id] = kept
        else:
            self._passing = client_id, kept, done
        return True

    def commit(self, client_ids: Iterable[int], round: int) -> None:
        """Make the versions of `round` the current ones."""
        self.index.update(dict.fromkeys(client_ids, round))
        # A client that has trained on another rank since is kept there.
        self._kept = {client: kept for client, kept in self._kept.items() if kept.round == self.index.get(client)}
        if self._passing is not None and self._passing[2].done():
            self._passing = None

    def named(self, round: int, index: Mapping[int, int]) -> list[Path]:
        """Files of `round` that the index names."""
        return [self.path(client_id, version) for client_id, version in sorted(index.items()) if version == round]

    def wait_for(self, paths: Iterable[Path]) -> None:
        """Wait until every file is there, finished by whichever rank writes it.

        Raises:
            RunError: a rank cannot write its files, or nothing has come for a long time.
        """
        missing, seen, since, pause = list(paths), "", time.monotonic(), 0.002
        while missing := [path for path in missing if not path.exists()]:
            self.writer.check()
            for note in self.folder.glob(f"*{_FAILED}"):
                reason = note.read_text(encoding="utf-8") or f"{note.with_suffix('')}: cannot be written"
                raise RunError(reason)
            now = time.monotonic()
            growing = sorted((path.name, _size(path)) for path in self.folder.glob(".*.tmp"))
            if seen != (state := f"{len(missing)} {growing}"):
                seen, since = state, now
            patience = GRACE if self.writer.ending.is_set() else PATIENCE
            if now - since > patience:
                problem = f"{missing[0]}: the rank that trained this client has not written it for {patience:.0f} s"
                raise RunError(f"{problem}; look at that rank, then run the same command again")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def missing(self, index: Mapping[int, int]) -> Path | None:
        """The first file of `index` that is absent, damaged, or not what its name says, or None. Reads them all."""
        for client_id, round in sorted(index.items()):
            try:
                _read(self.path(client_id, round), client_id, round)
            except (OSError, SafetensorError, ValueError):
                return self.path(client_id, round)
        return None

    def prune(self, kept: Iterable[Mapping[int, int]], last: int) -> None:
        """Delete every version up to round `last` that none of the kept indices names: later ones are being written."""
        names = {self.path(client_id, round).name for index in kept for client_id, round in index.items()}
        for path in self.folder.iterdir():
            found = _NAME.match(path.name)
            if found and int(found[2]) <= last and path.name not in names:
                path.unlink(missing_ok=True)

    def restart(self, index: Mapping[int, int], round: int) -> None:
        """Continue after `round`, whose files are all there."""
        self.index, self.settled = dict(index), round
        self.homes, self._kept, self._passing = {}, {}, None

    def clear_leftovers(self, round: int) -> None:
        """Delete what a broken run left of rounds after `round`, while no rank writes."""
        for path in self.folder.iterdir():
            found = _NAME.match(path.name)
            if path.suffix in (".tmp", _FAILED) or (found and int(found[2]) > round):
                path.unlink(missing_ok=True)

    def _at_hand(self, client_id: int) -> list[_Kept]:
        found = [self._kept[client_id]] if client_id in self._kept else []
        return found + ([self._passing[1]] if self._passing is not None and self._passing[0] == client_id else [])


def _snapshot(state: State, on_host: bool) -> State:
    """A copy that later training does not change, in the layout that a file would give."""
    rows = {key: tensor.detach().contiguous() for key, tensor in state.items()}
    there = placed(rows, torch.device("cpu")) if on_host else rows
    return {key: value.clone() if value is rows[key] else value for key, value in there.items()}


def _host_copy(snapshot: State) -> Callable[[], State]:
    """For the writer: brings a snapshot into host memory, on CUDA beside the kernels of the thread that trains.

    Called in that thread, so that the copy begins after what it has enqueued.
    """
    device = next((tensor.device for tensor in snapshot.values() if tensor.device.type == "cuda"), None)
    if device is None:
        return lambda: {key: tensor.cpu() for key, tensor in snapshot.items()}
    ready = torch.cuda.current_stream(device).record_event()

    def copied() -> State:
        stream = torch.cuda.Stream(device)
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            host = {key: tensor.to("cpu", non_blocking=True) for key, tensor in snapshot.items()}
        stream.synchronize()
        return host

    return copied


def _read(path: Path, client_id: int, round: int) -> State:
    """The content of a file, which says itself whose it is and what its bits were.

    Raises:
        ValueError: it is another client's or round's, or its bits are others than those that were written.
    """
    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get(_SEAL)
        state = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    if said != _seal(client_id, round, state):
        raise ValueError("its content does not match its digest, client and round")
    return state


def _seal(client_id: int, round: int, state: State) -> str:
    return hashlib.sha256(f"{client_id}\0{round}\0{digest(state)}".encode()).hexdigest()


def _write(path: Path, client_id: int, round: int, host_copy: Callable[[], State]) -> None:
    try:
        with naming_the_place(path), atomic_path(path) as temporary:
            state = host_copy()
            save_file(state, temporary, metadata={_SEAL: _seal(client_id, round, state)})
    except Exception as error:
        note = path.with_suffix(f"{path.suffix}{_FAILED}")  # for ranks that wait for the file
        try:
            write_text(note, str(error))
        except OSError:
            with contextlib.suppress(OSError):  # they lose patience by themselves
                note.touch()
        raise


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # renamed since
        return -1
