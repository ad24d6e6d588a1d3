"""`fedrs fit`: one federated run, from config files to `result.json`."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli.process import run_settings
from fedrs_lightning.cli.quiet import rank, waiting
from fedrs_lightning.cli.record import conclude, count_cost, method_name, open_run, report
from fedrs_lightning.engine.ranks import KEEPS
from fedrs_lightning.errors import ConfigError, FedrsError, LostContact, TrainingError

if TYPE_CHECKING:
    import lightning as L
    from jsonargparse import ArgumentParser, Namespace

    from fedrs_lightning.data import Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.loggers import RoundLogger
    from fedrs_lightning.results.store import RunStore

HELP = "run one federated experiment, or continue it"


def main(argv: Sequence[str]) -> int:
    """Parse, launch the ranks, train, sum up. Returns the exit code."""
    with run_settings():
        try:
            return _main(argv)
        except (FedrsError, KeyboardInterrupt) as error:
            if rank() == 0:
                return _fail(error)
            return _follow(error)


def _fail(error: BaseException) -> int:
    """Say what went wrong, and end the run."""
    code, words = (
        (130, f"interrupted; {KEEPS}") if isinstance(error, KeyboardInterrupt) else (2, " ".join(str(error).split()))
    )
    print(f"fedrs fit: {words}", file=sys.stderr)
    return _end(code)


def _follow(error: BaseException) -> int:
    """End a rank other than 0. What all ranks know rank 0 says, and ends them; what it does not know is said here."""
    if isinstance(error, FedrsError) and not isinstance(error, LostContact):
        time.sleep(5.0)
        print(f"fedrs fit: {' '.join(str(error).split())} (rank {rank()})", file=sys.stderr)
    return _end(2)


def _end(code: int) -> int:
    """Leave at once where other ranks are gone or will be: taking down a process group without them may abort the
    process.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _main(argv: Sequence[str]) -> int:
    import torch

    with waiting("loading data sets, networks and methods"):
        from fedrs_lightning.cli.parser import parse, resolved
    from fedrs_lightning.cli.run_directory import run_directory
    from fedrs_lightning.files import naming_the_place
    from fedrs_lightning.results.store import RunStore

    parser, config = parse(argv)
    plain = resolved(parser, config)
    store = RunStore(run_directory(config, plain))
    try:
        with naming_the_place(store.path):
            return run(parser, config, plain, store)
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"{str(error).splitlines()[0]} Lower schedule.batch_size, schedule.eval_batch_size or the ranks on a GPU"
        ) from None


def run(parser: ArgumentParser, config: Namespace, plain: dict[str, Any], store: RunStore) -> int:
    """Run a parsed configuration in its run directory.

    Args:
        parser: that parsed.
        config: what it parsed.
        plain: the same, resolved to plain values.
        store: the run directory.
    """
    import torch.distributed as dist

    from fedrs_lightning.cli.parser import instantiate
    from fedrs_lightning.cli.run_directory import check_data, check_run, other_data
    from fedrs_lightning.engine.callbacks import ProgressBars
    from fedrs_lightning.engine.exchange import contact
    from fedrs_lightning.engine.ranks import watched
    from fedrs_lightning.engine.strategy import started_externally

    # Every rank asks: under torchrun and srun a complete run must end on all of them.
    complete = check_run(store, plain, config.resume) == "complete"
    if complete and not other_data(store, plain):
        if rank() == 0:
            report(store, "this run was complete already; another --seed or --run.root starts a new one")
        return 0
    parts = instantiate(parser, config)
    if parts.fabric.compile:
        _require_compiler()
    if _local_rank() == 0:
        parts.data.prepare()  # before further ranks start: a wrong folder is reported once and at once
    if complete:
        check_data(store, _manifest(parts, parts.data.federation(config.seed)))
        if rank() == 0:
            report(store, "this run was complete already, on the same data under another path")
        return 0
    loggers, ids = _loggers(store, config, plain)
    # Ranks of an external launcher are there already, and the first of each machine may still be preparing the data.
    federation = None if started_externally() else parts.data.federation(config.seed)
    fabric = _launch(parts, federation, [ProgressBars()], loggers)
    with watched(fabric):
        with contact():
            fabric.barrier()
        federation = federation or parts.data.federation(config.seed)
        engine = _engine(parts, fabric, federation, config, plain, store)
        cost = count_cost(engine, partial(instantiate, parser, config))
        status = "failed"
        try:
            done = _train(engine, store, plain, config, federation, loggers, ids)
            status = "success"
        finally:
            if engine.rank == 0:
                for logger in loggers:
                    logger.finalize(status)
        if done and engine.rank == 0:
            conclude(engine, store, parts.data, federation, plain, config, cost)
            report(store)
        engine.exchange.barrier()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    return 0


def _launch(parts: Any, federation: Federation | None, callbacks: list[Any], loggers: list[RoundLogger]) -> L.Fabric:
    visits = 1 if federation is None or parts.method.pools_clients else len(federation.clients)
    num_clients = min(visits, parts.schedule.clients_per_round or visits)
    try:
        fabric = parts.fabric.build(num_clients, callbacks=callbacks, loggers=loggers)
        with waiting("starting the ranks"):
            fabric.launch()
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"the ranks cannot be launched: {' '.join(str(error).split())}") from None
    return fabric


def _engine(
    parts: Any, fabric: L.Fabric, federation: Federation, config: Namespace, plain: dict[str, Any], store: RunStore
) -> Engine:
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.preemption import Preemption

    engine = Engine(
        fabric,
        parts.task,
        parts.method,
        federation,
        parts.schedule,
        seed=config.seed,
        path=store.path,
        name=f"{plain['run']['name']}/{config.run.label or method_name(plain)}",
        channels_last=parts.fabric.channels_last,
        compile=parts.fabric.compile,
        upload_memory=parts.fabric.upload_memory * 2**30,
        keep_checkpoints=parts.run.keep_checkpoints,
        preemption=Preemption(),
        loading=parts.fabric.loading,
    )
    cohort = engine.sampler.size or len(engine.clients)
    if engine.rank == 0 and engine.world_size > cohort:
        idle = engine.world_size - cohort
        warnings.warn(
            f"{engine.world_size} ranks for {cohort} client(s) a round: {idle} rank(s) stand idle; lower "
            "--fabric.devices",
            stacklevel=2,
        )
    return engine


def _manifest(parts: Any, federation: Federation) -> dict[str, Any]:
    """What decided the data, and the file of initial weights where there is one."""
    report = getattr(parts.task.model, "weights_report", None)
    if report is None:
        return federation.manifest
    return federation.manifest | {
        "initial_weights": {name: value for name, value in asdict(report).items() if name != "path"}
    }


def _train(
    engine: Engine,
    store: RunStore,
    plain: dict[str, Any],
    config: Namespace,
    federation: Federation,
    loggers: Sequence[RoundLogger],
    ids: dict[str, str],
) -> bool:
    """Run what is left to run; False when the scheduler's warning ended it early."""
    from fedrs_lightning.engine.engine import logged
    from fedrs_lightning.engine.preemption import requeue

    open_run(engine, store, plain, federation, _manifest(engine, federation))
    engine.resume()
    engine.loggers |= ids
    failure = None
    if engine.rank == 0:
        try:
            rounds = [(record["round"], logged(record)) for record in store.rounds()]
            for logger in loggers:
                logger.catch_up(rounds)
        except FedrsError as error:
            failure = error
    engine.exchange.agree(failure)
    engine.fit()
    if not engine.preempted or engine.round >= engine.schedule.num_rounds:
        return True
    if engine.rank == 0:
        job = requeue()
        print(
            f"fedrs fit: warned by the scheduler; round {engine.round} is saved, "
            + (f"job {job} is requeued" if job else "run the same command to continue")
        )
    return False


def _loggers(store: RunStore, config: Namespace, plain: dict[str, Any]) -> tuple[list[RoundLogger], dict[str, str]]:
    """Loggers of the run and the ids by which a continued run finds its own records again."""
    from fedrs_lightning.engine.checkpoint import CheckpointStore
    from fedrs_lightning.engine.loggers import build_loggers

    known = CheckpointStore(store.path / "checkpoints").logger_ids() if rank() == 0 else {}
    return build_loggers(
        config.run.loggers,
        store.path,
        known,
        project=config.run.wandb_project,
        offline=config.run.wandb_offline,
        config=plain,
        group=plain["run"]["name"],
    )


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["c++", "g++", "clang++"])):
        found = f"{named} is not there" if named else "there is none"
        raise ConfigError(
            f"fabric.compile needs a C++ compiler, and {found}; install g++ (or set CXX), or leave fabric.compile false"
        )


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
