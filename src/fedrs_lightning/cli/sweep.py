"""`fedrs sweep`: an experiment over methods, settings and seeds, one `fedrs fit` process a run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrs_lightning.cli.combinations import (
    Combination,
    SweepIndex,
    combinations,
    fingerprint,
    parse_extra,
    parse_grids,
    parse_seeds,
    run_root,
)
from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.cli.options import Parser, above
from fedrs_lightning.cli.process import SWEEP
from fedrs_lightning.engine.ranks.launch import this_launch
from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.progress import Meter, Progress
from fedrs_lightning.results.hold import Hold
from fedrs_lightning.results.render import terminal
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.tables import collect, tabulate

_DESCRIPTION = """Run the product of all grids and seeds. What is complete is skipped, what was interrupted continues,
a run that fails does not stop the others. Ends with a table, and with exit code 2 when a run failed.
Every option not listed here is handed to `fedrs fit`."""
_EPILOG = """examples:
  fedrs sweep --config experiments/eurosat_small.yaml --grid method=FedAvg,FedBN,FedMAD --seeds 0..2
  fedrs sweep --config X.yaml --grid method.init_args.power=0.5,1,2 --schedule.num_rounds 20
  fedrs sweep --config X.yaml --grid 'data.archive.init_args.bands=[red,green],[red]'"""
FIT = (sys.executable, "-m", "fedrs_lightning.cli.main", "fit")
GROUPS = ("--data", "--task", "--method", "--schedule", "--optimizer", "--fabric", "--run", "--logger")
GRACE = 60.0
"""Seconds a child has after SIGINT to leave by itself."""

AGAIN = "the same command"


@dataclass
class Job:
    """One combination and what became of it."""

    combination: Combination
    key: str
    arguments: list[str]
    log: Path
    store: RunStore | None = None
    error: str | None = None
    process: subprocess.Popen[bytes] | None = None
    start: float = 0.0
    hold: Hold | None = None


def parser() -> Parser:
    """Options of `fedrs sweep`."""
    options = Parser(prog="fedrs sweep", description=_DESCRIPTION, epilog=_EPILOG)
    later, values = "may be given several times, later wins", "option of fit and its values; may be repeated"
    options.add_argument("--config", action="append", required=True, metavar="FILE", help=later)
    options.add_argument("--grid", action="append", default=[], metavar="KEY=V1,V2", help=values)
    options.add_argument("--seeds", default="0", metavar="SEEDS", help="0..2 or 0,3,7 (default: 0)")
    at_once = "runs at a time (default: 1), each with its own ranks"
    options.add_argument("--jobs", type=above(1), default=1, metavar="N", help=at_once)
    options.add_argument("--dry-run", action="store_true", help="say what would run, and run nothing")
    return options


def main(argv: Sequence[str], command: Sequence[str] = FIT) -> int:
    """Run the sweep; returns 0, 2 when a run failed, 130 when interrupted.

    Args:
        argv: arguments after `fedrs sweep`.
        command: program in place of `fedrs fit`; it gets fit's arguments.
    """
    options = parser()
    found, rest = options.parse_known_args(argv)
    extra = parse_extra(rest)
    grids = parse_grids(found.grid)
    _check_extra([key for key, _ in extra], [key for key, _ in grids], options)
    root = run_root(found.config, extra)
    index = SweepIndex(root)
    jobs = []
    for combination in combinations(grids, parse_seeds(found.seeds)):
        key = fingerprint(combination, found.config, extra)
        slug = re.sub(r"[^A-Za-z0-9.=+-]+", "-", combination.title)[:80]
        log = root / "sweep-logs" / f"{slug}-{key[:8]}.log"
        jobs.append(Job(combination, key, combination.arguments(found.config, extra), log, store=index.complete(key)))
    if found.dry_run:
        return _dry_run(jobs)
    with Hold(root / "sweep-logs", "the same sweep is at work there", f".sweep-{_name(jobs)}.lock"):
        return run(jobs, index, command, limit=found.jobs)


def _name(jobs: list[Job]) -> str:
    """Of a sweep: the same for the same command on the same files."""
    return hashlib.sha256(" ".join(job.key for job in jobs).encode()).hexdigest()[:12]


def _dry_run(jobs: list[Job]) -> int:
    """Say what would run, each combination read as `fedrs fit` would, once for all its seeds; 2 after a mistake."""
    mistakes: dict[str, str | None] = {}
    for job in jobs:
        same = repr(job.combination.values)
        if job.store is None and same not in mistakes:
            mistakes[same] = _mistake(job)
        if job.store is not None:
            state = f"complete, {job.store.path}"
        elif mistakes[same] is not None:
            state = f"would fail: {mistakes[same]}"
        else:
            state = f"to run: {shlex.join(['fedrs', 'fit', *job.arguments])}"
        print(f"{job.combination.title}: {state}")
    return 2 if any(mistakes.values()) else 0


def _mistake(job: Job) -> str | None:
    from fedrs_lightning.cli.config.command_line import configure

    try:
        configure(job.arguments)
    except ConfigError as error:
        return str(error)
    return None


def run(jobs: list[Job], index: SweepIndex, command: Sequence[str], *, limit: int) -> int:
    """Run all jobs that are not complete, at most `limit` at a time, then print table and failures."""
    with Progress() as progress, _stop_signals():
        bar, waiting, count = progress.add(Meter("", len(jobs), unit="")), [], 0

        def ended(job: Job, text: str) -> None:
            nonlocal count
            count += 1
            line = f"[{count}/{len(jobs)}] {job.combination.title}: {text}"
            progress.say(line) if progress.shown else print(line, flush=True)
            progress.advance(bar)

        for job in jobs:
            if job.store is None:
                waiting.append(job)
            else:
                ended(job, f"already complete, {job.store.path}")
        active: list[Job] = []
        try:
            while waiting or active:
                while waiting and len(active) < limit:
                    job = waiting.pop(0)
                    active.append(job)
                    _start(job, command)
                for job in [job for job in active if job.process is None or job.process.poll() is not None]:
                    active.remove(job)
                    _finish(job, index)
                    ended(job, _outcome(job))
                if progress.shown and active:
                    titles = ", ".join(job.combination.title for job in active)
                    progress.note(f"{titles}  {_last_line(active[0].log)}")
                time.sleep(0.1)
        except KeyboardInterrupt:
            _stop(active)
            complete = sum(job.store is not None and job.error is None for job in jobs)
            done = f"stopped with {complete} of {len(jobs)} runs complete"
            print(f"fedrs sweep: {done}; {AGAIN} continues", file=sys.stderr)
            return 130
    return _report(jobs)


def _check_extra(extra: list[str], grid: list[str], options: Parser) -> None:
    for key in extra:
        if key in grid:
            raise ConfigError(f"--{key} is given both as an option and as a grid; drop one of them")
        if key == "run.label" and any(name != "method" for name in grid):
            problem = "--run.label is set by the sweep, to the values of the grid"
            raise ConfigError(f"{problem}; use --run.name to name the experiment")
        near = nearest(f"--{key}", options.names(), "")
        if "." not in key and f"--{key}" not in GROUPS and near:
            raise ConfigError(f"unknown option --{key}{near}")


def _start(job: Job, command: Sequence[str]) -> None:
    hold = Hold(job.log.parent, "another sweep is at work on this run", f".{job.log.stem}.lock")
    try:
        job.hold = hold.__enter__()
    except RunError as error:
        job.error = str(error)
        return
    # Unbuffered: lines of stdout and stderr reach the log in the order in which they were written. A session of its
    # own: Ctrl-C in the terminal comes to the sweep alone, which then stops the child's ranks together.
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", SWEEP: str(os.getpid())}
    if this_launch() is None:  # without the terminal of an interactive step the child would take it for one of srun
        variables.pop("SLURM_STEP_ID", None)
    job.start = time.monotonic()
    outputs: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
    with job.log.open("wb") as log:
        try:
            job.process = subprocess.Popen([*command, *job.arguments], stdout=log, env=variables, **outputs)
        except OSError as error:
            log.write(f"{command[0]}: {error.strerror}\n".encode())


def _finish(job: Job, index: SweepIndex) -> None:
    if job.hold is None:
        return  # another sweep runs it, and writes its log
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(job.hold.__exit__)
        _read_log(job, index)


def _read_log(job: Job, index: SweepIndex) -> None:
    lines = [line for line in job.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    paths = [line.removeprefix("run directory: ") for line in lines if line.startswith("run directory: ")]
    store = RunStore(paths[-1].strip()) if paths else None
    code = None if job.process is None else job.process.returncode
    job.store = store
    if code == 0 and store is not None and store.status == "complete":
        index.record(job.key, job.combination, store)
    elif code == 0:
        found = f"a complete result ({store.status}: {store.path})" if store else "naming its run directory"
        job.error = f"ended without {found}"
    elif code is not None and code < 0:
        job.error = f"ended by {signal.Signals(-code).name}"
    else:
        errors = [line for line in lines if line.startswith("fedrs fit: ")]
        job.error = (errors or lines or [f"exit code {code}"])[-1].strip().removeprefix("fedrs fit: ")


def _outcome(job: Job) -> str:
    if job.error is not None or job.store is None:
        return f"failed: {job.error} (log: {job.log})"
    return f"complete in {time.monotonic() - job.start:.0f} s, {job.store.path}"


def _stop(active: list[Job]) -> None:
    """Interrupt the children, wait until they left, and do not let one outlive the sweep."""
    processes = [job.process for job in active if job.process is not None]
    steps = ((signal.SIGINT, GRACE), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
    for number, seconds in steps:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # the group is gone: that is what is wanted
                os.killpg(process.pid, number)
        end = time.monotonic() + seconds
        try:
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):  # the next, harder signal follows
                    process.wait(max(0.0, end - time.monotonic()))
        except KeyboardInterrupt:
            continue
        if all(process.poll() is not None for process in processes):
            break
    for job in active:
        if job.hold is not None:
            job.hold.__exit__()


def _report(jobs: list[Job]) -> int:
    collection = collect([job.store for job in jobs if job.store is not None])
    Console(highlight=False).print(terminal(tabulate(collection), collection))
    failed = [job for job in jobs if job.error is not None]
    if failed:
        print(f"fedrs sweep: {len(failed)} of {len(jobs)} runs failed; {AGAIN} tries them again", file=sys.stderr)
        for job in failed:
            print(f"  {job.combination.title}: {job.error} (log: {job.log})", file=sys.stderr)
    return 2 if failed else 0


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Take SIGTERM and SIGHUP as Ctrl-C, unless ignored (nohup): children must not outlive a sweep.

    SIGINT counts in any case: a shell starts its background jobs with it ignored, children would inherit that, and it
    is the signal by which they are stopped.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
