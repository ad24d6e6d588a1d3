"""A run: its complete configuration, the name and hash that follow from it, and its directory."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrs_lightning.results.store import RunStore

_MACHINE = (
    *("accelerator", "devices", "ranks_per_device", "num_nodes", "join_timeout"),
    *("upload_memory", "memory_cache", "write_behind", "residence", "residence_budget", "prefetch"),
)
HARMLESS_KEYS = (*(f"fabric.{name}" for name in _MACHINE), "data.verify")
"""Keys that say where a run was executed, as the folders of data do, not what it computed."""

_NEUTRAL = ("run", "resume", *HARMLESS_KEYS)


class Run:
    """A run as it is configured; making the object touches nothing on the disk.

    Args:
        config: complete, in plain values.
        path: run directory; None takes `root/experiment/method-s<seed>-<hash8>`, which equal configurations share.
    """

    def __init__(self, config: dict[str, Any], path: Path | None = None) -> None:
        self.config = config
        self.store = RunStore(path or self._own_path())

    @classmethod
    def at(cls, path: Path | str) -> Run:
        """The run that lies in a directory.

        Raises:
            RunError: there is none.
        """
        return cls(RunStore(path).config(), Path(path))

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.store.path

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return str(self.config["run"]["name"])

    @property
    def method(self) -> str:
        """Class name of the method."""
        return str(self.config["method"]["class_path"]).rpartition(".")[2]

    @property
    def label(self) -> str | None:
        """Name of the run in tables and plots, where it has one of its own."""
        label = self.config["run"]["label"]
        return None if label is None else str(label)

    @property
    def seed(self) -> int:
        """Seed of all random streams."""
        return int(self.config["seed"])

    @functools.cached_property
    def deciding(self) -> dict[str, Any]:
        """Flat `key: value` of all that decides a number."""
        return {key: value for key, value in flatten(self.config).items() if value != {} and not _is_neutral(key)}

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 over all that decides a number."""
        return hashlib.sha256(json.dumps(self.deciding, sort_keys=True).encode()).hexdigest()

    @property
    def data_folders(self) -> dict[str, Any]:
        """Where the data lie, which the hash leaves out."""
        flat = flatten(self.config)
        return {key: value for key, value in flat.items() if is_place(key) and not key.endswith(".cache_dir")}

    def _own_path(self) -> Path:
        return Path(self.config["run"]["root"]) / self.name / f"{self.method.lower()}-s{self.seed}-{self.hash[:8]}"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping as one level of dotted keys; mappings in a list are numbered from 0."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
            value = {str(number): inner for number, inner in enumerate(value)}
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_place(key: str) -> bool:
    """Whether a flat key names a folder of data, also of one data set among several: only its content counts."""
    return key.startswith("data.") and key.rpartition(".")[2] in ("root", "cache_dir")


def is_harmless(key: str) -> bool:
    """Whether a flat key says where a run was executed or where its data lie, not what it computed."""
    return key in HARMLESS_KEYS or is_place(key)


def _is_neutral(key: str) -> bool:
    return is_place(key) or any(key == name or key.startswith(f"{name}.") for name in _NEUTRAL)
