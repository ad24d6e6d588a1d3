"""The run directory: its name, and whether what it holds belongs to this configuration and this data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedrs_lightning.cli.parser import Resume, config_hash, deciding
from fedrs_lightning.errors import RunError
from fedrs_lightning.results.store import RunStore

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from fedrs_lightning.data import Federation

_CONFIG = "config.yaml"
_OURS = {_CONFIG, "environment.json", "data.json", "split.json", "rounds.jsonl", "clients.jsonl", "checkpoints", "clients", "spool"}


def run_directory(config: Namespace, plain: dict[str, Any]) -> Path:
    """`run.dir`, or `root/experiment/method-s<seed>-<hash8>`: equal configurations share it, so a run finds itself again."""
    if config.run.dir is not None:
        return Path(config.run.dir)
    method = plain["method"]["class_path"].rpartition(".")[2].lower()
    return Path(config.run.root) / plain["run"]["name"] / f"{method}-s{config.seed}-{config_hash(plain)[:8]}"


def check_run(store: RunStore, plain: dict[str, Any], resume: Resume) -> str:
    """State of the run directory: `empty`, `incomplete` or `complete`. Reads only.

    Raises:
        RunError: it belongs to another configuration (names the differing keys), to something else, or exists under
            `--resume never`.
    """
    if not store.path.exists():
        return "empty"
    if not store.path.is_dir():
        raise RunError(f"{store.path}: is a file; choose another --run.dir or --run.root")
    if not (store.path / _CONFIG).exists():
        foreign = sorted(path.name for path in store.path.iterdir() if path.name not in _OURS and not path.name.startswith("."))
        if foreign:
            raise RunError(f"{store.path}: holds {foreign[0]} but no run; choose an empty folder with --run.dir")
        return "empty"
    if resume == "never":
        raise RunError(f"{store.path}: already holds this run; use --resume auto to continue it, or another --run.root")
    before, now = deciding(store.config()), deciding(plain)
    differ = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differ:
        changes = ", ".join(f"{key} ({before.get(key)!r} there, {now.get(key)!r} now)" for key in differ[:5])
        more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
        raise RunError(f"{store.path}: holds a run of another configuration: {changes}{more}; choose another --run.dir")
    return store.status


def check_data(store: RunStore, manifest: dict[str, Any]) -> None:
    """Refuse to continue a run on other data than it began with.

    Raises:
        RunError: names what differs.
    """
    before = store.manifest()
    if before is None:
        return
    moved = ("root", "cache", "source")  # where the data lies may change, what it is may not
    differ = sorted(key for key in before.keys() | manifest.keys() if key not in moved and before.get(key) != manifest.get(key))
    if differ:
        raise RunError(f"{store.path}: the data differ from those the run began with ({', '.join(differ)} in data.json); restore them or start a new run")


def config_text(plain: dict[str, Any]) -> str:
    """`config.yaml`: complete, and accepted by `fedrs fit --config`."""
    head = "# The complete configuration of this run. To repeat it: fedrs fit --config config.yaml --run.root ELSEWHERE\n"
    return head + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def split_lists(federation: Federation) -> dict[str, Any]:
    """Sample ids of every client and common set."""

    def names(indices: Any) -> list[str] | None:
        return None if indices is None else [federation.sample_ids[index] for index in indices]

    return {
        "clients": [
            {"client": split.id, "name": split.name, "train": names(split.train), "test": names(split.test)} for split in federation.clients
        ],
        "test": names(federation.test),
        "validation": names(federation.validation),
    }
