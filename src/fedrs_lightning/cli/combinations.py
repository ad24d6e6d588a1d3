"""What a sweep runs: the product of grids and seeds, and which combination lies in which run directory."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrs_lightning import __version__
from fedrs_lightning.cli.config.yaml_files import YamlFile
from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.files import read_json, write_json
from fedrs_lightning.results.store import RunStore

INDEX = "sweep.json"
OWN_KEYS = {
    "seed": "use --seeds",
    "resume": "a sweep always continues what was interrupted",
    "run.dir": "one folder cannot hold several runs; use --run.root and --run.name",
    "config": "use --config",
}


@dataclass(frozen=True)
class Combination:
    """One run of a sweep: option values as text, and a seed."""

    values: tuple[tuple[str, str], ...]
    seed: int

    @property
    def label(self) -> str:
        """Grid values that tell runs of one method apart, such as `power=2`; the method's own name is not repeated."""
        names = [key.rpartition(".")[2] for key, _ in self.values]
        told = [(name if names.count(name) == 1 else key) for (key, _), name in zip(self.values, names, strict=True)]
        pairs = zip(told, self.values, strict=True)
        return " ".join(f"{name}={value}" for name, (key, value) in pairs if key != "method")

    @property
    def title(self) -> str:
        """Name for people."""
        method = [value for key, value in self.values if key == "method"]
        return " ".join([*method, *([self.label] if self.label else []), f"seed {self.seed}"])

    def arguments(self, configs: Sequence[str], extra: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
        """Arguments of `fedrs fit`; a key before the keys below it, since a class given later drops its arguments."""
        options = [*extra, *((key, (f"--{key}={value}",)) for key, value in self.values)]
        options.sort(key=lambda option: option[0].count("."))
        tokens = [token for _, group in options for token in group]
        label = [f"--run.label={self.label}"] if self.label else []
        files = [token for config in configs for token in ("--config", config)]
        return [*files, *tokens, "--seed", str(self.seed), "--resume", "auto", *label]


def combinations(grids: Sequence[tuple[str, tuple[str, ...]]], seeds: Sequence[int]) -> list[Combination]:
    """Every grid point for the first seed, then for the next: a sweep cut short still compares all points."""
    points = list(itertools.product(*[[(key, value) for value in values] for key, values in grids]))
    return [Combination(point, seed) for seed in seeds for point in points]


def parse_grids(texts: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """`KEY=V1,V2` as key and values; commas inside brackets, braces and quotes belong to a value.

    Raises:
        ConfigError: no key, no or equal values, unbalanced brackets, a key given twice or one that a sweep sets itself.
    """
    grids: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        key = key.strip().removeprefix("--")
        if not equals or not key:
            raise ConfigError(f"--grid {text}: write KEY=V1,V2, for example method=FedAvg,FedMAD")
        if key in OWN_KEYS:
            raise ConfigError(f"--grid {text}: {OWN_KEYS[key]}")
        values = tuple(split_values(rest, text))
        if not all(values):
            raise ConfigError(f"--grid {text}: a value is empty; write null for none")
        if key in grids or len(set(values)) < len(values):
            raise ConfigError(f"--grid {text}: {'the key' if key in grids else 'a value'} is given twice")
        grids[key] = values
    return list(grids.items())


def split_values(text: str, where: str) -> list[str]:
    """Split at the commas that no bracket, brace or quote encloses."""
    parts, stack, quote = [""], [], ""
    pairs = {"]": "[", "}": "{", ")": "("}
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in pairs.values():
            stack.append(letter)
        elif letter in pairs and (not stack or stack.pop() != pairs[letter]):
            raise ConfigError(f"--grid {where}: '{letter}' closes nothing")
        if letter == "," and not stack and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if stack or quote:
        raise ConfigError(f"--grid {where}: '{quote or stack[-1]}' is not closed; quote the whole option for the shell")
    return [part.strip() for part in parts]


def parse_seeds(text: str) -> list[int]:
    """`0..2` as 0, 1, 2; `0,3,7` and mixtures of both.

    Raises:
        ConfigError: anything else, an empty range, or a seed given twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise ConfigError(f"--seeds {text}: write 0..2 or 0,3,7 (whole numbers from 0)")
        low, high = int(first), int(last) if dots else int(first)
        if high < low:
            raise ConfigError(f"--seeds {text}: {part.strip()} is empty; write {high}..{low}")
        seeds.extend(range(low, high + 1))
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: a seed is given twice")
    return seeds


def parse_extra(tokens: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Options for `fedrs fit` as (key, tokens): an option is what starts with two dashes, with all that follows it.

    Raises:
        ConfigError: a value without an option, or an option that a sweep sets itself.
    """
    options: list[tuple[str, tuple[str, ...]]] = []
    for token in tokens:
        if token.startswith("--"):
            key = token[2:].partition("=")[0]
            if key in OWN_KEYS:
                raise ConfigError(f"--{key}: {OWN_KEYS[key]}")
            options.append((key, (token,)))
        elif options:
            options[-1] = (options[-1][0], (*options[-1][1], token))
        else:
            raise ConfigError(f"'{token}' belongs to no option")
    return options


def run_root(configs: Sequence[str], extra: Sequence[tuple[str, tuple[str, ...]]]) -> Path:
    """Folder of all runs: `--run.root`, else `run.root` of the last config that has it, else `runs`."""
    for key, tokens in reversed(extra):
        if key == "run.root":
            return Path(tokens[0].partition("=")[2] if "=" in tokens[0] else tokens[-1])
    for config in reversed(configs):
        run = YamlFile.read(Path(config), "--config").content.get("run")
        if isinstance(run, Mapping) and isinstance(run.get("root"), str):
            return Path(run["root"])
    return Path("runs")


def fingerprint(combination: Combination, configs: Sequence[str], extra: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Hash of all that a sweep hands to `fedrs fit`; of one run it may differ, then `fedrs fit` finds it complete."""
    contents: dict[Path, None] = {}
    for config in configs:
        _closure(Path(config), contents)
    files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in contents]
    words = [__version__, os.fspath(Path.cwd()), files, combination.arguments((), extra)]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


class SweepIndex:
    """Which combination lies where: `sweep.json` beside the runs of an experiment.

    Two sweeps that write at the same moment may lose an entry of each other; then `fedrs fit` is started once more and
    answers that the run is complete.

    Args:
        root: folder of all runs, `<root>/<experiment>/sweep.json`.
    """

    def __init__(self, root: Path) -> None:
        self._entries: dict[str, tuple[Path, dict[str, Any]]] = {}
        for path in sorted(root.glob(f"*/{INDEX}")):
            for key, entry in _index(path).items():
                self._entries[key] = (path.parent / entry["run"], entry)

    def complete(self, key: str) -> RunStore | None:
        """The run of a fingerprint, when `result.json` says complete and has the recorded config hash; else None."""
        path, entry = self._entries.get(key, (None, {}))
        if path is None or not path.is_dir():
            return None
        store = RunStore(path)
        try:
            result = store.result() or {}
        except RunError:
            return None  # fit looks at the run itself and says what is wrong with it
        same = result.get("status") == "complete" and result.get("config_hash") == entry["config_hash"]
        return store if same else None

    def record(self, key: str, combination: Combination, store: RunStore) -> None:
        """Note where a combination was run, when it is complete."""
        result = store.result()
        if result is None or result.get("status") != "complete":
            return
        path = store.path.parent / INDEX
        entries = _index(path) if path.exists() else {}
        entries[key] = {"run": store.path.name, "options": dict(combination.values), "seed": combination.seed}
        entries[key]["config_hash"] = result.get("config_hash")
        self._entries[key] = (store.path, entries[key])
        write_json(path, {"format": 1, "runs": entries})


def _index(path: Path) -> dict[str, dict[str, Any]]:
    value = read_json(path)
    entries = value.get("runs") if isinstance(value, dict) else None
    known = list(entries.values()) if isinstance(entries, dict) else [None]
    if not all(isinstance(one, dict) and {"run", "config_hash"} <= one.keys() for one in known):
        raise RunError(f"{path}: not an index of runs; delete it, the sweep finds its runs again")
    return dict(entries or {})


def _closure(path: Path, found: dict[Path, None]) -> None:
    if path.resolve() in found:
        return
    found[path.resolve()] = None
    for text in _strings(YamlFile.read(path, "--config").content):
        if text.endswith((".yaml", ".yml")) and (path.parent / text).is_file():
            _closure(path.parent / text, found)


def _strings(value: Any) -> list[str]:
    inside = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(inside, list):
        return [text for inner in inside for text in _strings(inner)]
    return [value] if isinstance(value, str) else []
