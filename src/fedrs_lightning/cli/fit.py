"""`fedrs fit`: one federated run, from config files to `result.json`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli import run_directory
from fedrs_lightning.cli.config.command_line import build, configure
from fedrs_lightning.cli.process import follow_sweep, rank, run_settings
from fedrs_lightning.engine.ranks.watch import ROUNDS_ARE_KEPT
from fedrs_lightning.errors import ConfigError, FedrsError, LaunchError, LostContact, RunError, TrainingError
from fedrs_lightning.files import naming_the_place
from fedrs_lightning.progress import waiting
from fedrs_lightning.results.hold import Hold
from fedrs_lightning.results.store import ROUNDS

if TYPE_CHECKING:
    import lightning as L

    from fedrs_lightning.cli.config.experiment import Experiment
    from fedrs_lightning.data import Federation
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.loggers import RoundLogger
    from fedrs_lightning.results.run import Run


def main(argv: Sequence[str]) -> int:
    """Read the configuration, launch the ranks, train, sum up. Returns the exit code."""
    follow_sweep()
    try:
        run = configure(argv)
        with naming_the_place(run.path):
            state = run_directory.check_run(run)
            if state == "complete":  # every rank asks: under torchrun and srun it must end on all of them
                if rank() == 0:
                    note = "this run was complete already; another --seed or --run.root starts a new one"
                    run_directory.report(run, note)
                return 0
    except (FedrsError, KeyboardInterrupt) as error:
        return _failed(error)
    with run_settings():
        try:
            return _start(run, state)
        except (FedrsError, KeyboardInterrupt) as error:
            return _failed(error)


def _failed(error: BaseException) -> int:
    """Say what went wrong and end this rank. Rank 0 speaks for all ranks; another says only what no other knows."""
    if rank() == 0:
        code = 130 if isinstance(error, KeyboardInterrupt) else 2
        text = f"interrupted; {ROUNDS_ARE_KEPT}" if code == 130 else " ".join(str(error).split())
        print(f"fedrs fit: {text}", file=sys.stderr)
        return _end(code)
    if isinstance(error, FedrsError) and not isinstance(error, LostContact | LaunchError):
        time.sleep(5.0)
        print(f"fedrs fit: {' '.join(str(error).split())} (rank {rank()})", file=sys.stderr)
    return _end(2)


def _end(code: int) -> int:
    """Leave at once where other ranks are gone or will be: without them, ending a process group may abort it."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _start(run: Run, state: str) -> int:
    """Run in the run directory, which rank 0 holds meanwhile, so that no other process works there."""
    if rank() != 0 or state == "moved":
        return _guarded(run, state, None)
    existed = run.path.exists()
    above = next(folder for folder in run.path.absolute().parents if folder.exists())
    with Hold(run.path, "another run is at work there") as hold:
        try:
            with naming_the_place(run.path):
                if run_directory.check_run(run) != state:
                    raise RunError(f"{run.path}: another process has just worked there; the same command looks again")
            return _guarded(run, state, hold)
        except Exception:
            if not existed and not any((run.path / name).exists() for name in (ROUNDS, "checkpoints")):
                _remove(run.path.absolute(), above)  # refused before its first round
            raise


def _guarded(run: Run, state: str, hold: Hold | None) -> int:
    import torch

    try:
        with naming_the_place(run.path):
            return _run(run, state, hold)
    except torch.OutOfMemoryError as error:
        remedy = "Lower schedule.batch_size, schedule.eval_batch_size or the ranks on a GPU"
        raise TrainingError(f"{str(error).splitlines()[0]} {remedy}") from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(r"allocate memory|overflow", str(error)):
            raise
        problem = f"too large for the memory of this machine: {' '.join(str(error).split())[-120:]}"
        raise ConfigError(f"{problem}; look at the sizes of network, method and images") from None


def _remove(folder: Path, above: Path) -> None:
    """Take away the folder of a refused run, and the folders that were made for it below one that was there."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # another run is in it
        for parent in folder.parents:
            if parent == above:
                return
            parent.rmdir()


def _run(run: Run, state: str, hold: Hold | None) -> int:
    """Run a configuration in its run directory, whose state `check_run` has found."""
    import torch.distributed as dist

    with waiting("loading data set, network and method", rank()):
        built = build(run)
    from fedrs_lightning.engine.ranks.contact import contact
    from fedrs_lightning.engine.ranks.launch import this_launch
    from fedrs_lightning.engine.ranks.watch import watching_ranks

    if built.fabric.compile:
        _require_compiler()
    launch = this_launch()
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if launch is None else launch.local_rank
    if local_rank == 0 and (launch is None or state == "moved"):
        built.data.prepare()  # before further ranks start: a wrong folder is reported once and at once
    if state == "moved":
        run_directory.check_data(run, run_directory.manifest_of(built.task, built.data.federation(run.seed)))
        if rank() == 0:
            run_directory.report(run, "this run was complete already, on the same data under another path")
        return 0
    if rank() == 0:
        run_directory.check_checkpoints(run)
    loggers, ids = _loggers(run, built)
    # Ranks of an external launcher are there already: they join first, and wait while the data are prepared.
    federation = None if launch is not None else built.data.federation(run.seed)
    fabric = _launch(built, federation, loggers, [] if hold is None else [StillHeld(hold)])
    with watching_ranks(fabric):
        if local_rank == 0 and launch is not None:
            built.data.prepare()
        with contact():
            fabric.barrier()
        federation = federation or built.data.federation(run.seed)
        engine = _engine(run, built, fabric, federation)
        cost = run_directory.count_cost(engine, lambda: build(run))
        status = "failed"
        try:
            done = _train(engine, run, loggers, ids)
            built.data.verified()  # of a short run, or large packs
            status = "success"
        finally:
            if engine.rank == 0:
                for logger in loggers:
                    logger.finalize(status)
        if done and engine.rank == 0:
            run_directory.write_result(engine, run, built.data, cost)
            if built.run.plot:
                from fedrs_lightning.cli.pictures import draw

                draw(engine, run, built.data)
            run_directory.report(run)
        engine.exchange.barrier()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    return 0


class StillHeld:
    """Ends a run whose directory another process has taken over, at its next step or round.

    Args:
        hold: of the run directory, on rank 0.
    """

    def __init__(self, hold: Hold) -> None:
        self.on_step = hold.require
        self._hold = hold

    def on_round_start(self, **_: Any) -> None:
        """Look once a round too: rank 0 may have no client to train."""
        self._hold.require()


def _launch(
    built: Experiment, federation: Federation | None, loggers: list[RoundLogger], callbacks: list[Any]
) -> L.Fabric:
    from fedrs_lightning.engine.callbacks import ProgressBars
    from fedrs_lightning.engine.ranks.strategy import build_fabric

    all_clients = 1 if federation is None or built.method.pools_clients else len(federation.clients)
    num_clients = min(all_clients, built.schedule.clients_per_round or all_clients)
    try:
        fabric = build_fabric(built.fabric, num_clients, callbacks=[ProgressBars(), *callbacks], loggers=loggers)
        with waiting("starting the ranks", rank()):
            fabric.launch()
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"the ranks cannot be launched: {' '.join(str(error).split())}") from None
    return fabric


def _engine(run: Run, built: Experiment, fabric: L.Fabric, federation: Federation) -> Engine:
    from fedrs_lightning.engine.engine import Engine
    from fedrs_lightning.engine.ranks.preemption import Preemption

    settings, kept = built.fabric, built.run.keep_checkpoints
    options: Any = {"seed": run.seed, "path": run.path, "name": f"{run.name}/{run.label or run.method}"}
    options |= {"channels_last": settings.channels_last, "compile": settings.compile, "loading": settings.loading}
    options |= {"upload_memory": settings.upload_memory * 2**30, "keep_checkpoints": kept, "preemption": Preemption()}
    options |= {"memory_cache": settings.memory_cache * 2**30, "write_behind": settings.write_behind}
    engine = Engine(fabric, built.task, built.method, federation, built.schedule, **options)
    cohort = engine.sampler.size or len(engine.clients)
    if engine.rank == 0 and engine.world_size > cohort:
        idle = f"{engine.world_size - cohort} rank(s) stand idle; lower --fabric.devices"
        warnings.warn(f"{engine.world_size} ranks for {cohort} client(s) a round: {idle}", stacklevel=2)
    return engine


def _train(engine: Engine, run: Run, loggers: Sequence[RoundLogger], ids: dict[str, str]) -> bool:
    """Run what is left to run; False when the scheduler's warning ended it early."""
    from fedrs_lightning.engine.engine import logged
    from fedrs_lightning.engine.ranks.preemption import requeue

    run_directory.open_run(engine, run)
    engine.config = run.hash
    engine.resume()
    engine.loggers |= ids
    with engine.exchange.together():
        if engine.rank == 0:
            rounds = [(record["round"], logged(record)) for record in run.store.rounds()]
            for logger in loggers:
                logger.catch_up(rounds)
    engine.fit()
    if not engine.preempted or engine.round >= engine.schedule.num_rounds:
        return True
    if engine.rank == 0:
        job = requeue()
        then = f"job {job} is requeued" if job else "run the same command to continue"
        print(f"fedrs fit: warned by the scheduler; round {engine.round} is saved, {then}")
    return False


def _loggers(run: Run, built: Experiment) -> tuple[list[RoundLogger], dict[str, str]]:
    """Loggers of the run and the ids by which a continued run finds its own records again."""
    from fedrs_lightning.engine.checkpoint import CheckpointStore
    from fedrs_lightning.engine.loggers import build_loggers

    known = CheckpointStore(run.path / "checkpoints").logger_ids() if rank() == 0 else {}
    settings, options = built.run, {"config": run.config, "group": run.name, "project": built.run.wandb_project}
    return build_loggers(settings.loggers, run.path, known, settings.wandb_offline, **options)


def _require_compiler() -> None:
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["c++", "g++", "clang++"])):
        found = f"{named} is not there" if named else "there is none"
        remedy = "install g++ (or set CXX), or leave fabric.compile false"
        raise ConfigError(f"fabric.compile needs a C++ compiler, and {found}; {remedy}")
