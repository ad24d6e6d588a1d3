"""What a run writes about itself before its first round and after its last, and what it tells the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedrs_lightning.errors import FedrsError

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from fedrs_lightning.data import FederatedDataset, Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.results.store import RunStore


def open_run(
    engine: Engine, store: RunStore, plain: dict[str, Any], federation: Federation, manifest: dict[str, Any]
) -> None:
    """Write what describes the run, before round 1; refuse data other than the run began with."""
    from fedrs_lightning.cli.run_directory import check_data, config_text, split_lists
    from fedrs_lightning.files import naming_the_place
    from fedrs_lightning.results.environment import environment

    facts = engine.exchange.collect(_device_facts(engine))
    failure = None
    if engine.rank == 0:
        try:
            with naming_the_place(store.path):
                check_data(store, manifest)
                store.write_config(config_text(plain))
                store.write_environment(
                    environment(
                        world_size=engine.world_size,
                        precision=plain["fabric"]["precision"],
                        threads=facts[0][1],
                        devices=[device for device, _ in facts],
                    )
                )
                store.write_manifest(manifest)
                store.write_split(split_lists(federation))
        except FedrsError as error:
            failure = error
    engine.exchange.agree(failure)


def _device_facts(engine: Engine) -> tuple[str, int]:
    """Name of this rank's device and its number of CPU threads."""
    import torch

    from fedrs_lightning.results.environment import cpu_model

    device = engine.fabric.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(), torch.get_num_threads()


def count_cost(engine: Engine, make: Callable[[], Any]) -> dict[str, int]:
    """What the method costs on this task and these images, counted on rank 0 before it trains anything.

    Args:
        engine: whose data and batch size count.
        make: makes task and method anew, since counting trains them.
    """
    from fedrs_lightning.engine.cost import FEW, measure, some_samples

    failure, cost = None, {}
    if engine.rank == 0:
        try:
            parts, batch_size = make(), engine.schedule.batch_size
            samples = some_samples(engine.federation, min(batch_size, FEW))
            cost = measure(parts.task, parts.method, engine.fabric, samples, batch_size).as_dict()
        except FedrsError as error:
            failure = error
    engine.exchange.agree(failure)
    return cost


def conclude(
    engine: Engine,
    store: RunStore,
    data: FederatedDataset,
    federation: Federation,
    plain: dict[str, Any],
    config: Namespace,
    cost: dict[str, int],
) -> None:
    """Write the result, and draw it."""
    from fedrs_lightning.cli.parser import config_hash
    from fedrs_lightning.cli.pictures import draw
    from fedrs_lightning.engine.evaluate import PROTOCOLS
    from fedrs_lightning.results.summary import summarise

    rounds = store.rounds()
    used = {key.partition("/")[0] for record in rounds for key in record["metrics"]}
    protocol, metric = engine.headline.split("/", 1)
    members = [
        {"client": split.id, "name": split.name, "num_samples": len(split.train)}
        | ({"domain": split.domain} if split.domain else {})
        for split in federation.clients
    ]
    absent = rounds[-1].get("absent_classes", {}).get(protocol, [])
    result = summarise(
        rounds,
        store.clients(),
        experiment=plain["run"]["name"],
        method=method_name(plain),
        label=config.run.label,
        config_hash=config_hash(plain),
        seed=engine.seed,
        num_rounds=engine.schedule.num_rounds,
        protocol=protocol,
        metric=metric,
        protocols={name: text for name, text in PROTOCOLS.items() if name in used},
        members=members,
        classes=[name for name in data.class_names if name not in absent],
        absent_classes=absent,
        synthetic_data=bool(federation.manifest.get("synthetic")),
        digest=engine.digest(),
        digest_model=engine.digest_model(),
        cost=cost,
        setup_bytes=federation.setup_bytes,
    )
    store.write_result(result)
    if config.run.plot:
        draw(engine, store, data, federation)


def report(store: RunStore, state: str = "") -> None:
    """Print the run's table and where it lies."""
    from rich.console import Console

    from fedrs_lightning.results.render import terminal
    from fedrs_lightning.results.tables import collect, tabulate

    collection = collect([store])
    Console(highlight=False).print(terminal(tabulate(collection), collection))
    if state:
        print(state)
    print(f"run directory: {store.path}")


def method_name(plain: dict[str, Any]) -> str:
    """Class name of the method."""
    return str(plain["method"]["class_path"].rpartition(".")[2])
