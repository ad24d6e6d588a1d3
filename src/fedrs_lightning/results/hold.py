"""One process at a time works in a folder: a run in its run directory, a sweep beside its logs.

The lock is a file `.lock` made with O_EXCL and touched by its holder every few seconds, so that it also holds on
network file systems, where advisory locks may be local to a machine. `.holder.json` beside it says who holds it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, LeaseCompromise, LeaseSettingsMismatch, MarkerSoftFileLock, SoftFileLease, Timeout
from filelock import OwnerRecord as Owner

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import FILE_MODE, naming_the_place, read_json, write_json

SILENCE = 60.0
"""Seconds without a sign of life after which a holder on another machine counts as gone."""

_HEARTBEAT = 10.0
_UNREADABLE = 2.0  # seconds a lock without a readable owner is watched: it may just be written
_LOOK = 0.25


class Hold:
    """Holds a folder as a context manager; the folder is made.

    A holder that is gone is recognised: at once on this machine (by process id and start time), on another one after
    `SILENCE` seconds in which it gave no sign of life. Until then the second process waits and says so.

    Args:
        path: the folder.
        busy: what a second process is told, such as `another run is at work there`.
        name: of the lock file.

    Attributes:
        lost: why the folder is not held any more although it should be; None while all is well.
    """

    def __init__(self, path: Path, busy: str, name: str = ".lock") -> None:
        self.path, self.busy = Path(path), busy
        self.file, self._note = self.path / name, self.path / f"{name.removesuffix('.lock')}.holder.json"
        self.lost: str | None = None
        times: Any = {"lease_duration": SILENCE, "heartbeat_interval": _HEARTBEAT}
        self._lease = SoftFileLease(self.file, **times, on_compromise=self._lose, mode=FILE_MODE, thread_local=False)

    def __enter__(self) -> Hold:
        """Take the folder.

        Raises:
            RunError: another process holds it; says who, and since when.
        """
        with naming_the_place(self.path):
            self._acquire()
            since = time.strftime("%Y-%m-%d %H:%M:%S %z")
            write_json(self._note, {"pid": os.getpid(), "user": _user(), "since": since})
        return self

    def __exit__(self, *error: object) -> None:
        """Give the folder free."""
        with contextlib.suppress(OSError):  # the folder may be gone: a refused run takes its own away
            if self.lost is None:
                self._note.unlink(missing_ok=True)
            self._lease.release()

    def require(self) -> None:
        """Raise where the folder is not held any more.

        Raises:
            RunError: another process has taken over, or the lock file is gone.
        """
        if self.lost is not None:
            raise RunError(f"{self.path}: {self.lost}; this process stops, so that two do not write there")

    def _lose(self, loss: LeaseCompromise) -> None:
        gone = "the lock file was removed by someone"
        words = {"owner-changed": "another process has taken over the folder", "marker-missing": gone}
        self.lost = words.get(loss.reason, "the lock file cannot be touched any more")

    def _acquire(self) -> None:
        first: tuple[float, str | None] | None = None
        said, unreadable_since = False, None
        while not self._tried():
            owner, touched = self._lease.owner, _touched(self.file)
            if touched is None:
                continue
            if owner is None:
                unreadable_since = unreadable_since or time.monotonic()
                if time.monotonic() - unreadable_since > _UNREADABLE:
                    self._break(None)
            elif owner.hostname == _this_host():
                if _alive(owner.pid):
                    self._refuse(owner)
                self._break(owner)
            else:
                seen = (touched, owner.token)
                first = first or seen
                if seen != first:
                    self._refuse(owner)
                if not said:
                    who, host = f"process {owner.pid}", _host(owner)
                    watch = f"watching up to {SILENCE:.0f} s for a sign of life"
                    print(f"warning: {self.path}: {who} on {host} holds it; {watch}", file=sys.stderr, flush=True)
                    said = True
            time.sleep(_LOOK)

    def _tried(self) -> bool:
        """Whether the folder is ours now."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lease.acquire(timeout=0)
        except FileNotFoundError:
            return False  # the holder before took the folder away
        except Timeout:
            return False
        except PermissionError:
            if self._lease.owner is None:
                raise
            return False  # a lock of another user, whom we cannot follow
        except LeaseSettingsMismatch:
            raise RunError(f"{self.path}: held by another version of this software; wait until it has ended") from None
        return True

    def _break(self, dead: Owner | None) -> None:
        """Remove a lock that nobody holds and that is not recognised so: a zombie's, or an empty file."""
        marks = Path(tempfile.gettempdir()) / f"fedrs-{os.getuid()}-{self.path.stat().st_ino}.lock"
        with FileLock(marks):  # several may come to this
            if self._lease.owner == dead and (dead is None or not _alive(dead.pid)):
                self._lease.force_break()

    def _refuse(self, owner: Owner) -> NoReturn:
        note = _note(self._note)
        known = note if note.get("pid") == owner.pid else {}
        who = f"process {owner.pid} of user {known['user']}" if "user" in known else f"process {owner.pid}"
        where = f"on {_host(owner)}" + (f" since {known['since']}" if "since" in known else "")
        raise RunError(f"{self.path}: {self.busy} ({who} {where}); wait until it has ended, or end it")


def is_held(path: Path) -> bool:
    """Whether a process works in a run directory now, as far as its signs of life tell."""
    touched = _touched(path / ".lock")
    if touched is None or time.time() - touched > SILENCE:
        return False
    owner = SoftFileLease(path / ".lock", lease_duration=SILENCE).owner
    return owner is None or owner.hostname != _this_host() or _alive(owner.pid)


def _note(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (RunError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


def _touched(path: Path) -> float | None:
    try:
        with path.open("rb") as file:  # opening asks the server of a network file system
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def _alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and is not yet collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1]
    except OSError:
        return True
    return state not in ([b"Z"], [b"X"])


def _this_host() -> str:
    """This machine as it stands in lock files, which tell containers of equal names apart."""
    with tempfile.TemporaryDirectory() as folder, MarkerSoftFileLock(Path(folder) / "own") as own:
        assert own.owner is not None
        return own.owner.hostname


def _host(owner: Owner) -> str:
    return owner.hostname.partition("?")[0]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return str(os.getuid())
