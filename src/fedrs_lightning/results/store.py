"""The run directory: plain files that a person, a table or a resumed run can read.

A round is one line of `rounds.jsonl`, a client's part of it one line of `clients.jsonl`. A line is complete with its
closing brace: what a crash left half-written at the very end is ignored by readers and removed by `RunStore.truncate`
and by the next append; a damaged line anywhere else is an error.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import (
    RESTORE,
    Unreadable,
    atomic_path,
    flush,
    misfit,
    parse_json,
    read_json,
    read_yaml,
    write_json,
    write_text,
)

Record = dict[str, Any]

ROUNDS = "rounds.jsonl"
CLIENTS = "clients.jsonl"
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
MANIFEST = "data.json"
SPLIT = "split.json"
RESULT = "result.json"

_LINE = "restore the file from a copy, or delete that line"
_NUMBER = (int, float)
_SCORES = {...: (int, float, NoneType)}
_TEXT = (str, NoneType)
_CLASS = (str, dict)
_SHAPES: dict[str, Any] = {
    CONFIG: {
        "seed": int,
        "method": _CLASS,
        "task": _CLASS,
        "data": _CLASS,
        "schedule": dict,
        "fabric": dict,
        "run": {"name": _TEXT, "label": _TEXT, "root": _TEXT, "dir": _TEXT},
    },
    ENVIRONMENT: {"earlier": [{}]},
    ROUNDS: {"metrics": _SCORES, "bytes": {...: _NUMBER}, "timing": {...: _NUMBER}, "cohort": [int]},
    CLIENTS: {"client": int, "phase": str, "num_samples": int, "num_steps": int, "protocol": str},
    RESULT: {
        "status": str,
        "experiment": _TEXT,
        "method": _TEXT,
        "label": _TEXT,
        "seed": int,
        "num_rounds": int,
        "num_clients": int,
        "headline": {"protocol!": str, "metric!": str},
        "final": _SCORES,
        "last4": _SCORES,
        "last4_rounds": [int],
        "protocols": {...: str},
        "per_client": [{"client!": int, "name": _TEXT, "num_samples": int}],
        "optimizer_steps": int,
    },
}


class RunStore:
    """One run directory, `runs/<experiment>/<method>-s<seed>-<hash8>/`.

    Making the object touches nothing on the disk; the first write makes the folder. One process writes (rank 0), any
    number may read at the same time.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._mended: set[str] = set()
        self._hashes: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"RunStore({str(self.path)!r})"

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Append one line to `rounds.jsonl` and hand it to the operating system.

        Args:
            record: `round` (int >= 1) and plain JSON values; `timing` holds all that may differ between equal runs.

        Raises:
            RunError: a value is NaN, infinite or not plain JSON (names its key), or `round` is missing.
        """
        self._append(ROUNDS, [record])

    def append_clients(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append one line each to `clients.jsonl`, as `append_round`; all are checked before the first is written."""
        self._append(CLIENTS, records)

    def sync(self) -> None:
        """Force both logs to the disk (fsync), so that a power cut cannot take what a checkpoint relies on."""
        for name in (ROUNDS, CLIENTS):
            if (self.path / name).exists():
                flush(self.path / name)

    def truncate(self, last: int) -> None:
        """Drop all lines of rounds after `last`, and a half-written last line; keep every other line byte for byte.

        Args:
            last: round to continue from; 0 empties both logs.

        Raises:
            RunError: a line before the end is damaged.
        """
        for name in (ROUNDS, CLIENTS):
            path = self.path / name
            if not path.exists():
                continue
            lines = _lines(path)
            kept = b"".join(line + b"\n" for line, record in lines if record["round"] <= last)
            if kept != path.read_bytes():
                with atomic_path(path, durable=True) as temporary:
                    temporary.write_bytes(kept)
            self._mended.add(name)
            self._hashes[name] = hashlib.sha256(kept)

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each log as it was written so far, for the checkpoint; kept up with every line."""
        return {name: self._hash(name).copy().hexdigest() for name in (ROUNDS, CLIENTS)}

    def fault(self, last: int, written: Mapping[str, str]) -> str | None:
        """What is wrong with the lines of rounds 1 to `last`, of which none may be lost, changed or there twice.

        Args:
            last: a finished round.
            written: what `fingerprint` gave after it; empty where it was not kept.

        Raises:
            RunError: a line is damaged.
        """
        numbers = [record["round"] for record in self.rounds() if record["round"] <= last]
        lost = sorted(set(range(1, last + 1)) - set(numbers))
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        if lost or twice:
            parts = [f"round {number} is lost" for number in lost] + [
                f"round {number} is there twice" for number in twice
            ]
            return f"{self.path / ROUNDS}: {', '.join(parts[:4])}{' and more' if len(parts) > 4 else ''}"
        for name, expected in written.items():
            path = self.path / name
            kept = [line + b"\n" for line, record in _lines(path) if record["round"] <= last] if path.exists() else []
            if hashlib.sha256(b"".join(kept)).hexdigest() != expected:
                return f"{path}: the lines of rounds 1 to {last} are not those that were written"
        return None

    def rounds(self) -> list[Record]:
        """Records of `rounds.jsonl` in file order; empty when the file is not there.

        Raises:
            RunError: a line before the end is damaged; names file and line.
        """
        return self._read(ROUNDS)

    def clients(self) -> list[Record]:
        """Records of `clients.jsonl`, as `rounds`."""
        return self._read(CLIENTS)

    def history(self) -> list[Record]:
        """Rounds without `timing`: what must be equal between a resumed and an unbroken run."""
        return [{key: value for key, value in record.items() if key != "timing"} for record in self.rounds()]

    def write_config(self, config: str | Mapping[str, Any]) -> None:
        """Write `config.yaml`: the resolved configuration, as YAML text or as plain values."""
        text = config if isinstance(config, str) else yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        write_text(self.path / CONFIG, text, durable=True)

    def config(self) -> Record:
        """The resolved configuration.

        Raises:
            RunError: `config.yaml` is missing or is not a YAML mapping.
        """
        path = self.path / CONFIG
        if not path.exists():
            raise RunError(f"{path}: no such file, so this is not a run directory; name one with a config")
        value = read_yaml(path)
        if not isinstance(value, dict):
            raise RunError(f"{path}: holds {type(value).__name__}, not a mapping; restore it from a copy")
        problem = misfit(value, _SHAPES[CONFIG])
        if problem is not None:
            raise RunError(f"{path}: {problem}; restore it from a copy")
        return value

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write `environment.json`; when a resumed run finds other facts there, they move into its list `earlier`."""
        path = self.path / ENVIRONMENT
        value = dict(environment)
        if path.exists():
            before = self._json(ENVIRONMENT) or {}
            earlier = before.pop("earlier", [])
            value["earlier"] = earlier if before == value else [*earlier, before]
        write_json(path, value, durable=True)

    def environment(self) -> Record | None:
        """Facts of `environment.json`, None when absent."""
        return self._json(ENVIRONMENT)

    def devices(self) -> list[str]:
        """Names of the devices that any part of the run was computed on, in the order of their first use."""
        facts = self.environment() or {}
        lists = [one.get("devices", []) for one in (*facts.get("earlier", []), facts)]
        names: list[str] = facts.get("devices_used") or [name for devices in lists for name in devices]
        return list(dict.fromkeys(names))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write `data.json`: what the run was trained and tested on."""
        write_json(self.path / MANIFEST, dict(manifest))

    def manifest(self) -> Record | None:
        """Manifest of the data, None when absent."""
        return self._json(MANIFEST)

    def write_split(self, split: Mapping[str, Any]) -> None:
        """Write `split.json`: the sample ids of every client and of the common sets."""
        write_json(self.path / SPLIT, dict(split))

    def split(self) -> Record | None:
        """Sample ids of every client, None when absent."""
        return self._json(SPLIT)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`; its `status` decides whether the run is complete."""
        write_json(self.path / RESULT, dict(result), durable=True)

    def result(self) -> Record | None:
        """Result of the run, None when absent; a `RunError` where it is no JSON object."""
        return self._json(RESULT)

    @property
    def status(self) -> str:
        """`complete` (or another word that `result.json` holds), else `incomplete` once a file exists, else `empty`."""
        result = self.result()
        if result is not None:
            return str(result.get("status", "incomplete"))
        return "incomplete" if is_run(self.path) else "empty"

    def _append(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        path = self.path / name
        text = "".join(_line(path, record) for record in records)
        self.path.mkdir(parents=True, exist_ok=True)
        if name not in self._mended:
            _mend(path)
            self._mended.add(name)
        total = self._hash(name)
        with path.open("ab") as handle:
            handle.write(text.encode())
        total.update(text.encode())

    def _hash(self, name: str) -> Any:
        path = self.path / name
        if name not in self._hashes:
            self._hashes[name] = hashlib.sha256(path.read_bytes() if path.exists() else b"")
        return self._hashes[name]

    def _read(self, name: str) -> list[Record]:
        path = self.path / name
        return [record for _, record in _lines(path)] if path.exists() else []

    def _json(self, name: str) -> Record | None:
        path = self.path / name
        if not path.exists():
            return None
        value = read_json(path)
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise RunError(f"{path}: holds {kind}, not a JSON object; {RESTORE}")
        shape = _SHAPES.get(name, {})
        problem = misfit(value, shape)
        if problem is not None:
            raise RunError(f"{path}: {problem}; {RESTORE}")
        return value


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory: it has a round log, a result, or a config beside an environment."""
    there = {name for name in (ROUNDS, RESULT, CONFIG, ENVIRONMENT) if (path / name).is_file()}
    return not there.isdisjoint({ROUNDS, RESULT}) or {CONFIG, ENVIRONMENT} <= there


def find_runs(paths: Iterable[Path | str]) -> list[RunStore]:
    """Run directories among and below `paths`, each once, in natural order (seed 2 before seed 10).

    Raises:
        RunError: a path does not exist.
    """
    found: dict[Path, Path] = {}
    for start in map(Path, paths):
        if not start.is_dir():
            raise RunError(f"{start}: no such folder; give run directories or a folder that holds some, such as runs/")
        for folder, below, _ in os.walk(start):
            if is_run(Path(folder)):
                found.setdefault(Path(folder).resolve(), Path(folder))
                below.clear()
    return [RunStore(path) for path in sorted(found.values(), key=lambda path: natural_key(str(path)))]


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that takes digits as numbers: `s2` before `s10`."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


def _line(path: Path, record: Mapping[str, Any]) -> str:
    number = record.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise RunError(f"{path}: a record needs 'round', a whole number from 1, not {number!r}")
    _check(path, number, "", record)
    return json.dumps(dict(record), allow_nan=False, ensure_ascii=False) + "\n"


def _check(path: Path, number: int, key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise RunError(f"{path}: round {number}: key {name!r} is not text")
            _check(path, number, f"{key}.{name}" if key else name, inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check(path, number, f"{key}[{index}]", inner)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise RunError(f"{path}: round {number}: {key} is {value}, which JSON lacks; leave it out or write null")
    elif not isinstance(value, (str, int, type(None))):
        kind = type(value).__name__
        raise RunError(f"{path}: round {number}: {key} is a {kind}; the log takes numbers, text, lists and mappings")


def _lines(path: Path) -> list[tuple[bytes, Record]]:
    """Complete lines without their newline, with their records."""
    *whole, tail = path.read_bytes().split(b"\n")
    lines = []
    for number, line in enumerate(whole, start=1):
        record = _record(line)
        problem = "it is no round's record" if record is None else misfit(record, _SHAPES.get(path.name, {}))
        if record is None or problem is not None:
            raise RunError(f"{path}: line {number} is damaged ({problem}); {_LINE}")
        lines.append((line, record))
    record = _record(tail)
    return lines if record is None else [*lines, (tail, record)]


def _record(line: bytes) -> Record | None:
    try:
        value = parse_json(line)
    except Unreadable:
        return None
    number = value.get("round") if isinstance(value, dict) else None
    return value if isinstance(number, int) and not isinstance(number, bool) else None


def _mend(path: Path) -> None:
    """Give the last line its newline, or cut it off when it is half-written; reads no more than the end of the file."""
    if not path.exists():
        return
    with path.open("r+b") as handle:
        size = handle.seek(0, os.SEEK_END)
        start, tail = size, b""
        while start and b"\n" not in tail:
            step = min(start, 1 << 16)
            start -= step
            handle.seek(start)
            tail = handle.read(step) + tail
        tail = tail.rpartition(b"\n")[2]
        if not tail:
            return
        if _record(tail) is None:
            handle.truncate(size - len(tail))
        else:
            handle.seek(0, os.SEEK_END)
            handle.write(b"\n")
