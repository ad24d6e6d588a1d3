"""What lies in a run directory: whether it belongs to the run that is asked for, and what the run writes there."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from fedrs_lightning.errors import RunError, TrainingError
from fedrs_lightning.files import naming_the_place
from fedrs_lightning.results.store import CONFIG

if TYPE_CHECKING:
    from fedrs_lightning.cli.config.experiment import Experiment
    from fedrs_lightning.data import FederatedDataset, Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.results.run import Run
    from fedrs_lightning.tasks import Task

_PLACES = ("folder", "folders", "decoder")
"""What may change in the manifest: where the data lie and how they were read; hashes say whether they are the same."""

_OURS = {
    *(CONFIG, "environment.json", "data.json", "split.json", "rounds.jsonl", "clients.jsonl", "metrics.csv"),
    *("checkpoints", "clients", "spool", "tensorboard", "wandb"),
}
_HEAD = "# The complete configuration of this run. To repeat it: fedrs fit --config config.yaml --run.root ELSEWHERE\n"


def check_run(run: Run) -> Literal["empty", "incomplete", "complete", "moved"]:
    """State of the run directory; reads only. `moved` is complete, but on data that lay elsewhere.

    Raises:
        RunError: it belongs to another configuration (names the differing keys), to something else, or exists under
            `--resume never`.
    """
    path = run.path
    above = _folder_above(path)
    if not (path / CONFIG).exists():
        inside = sorted(one.name for one in path.iterdir()) if path.exists() else []
        foreign = [name for name in inside if name not in _OURS and not name.startswith(".")]
        if foreign:
            raise RunError(f"{path}: holds {foreign[0]} but no run; choose an empty folder with --run.dir")
        _require_writable(above)
        return "empty"
    if run.config["resume"] == "never":
        raise RunError(f"{path}: already holds this run; use --resume auto to continue it, or another --run.root")
    before = type(run).at(path)
    differ = _differences(before.deciding, run.deciding)
    if differ:
        more = f" and {len(differ) - 5} more" if len(differ) > 5 else ""
        named = f"{', '.join(differ[:5])}{more}"
        raise RunError(f"{path}: holds a run of another configuration: {named}; choose another --run.dir")
    if run.store.status != "complete":
        _require_writable(above)
        return "incomplete"
    return "complete" if before.data_folders == run.data_folders else "moved"


def _folder_above(path: Path) -> Path:
    """The run directory, or the nearest folder above it that exists."""
    while not path.exists() and path.parent != path:
        path = path.parent
    if not path.is_dir():
        problem = "is a file, where the folder of the run should be"
        raise RunError(f"{path}: {problem}; choose another --run.dir or --run.root")
    return path


def _require_writable(folder: Path) -> None:
    """Asked before hours of work."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"{folder}: no permission to write there; choose another --run.root, or mend the permissions")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differing keys with both values; where a class is another one, its arguments are not named."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    classes = [key.removesuffix("class_path") for key in keys if key.endswith(".class_path")]
    named = [key for key in keys if not any(key.startswith(f"{name}init_args.") for name in classes)]
    return [f"{key} ({_value(before, key)} there, {_value(now, key)} now)" for key in named]


def _value(values: dict[str, Any], key: str) -> str:
    value = values.get(key, "nothing")
    if key.endswith(".class_path"):
        return str(value).rpartition(".")[2]
    return str(value) if isinstance(value, str) else json.dumps(value)


def manifest_of(task: Task, federation: Federation) -> dict[str, Any]:
    """What decided the data, and the file of initial weights where there is one."""
    weights = getattr(task.model, "weights_report", None)
    if weights is None:
        return federation.manifest
    values = {name: value for name, value in asdict(weights).items() if name != "path"}
    return federation.manifest | {"initial_weights": values}


def check_data(run: Run, manifest: dict[str, Any]) -> None:
    """Refuse to continue a run on other data than it began with.

    Raises:
        RunError: names what differs.
    """
    before = run.store.manifest()
    if before is None:
        return
    before, now = _content(before), _content(json.loads(json.dumps(manifest)))
    differ = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differ:
        problem = f"the data are not those that the run began with (data.json differs in {', '.join(differ)})"
        raise RunError(f"{run.path}: {problem}; restore them, or start a new run with another --run.root")


def _content(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _content(inner) for key, inner in value.items() if key not in _PLACES and not key.endswith("root")}
    return [_content(inner) for inner in value] if isinstance(value, list) else value


def check_checkpoints(run: Run) -> None:
    """Refuse checkpoints of another configuration, which `config.yaml` may not tell any more.

    Raises:
        RunError: names the checkpoint.
    """
    from fedrs_lightning.engine.checkpoint import CheckpointStore

    checkpoints = CheckpointStore(run.path / "checkpoints")
    for round, config in checkpoints.configs().items():
        if config != run.hash:
            problem = "belongs to another configuration than this one"
            raise RunError(f"{checkpoints.path(round)}: {problem}; restore {CONFIG}, or choose another --run.dir")


def open_run(engine: Engine, run: Run) -> None:
    """Write what describes the run, before round 1; refuse data other than the run began with."""
    from fedrs_lightning.results.environment import environment

    facts = engine.exchange.collect(_device_facts(engine))
    manifest = manifest_of(engine.task, engine.federation)
    with engine.exchange.together():
        if engine.rank == 0:
            with naming_the_place(run.path):
                check_data(run, manifest)
                run.store.write_config(_HEAD + yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True))
                devices, precision = [device for device, _ in facts], run.config["fabric"]["precision"]
                known = environment(engine.world_size, precision, facts[0][1], devices)
                run.store.write_environment(known | {"devices_used": _devices_used(run, devices)})
                run.store.write_manifest(manifest)
                run.store.write_split(_sample_ids(engine.federation))


def _devices_used(run: Run, devices: list[str]) -> list[str]:
    """Of this run so far, those of now included; says when these are others."""
    before = run.store.devices() if run.store.rounds() else []
    new = [name for name in dict.fromkeys(devices) if name not in before]
    if before and new:
        change = f"{run.path}: began on {' and '.join(before)}, continues on {' and '.join(new)}"
        warnings.warn(f"{change}: its result is neither device's, since they round differently", stacklevel=2)
    return [*before, *new]


def _device_facts(engine: Engine) -> tuple[str, int]:
    """Name of this rank's device and its number of CPU threads."""
    import torch

    from fedrs_lightning.results.environment import cpu_model

    device = engine.fabric.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(), torch.get_num_threads()


def _sample_ids(federation: Federation) -> dict[str, Any]:
    """Of every client and common set."""

    def names(indices: Any) -> list[str] | None:
        return None if indices is None else [federation.sample_ids[index] for index in indices]

    clients = []
    for split in federation.clients:
        own = {"train": names(split.train), "test": names(split.test)}
        clients.append({"client": split.id, "name": split.name} | own)
    return {"clients": clients, "test": names(federation.test), "validation": names(federation.validation)}


def count_cost(engine: Engine, make: Callable[[], Experiment]) -> dict[str, int]:
    """What the method costs on this task and these images, counted on rank 0 before it trains anything.

    Args:
        engine: whose data and batch size count.
        make: makes task and method anew, since counting trains them.
    """
    from fedrs_lightning.engine.cost import FEW, measure, some_samples

    cost = {}
    with engine.exchange.together():
        if engine.rank == 0:
            built, batch_size = make(), engine.schedule.batch_size
            samples = some_samples(engine.federation, min(batch_size, FEW))
            try:
                cost = asdict(measure(built.task, built.method, engine.fabric, samples, batch_size))
            except TrainingError as error:
                trial = "training diverges already in the trial on a few images that counts its cost"
                reason = str(error).partition(": ")[2].partition("; ")[0]
                remedy = "look at the options of the method and the learning rate (optimizer.init_args.lr)"
                raise TrainingError(f"{trial}: {reason}; {remedy}") from None
    return cost


def write_result(engine: Engine, run: Run, data: FederatedDataset, cost: dict[str, int]) -> None:
    """Write `result.json`, after the last round."""
    from fedrs_lightning.engine.evaluate import PROTOCOLS
    from fedrs_lightning.results.summary import summarise

    rounds, federation = run.store.rounds(), engine.federation
    used = {key.partition("/")[0] for record in rounds for key in record["metrics"]}
    protocol, metric = engine.headline.split("/", 1)
    members = []
    for split in federation.clients:
        member = {"client": split.id, "name": split.name, "num_samples": len(split.train)}
        members.append(member | ({"domain": split.domain} if split.domain else {}))
    absent = rounds[-1].get("absent_classes", {}).get(protocol, [])
    facts: dict[str, Any] = {"experiment": run.name, "method": run.method, "label": run.label, "seed": run.seed}
    facts |= {"config_hash": run.hash, "num_rounds": engine.schedule.num_rounds}
    facts |= {"protocols": {name: text for name, text in PROTOCOLS.items() if name in used}}
    facts |= {"classes": [name for name in data.class_names if name not in absent], "absent_classes": absent}
    facts |= {"synthetic_data": bool(federation.manifest.get("synthetic")), "setup_bytes": federation.setup_bytes}
    facts |= {"digest": engine.digest(), "digest_model": engine.digest_model(), "cost": cost}
    rows = run.store.clients()
    run.store.write_result(summarise(rounds, rows, protocol=protocol, metric=metric, members=members, **facts))


def report(run: Run, note: str = "") -> None:
    """Print the run's table and where it lies."""
    from rich.console import Console

    from fedrs_lightning.results.render import terminal
    from fedrs_lightning.results.tables import collect, tabulate

    collection = collect([run.store])
    Console(highlight=False).print(terminal(tabulate(collection), collection))
    if note:
        print(note)
    print(f"run directory: {run.path}")
