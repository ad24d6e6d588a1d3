"""The run directory: its name, and whether what it holds belongs to this configuration and this data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedrs_lightning.cli.parser import Resume, config_hash, deciding
from fedrs_lightning.errors import RunError
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.tables import flatten, is_place

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from fedrs_lightning.data import Federation

_PLACES = ("folder", "folders", "decoder")
"""What may change in the manifest of the data: where they lie and how they were read; hashes say whether they are the
same.
"""

_CONFIG = "config.yaml"
_OURS = {
    *(_CONFIG, "environment.json", "data.json", "split.json", "rounds.jsonl", "clients.jsonl", "metrics.csv"),
    *("checkpoints", "clients", "spool", "tensorboard", "wandb"),
}


def run_directory(config: Namespace, plain: dict[str, Any]) -> Path:
    """`run.dir`, or `root/experiment/method-s<seed>-<hash8>`: equal configurations share it, so a run finds itself
    again.
    """
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
    above = _folder_above(store.path)
    if not store.path.exists():
        _require_writable(above)
        return "empty"
    if not (store.path / _CONFIG).exists():
        foreign = sorted(
            path.name for path in store.path.iterdir() if path.name not in _OURS and not path.name.startswith(".")
        )
        if foreign:
            raise RunError(f"{store.path}: holds {foreign[0]} but no run; choose an empty folder with --run.dir")
        _require_writable(above)
        return "empty"
    if resume == "never":
        raise RunError(f"{store.path}: already holds this run; use --resume auto to continue it, or another --run.root")
    differ = _differences(deciding(store.config()), deciding(plain))
    if differ:
        more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
        raise RunError(
            f"{store.path}: holds a run of another configuration: {', '.join(differ[:5])}{more}; choose another "
            "--run.dir"
        )
    status = store.status
    if status != "complete":
        _require_writable(above)
    return status


def _folder_above(path: Path) -> Path:
    """The run directory, or the nearest folder above it that exists."""
    while not path.exists() and path.parent != path:
        path = path.parent
    if not path.is_dir():
        raise RunError(
            f"{path}: is a file, where the folder of the run should be; choose another --run.dir or --run.root"
        )
    return path


def _require_writable(folder: Path) -> None:
    """Asked before hours of work."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"{folder}: no permission to write there; choose another --run.root, or mend the permissions")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differing keys with both values; arguments of a class that is another one are not told apart."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    classes = [key.removesuffix("class_path") for key in keys if key.endswith(".class_path")]
    told = [key for key in keys if not any(key.startswith(f"{name}init_args.") for name in classes)]
    return [f"{key} ({_value(before, key)} there, {_value(now, key)} now)" for key in told]


def _value(values: dict[str, Any], key: str) -> str:
    value = values.get(key, "nothing")
    if key.endswith(".class_path"):
        return str(value).rpartition(".")[2]
    return str(value) if isinstance(value, str) else json.dumps(value)


def other_data(store: RunStore, plain: dict[str, Any]) -> bool:
    """Whether a run is asked for with other data folders than it was made with; the configuration's hash leaves them
    out.
    """

    def folders(config: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value for key, value in flatten(config).items() if is_place(key) and not key.endswith(".cache_dir")
        }

    return folders(store.config()) != folders(plain)


def check_data(store: RunStore, manifest: dict[str, Any]) -> None:
    """Refuse to continue a run on other data than it began with.

    Raises:
        RunError: names what differs.
    """
    before = store.manifest()
    if before is None:
        return
    before, now = _content(before), _content(json.loads(json.dumps(manifest)))
    differ = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differ:
        raise RunError(
            f"{store.path}: the data are not those that the run began with (data.json differs in {', '.join(differ)}); "
            "restore them, or start a new run with another --run.root"
        )


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _content(inner) for key, inner in value.items() if key not in _PLACES and not key.endswith("root")}
    return [_content(inner) for inner in value] if isinstance(value, list) else value


def config_text(plain: dict[str, Any]) -> str:
    """`config.yaml`: complete, and accepted by `fedrs fit --config`."""
    head = (
        "# The complete configuration of this run. To repeat it: fedrs fit --config config.yaml --run.root ELSEWHERE\n"
    )
    return head + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def split_lists(federation: Federation) -> dict[str, Any]:
    """Sample ids of every client and common set."""

    def names(indices: Any) -> list[str] | None:
        return None if indices is None else [federation.sample_ids[index] for index in indices]

    return {
        "clients": [
            {"client": split.id, "name": split.name, "train": names(split.train), "test": names(split.test)}
            for split in federation.clients
        ],
        "test": names(federation.test),
        "validation": names(federation.validation),
    }
