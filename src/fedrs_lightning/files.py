"""Atomic file writing: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedrs_lightning.errors import RunError

_PLACE = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "ENOTDIR", "EISDIR", "EEXIST", "ENOENT")
_PLACE_NUMBERS = {getattr(errno, name) for name in (*_PLACE, "ENAMETOOLONG", "EIO", "ESTALE") if hasattr(errno, name)}


@contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` when the body ends, remove it when it raises.

    Args:
        path: final name. Its folder is made.
        durable: also flush to the disk before the rename, so that a power cut leaves the old or the new file.

    Examples:
        >>> import tempfile
        >>> final = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(final) as temporary:
        ...     _ = temporary.write_text("whole")
        ...     final.exists()
        False
        >>> final.read_text()
        'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        if durable:
            flush(temporary)
        temporary.replace(path)
        if durable:
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming_the_place(path: Path) -> Iterator[None]:
    """Turn a full disk, a missing permission and the like into one line that names the place.

    Args:
        path: named where the error itself names none.

    Raises:
        RunError: the body could not read or write. Errors that have nothing to do with files pass through.
    """
    try:
        yield
    except SafetensorError as error:  # its messages end with "I/O error: No space left on device (os error 28)"
        reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
        raise RunError(f"{path}: {reason}; {_remedy(reason)}") from None
    except OSError as error:
        if error.errno not in _PLACE_NUMBERS:
            raise
        raise RunError(f"{error.filename or path}: {error.strerror}; {_remedy(str(error.strerror))}") from None


def _remedy(reason: str) -> str:
    full = any(word in reason.lower() for word in ("space", "quota"))
    remedy = "free some" if full else "mend it or choose another folder"
    return f"{remedy}, then run the same command again: finished rounds are kept"


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write `text` atomically as UTF-8."""
    with atomic_path(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write plain JSON atomically; a NaN or infinity is an error, since JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", durable=durable)


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        RunError: the file is missing or not JSON; names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: not valid JSON ({error}); delete it or restore it from a copy") from None


def flush(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
