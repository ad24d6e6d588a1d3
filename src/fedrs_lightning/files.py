"""Files that other programs and crashes may have touched.

Writing is atomic: a reader sees the old file or the new one, never half of one. Reading of JSON and YAML has limits:
what is nested too deeply, names itself, or grows out of aliases is refused with its line, as is what is no text.
"""

from __future__ import annotations

import copy
import errno
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from fedrs_lightning.errors import RunError

DEEPEST = 60
"""Levels of nesting that a YAML file may have."""

LONGEST = 4_000_000
"""Characters of a YAML file."""

MOST_NODES = 1_000_000
"""Values that a YAML file may have with all its aliases written out."""

_UMASK = os.umask(0o077)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK
"""Permissions of new files under this process's umask."""

RESTORE = "delete it or restore it from a copy"

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
        if temporary.exists():
            temporary.chmod(FILE_MODE)  # a library may have made it for its owner alone
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


class Unreadable(ValueError):
    """Text that is not what it should be.

    Args:
        reason: what is wrong.
        line: where, from 1; None where that is not known.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


def parse_json(text: str | bytes) -> Any:
    """Plain values of JSON, without NaN and infinity.

    Raises:
        Unreadable: it is not JSON, or nested too deeply.
    """

    def refuse(name: str) -> Any:
        raise Unreadable(f"{name} is no JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise Unreadable(error.msg, error.lineno) from None
    except UnicodeDecodeError:
        raise Unreadable("not text in UTF-8") from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except Unreadable:
        raise
    except ValueError:  # a whole number of thousands of digits
        raise Unreadable("a number is too long") from None


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Plain values of one YAML document, and its nodes, which know their lines.

    Raises:
        Unreadable: it is not YAML, nested too deeply, or its aliases name themselves or grow beyond `MOST_NODES`.
    """
    if len(text) > LONGEST:
        raise Unreadable(f"longer than {LONGEST} characters")
    if _brackets(text) > 10 * DEEPEST:  # the time that it takes to read them grows with their square
        raise Unreadable("nested too deeply")
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _measure(node, 0, {}, set())
        return None if node is None else _document(loader, node), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(error.problem or error.context or "", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise Unreadable(" ".join(str(error).split())) from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except Unreadable:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError) as error:  # such as the date 2026-02-30
        raise Unreadable(f"a value cannot be read: {error}") from None
    finally:
        loader.dispose()


def _brackets(text: str) -> int:
    """Most brackets that are open at once, those in quotes and comments counted too."""
    steps = [1 if found[0] in "[{" else -1 for found in re.finditer(r"[\[\]{}]", text)]
    return max(itertools.accumulate(steps), default=0)


def _document(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    nodes = copy.deepcopy(node)  # construction moves merged keys around
    return loader.construct_document(nodes)


def _measure(node: yaml.Node | None, depth: int, sizes: dict[int, int], above: set[int]) -> int:
    """Number of nodes below a node with every alias written out."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    line = node.start_mark.line + 1
    if id(node) in above:
        raise Unreadable("an alias names what it stands in", line)
    if depth > DEEPEST:
        raise Unreadable(f"nested more than {DEEPEST} levels deep", line)
    if id(node) not in sizes:
        inside = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        total = 1 + sum(_measure(part, depth + 1, sizes, above | {id(node)}) for part in inside)
        if total > MOST_NODES:
            raise Unreadable(f"its aliases stand for more than {MOST_NODES} values", line)
        sizes[id(node)] = total
    return sizes[id(node)]


def misfit(value: Any, shape: Any, key: str = "") -> str | None:
    """Where plain values are not of a shape; None where they are.

    Args:
        value: plain values.
        shape: a type or several; a list of one shape, of its elements; a mapping of keys to shapes, of the keys that
            are there, `...` meaning all others. A key that ends with `!` must be there.
        key: by which the value is found.
    """
    if isinstance(shape, Mapping):
        if not isinstance(value, Mapping):
            return f"{key or 'the file'} is not a mapping"
        missing = [name[:-1] for name in shape if isinstance(name, str) and name[-1:] == "!" and name[:-1] not in value]
        if missing:
            return f"{key + '.' if key else ''}{missing[0]} is missing"
        known = {name.removesuffix("!") if isinstance(name, str) else name: inner for name, inner in shape.items()}
        pairs = [(name, inner, known.get(name, known.get(...))) for name, inner in value.items()]
        found = (
            misfit(inner, one, f"{key}.{name}" if key else str(name)) for name, inner, one in pairs if one is not None
        )
        return next((problem for problem in found if problem is not None), None)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{key} is not a list"
        found = (misfit(inner, shape[0], f"{key}[{number}]") for number, inner in enumerate(value))
        return next((problem for problem in found if problem is not None), None)
    wrong = isinstance(value, bool) and bool not in (shape if isinstance(shape, tuple) else (shape,))
    shown = f"a {type(value).__name__}" if isinstance(value, (dict, list)) else json.dumps(value, default=str)[:40]
    return f"{key} is {shown}" if wrong or not isinstance(value, shape) else None


def read_text(path: Path) -> str:
    """Text in UTF-8.

    Raises:
        RunError: the file cannot be read; names it.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise RunError(f"{path}: not text in UTF-8; {RESTORE}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        RunError: the file is missing or not JSON; names file and line.
    """
    try:
        return parse_json(read_text(path))
    except Unreadable as error:
        raise RunError(f"{place(path, error)}: not valid JSON ({error.reason}); {RESTORE}") from None


def read_yaml(path: Path) -> Any:
    """Read YAML, as `read_json`."""
    try:
        return parse_yaml(read_text(path))[0]
    except Unreadable as error:
        raise RunError(f"{place(path, error)}: not valid YAML ({error.reason}); {RESTORE}") from None


def place(path: Path, error: Unreadable) -> str:
    """`file:line`, or the file alone."""
    return str(path) if error.line is None else f"{path}:{error.line}"


def flush(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
