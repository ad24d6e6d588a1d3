"""`fedrs fit`: one federated run, from config files to `result.json`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli.process import prepare_process
from fedrs_lightning.errors import ConfigError, FedrsError

if TYPE_CHECKING:
    import lightning as L
    from jsonargparse import Namespace

    from fedrs_lightning.data import Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.results.store import RunStore

HELP = "run one federated experiment, or continue it"


def main(argv: Sequence[str]) -> int:
    """Parse, launch the ranks, train, sum up. Returns the exit code."""
    prepare_process()
    from fedrs_lightning.cli.parser import parse

    parser, config = parse(argv)
    try:
        return run(parser, config)
    except (FedrsError, KeyboardInterrupt):
        if _rank() == 0:
            raise
        # All ranks fail with the same words, and rank 0 says them. A rank that rank 0 started must not end with an
        # error of its own meanwhile; for other launchers the exit code is how they learn of the failure.
        return 0 if _started_by_rank_zero() else 2


def run(parser: Any, config: Namespace) -> int:
    """Run a parsed configuration."""
    from fedrs_lightning.cli.parser import config_hash, experiment_name, resolved
    from fedrs_lightning.cli.quiet import quieten
    from fedrs_lightning.cli.run_directory import check_run, run_directory
    from fedrs_lightning.engine.callbacks import ProgressBars
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.preemption import Preemption, requeue
    from fedrs_lightning.engine.strategy import end_with_parent, started_externally
    from fedrs_lightning.results.store import RunStore
    from fedrs_lightning.seeding import rng_stream

    quieten()
    plain = resolved(parser, config)
    store = RunStore(run_directory(config, plain))
    method = plain["method"]["class_path"].rpartition(".")[2]
    if _rank() == 0 and check_run(store, plain, config.resume) == "complete":
        _report(store, "this run is complete")
        return 0
    with rng_stream(config.seed, "model"):
        parts = parser.instantiate(config)
    if _local_rank() == 0:
        parts.data.prepare()  # before further ranks start: a wrong folder is reported once and at once
    loggers, ids = _loggers(store, config, plain)
    # Ranks of an external launcher are there already, and the first of each machine may still be preparing the data.
    federation = None if started_externally() else parts.data.federation(config.seed)
    fabric = _launch(parts, federation, [ProgressBars()], loggers)
    if _started_by_rank_zero():
        end_with_parent()
    fabric.barrier()
    federation = federation or parts.data.federation(config.seed)
    parts.task.optimizer = parts.optimizer
    engine = Engine(
        fabric,
        parts.task,
        parts.method,
        federation,
        parts.schedule,
        seed=config.seed,
        path=store.path,
        name=f"{experiment_name(config)}/{config.run.label or method}",
        channels_last=parts.fabric.channels_last,
        compile=parts.fabric.compile,
        upload_memory=parts.fabric.upload_memory * 2**30,
        keep_checkpoints=parts.run.keep_checkpoints,
        preemption=Preemption(),
    )
    engine.loggers = ids
    _open(engine, store, plain, federation, parser, config)
    engine.resume()
    _replay(engine, store)
    engine.fit()
    if engine.preempted and engine.round < engine.schedule.num_rounds:
        if engine.rank == 0:
            job = requeue()
            print(f"fedrs fit: warned by the scheduler; round {engine.round} is saved" + (f", job {job} is requeued" if job else ", run the same command to continue"))
        return 0
    if engine.rank == 0:
        facts = {"experiment": experiment_name(config), "method": method, "config_hash": config_hash(plain), "label": config.run.label}
        _conclude(engine, store, parts.data.class_names, federation, facts, draw=config.run.plot)
        for logger in fabric.loggers:
            logger.finalize("success")
        _report(store, "done")
    engine.exchange.barrier()
    return 0


def _launch(parts: Any, federation: Federation | None, callbacks: list[Any], loggers: list[Any]) -> L.Fabric:
    visits = 1 if federation is None or parts.method.pools_clients else len(federation.clients)
    num_clients = min(visits, parts.schedule.clients_per_round or visits)
    try:
        fabric = parts.fabric.build(num_clients, callbacks=callbacks, loggers=loggers)
        fabric.launch()
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"the ranks cannot be launched: {' '.join(str(error).split())}") from None
    return fabric


def _loggers(store: RunStore, config: Namespace, plain: dict[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """Loggers of the run and the ids by which a continued run finds its own records again."""
    from fedrs_lightning.engine.checkpoint import CheckpointStore
    from fedrs_lightning.engine.loggers import build_loggers

    known = CheckpointStore(store.path / "checkpoints").logger_ids() if _rank() == 0 else {}
    return build_loggers(
        config.run.loggers, store.path, known, project=config.run.wandb_project, offline=config.run.wandb_offline, config=plain, group=store.path.parent.name
    )


def _open(engine: Engine, store: RunStore, plain: dict[str, Any], federation: Federation, parser: Any, config: Namespace) -> None:
    """Write what describes the run, before round 1; refuse data other than the run began with."""
    from fedrs_lightning.cli.run_directory import check_data, config_text, split_lists
    from fedrs_lightning.results.environment import environment

    failure = None
    if engine.rank == 0:
        try:
            check_data(store, federation.manifest)
            store.write_config(config_text(plain))
            devices = None
            store.write_environment(environment(world_size=engine.world_size, precision=plain["fabric"]["precision"], devices=devices))
            store.write_manifest(federation.manifest)
            store.write_split(split_lists(federation))
        except FedrsError as error:
            failure = error
    engine.exchange.agree(failure)


def _replay(engine: Engine, store: RunStore) -> None:
    """Give finished rounds to loggers that start their file anew."""
    from fedrs_lightning.engine.engine import logged
    from fedrs_lightning.engine.loggers import starts_anew

    if engine.rank == 0 and engine.round:
        for record in store.rounds():
            for logger in engine.fabric.loggers:
                if starts_anew(logger):
                    logger.log_metrics(logged(record), step=record["round"])


def _conclude(engine: Engine, store: RunStore, class_names: Sequence[str], federation: Federation, facts: dict[str, Any], draw: bool) -> None:
    from fedrs_lightning.engine.evaluate import PROTOCOLS
    from fedrs_lightning.results.plots import plot_curves
    from fedrs_lightning.results.summary import summarise

    rounds = store.rounds()
    used = {key.partition("/")[0] for record in rounds for key in record["metrics"]}
    members = [{"client": split.id, "name": split.name, "num_samples": len(split.train)} for split in federation.clients]
    result = summarise(
        rounds,
        store.clients(),
        seed=engine.seed,
        num_rounds=engine.schedule.num_rounds,
        protocol=engine.evaluator.headline,
        metric=engine.score_name,
        protocols={name: text for name, text in PROTOCOLS.items() if name in used},
        members=members,
        classes=class_names,
        synthetic_data=bool(federation.manifest.get("synthetic")),
        digest=engine.digest(),
        digest_model=engine.digest_model(),
        **facts,
    )
    store.write_result(result)
    if draw:
        plot_curves([store], store.path / "curves.png")


def _report(store: RunStore, state: str) -> None:
    from rich.console import Console

    from fedrs_lightning.results.render import terminal
    from fedrs_lightning.results.tables import collect, tabulate

    collection = collect([store])
    Console().print(terminal(tabulate(collection), collection))
    print(f"{state}; everything it wrote:")
    print(f"run directory: {store.path}")


def _rank() -> int:
    from lightning.fabric.utilities.rank_zero import _get_rank

    return _get_rank() or 0


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def _started_by_rank_zero() -> bool:
    from fedrs_lightning.engine.strategy import started_externally

    return not started_externally() and int(os.environ.get("LOCAL_RANK", "0")) > 0
