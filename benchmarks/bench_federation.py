"""Federated averaging by this package beside a bare training loop and a plain FedAvg: seconds, CPU seconds, memory.

    python benchmarks/bench_federation.py [--jobs long short] [--repetitions 3] [--rounds 3] [--optimizer adam]

A ResNet-18 on two CPU processes of one thread each (`federated_job.py` says what each way does), same images, batches,
optimiser and allocator settings. `long`: 8 clients x 128 images of 64 x 64, batch 32. `short`: 64 clients x 16 images
of 32 x 32, one step a visit, where everything around the step counts. `many`: 512 such clients for one round, for its
memory alone.

The ways take turns, in an order that is reversed from repetition to repetition, and ratios are taken within one. Wall
seconds run from the first step to the last aggregation, less evaluation, which the other ways do not have; CPU seconds
are those of all processes until everything is on disk. Peak memory is sampled in runs of their own, of all processes
together, where shared pages count once. Wants two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import finish, report, scratch
from federated_job import PROCESSES, WAYS, Job, apart, read_job, write_job
from process_memory import KINDS, PeakMemory, memory

WORKER = Path(__file__).with_name("federated_job.py")
JOBS = {
    "long": Job(clients=8, images=128, side=64),
    "short": Job(clients=64, images=16, side=32),
    "many": Job(clients=512, images=16, side=32, rounds=1),
}
WALL = {"long": 1.05, "short": 1.25}
SHARE, MEMORY, MORE_CLIENTS = 0.03, 1.4, 1.05
IDLE = 0.95  # CPU seconds of the bare loop over seconds of its two processes, on an idle machine
Found = dict[str, Any]


def run(way: str, folder: Path, sampled: bool = False) -> Found:
    """Do a written job in one way; what its processes report, and their peak memory where it is sampled.

    Raises:
        SystemExit: a process failed; its last lines are shown.
    """
    for path in (*folder.glob("rank-*"), *folder.glob("ready-*"), folder / "rendezvous"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "run", ignore_errors=True)
    base = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    base |= {"OMP_NUM_THREADS": "1"}
    starts_itself = way in ("project", "quiet")
    ranks: list[dict[str, str]] = [{}] if starts_itself else [{"RANK": str(rank)} for rank in range(PROCESSES)]
    command = [sys.executable, str(WORKER), way, str(folder)]
    with (folder / "errors.txt").open("w") as errors:
        processes = [subprocess.Popen(command, env=base | more, stderr=errors) for more in ranks]
        watch = PeakMemory([process.pid for process in processes]) if sampled else None
        codes = [process.wait() for process in processes]
    peak = watch.stop() if watch is not None else {}
    if any(codes):
        print((folder / "errors.txt").read_text()[-2000:], file=sys.stderr)
        raise SystemExit(f"bench_federation: {way} ended with {codes}")
    marks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(PROCESSES)]
    start = min(mark["start"] for mark in marks)
    end = marks[0]["aggregated"] if starts_itself else max(mark["aggregated"] for mark in marks)
    whole = max(mark["stop"] for mark in marks) - start
    shutil.rmtree(folder / "run", ignore_errors=True)
    return {
        "wall": end - start - sum(timing.get("evaluate", 0.0) for timing in marks[0]["timing"][:-1]),
        "whole": whole,
        "cpu": sum(mark["cpu"] for mark in marks),
        "timing": marks[0]["timing"],
        "peak": peak,
    }


def repeat(ways: Sequence[str], folder: Path, repetitions: int) -> dict[str, list[Found]]:
    """Every way so many times, in turns."""
    found: dict[str, list[Found]] = {way: [] for way in ways}
    for number in range(repetitions):
        for way in ways if number % 2 == 0 else tuple(reversed(ways)):
            found[way].append(run(way, folder))
            last = found[way][-1]
            print(f"     {way:8} {last['wall']:7.2f} s, {last['cpu']:7.2f} s of CPU", flush=True)
    return found


def ratio(found: dict[str, list[Found]], way: str, other: str, what: str) -> float:
    """Median over repetitions of one way's value over the other's beside it."""
    return statistics.median(ours[what] / theirs[what] for ours, theirs in zip(found[way], found[other], strict=True))


def waited(found: Sequence[Found]) -> float:
    """Share of rounds that the round loop spends on logs and checkpoints, by the timing of the records.

    A round's checkpoint is counted with the next round, so the first is left out.
    """
    rounds = [timing for one in found for timing in (one["timing"][1:] or one["timing"])]
    return sum(timing.get("log", 0.0) + timing.get("checkpoint", 0.0) for timing in rounds) / sum(
        timing["seconds"] for timing in rounds
    )


def seconds(name: str, folder: Path, repetitions: int) -> list[bool]:
    """Times of one job, and which goals are met."""
    found = repeat(tuple(WAYS), folder, repetitions)
    job = read_job(folder)
    if job.images <= job.batch_size:  # with several batches their order would count
        print(f"     plain and project ended {apart(folder):.5f} of their way apart")
    idle = min(one["cpu"] / one["whole"] / PROCESSES for one in found["bare"])
    if idle < IDLE:
        print(f"     the bare loop got {idle:.0%} of its cores: other work ran, and only CPU seconds can be compared")
    for way in ("plain", "project", "quiet"):
        print(
            f"     {way} over bare: {ratio(found, way, 'bare', 'wall'):.3f} of its seconds, "
            f"{ratio(found, way, 'bare', 'whole'):.3f} until all is on disk, "
            f"{ratio(found, way, 'bare', 'cpu'):.3f} of its CPU seconds"
        )
    met = [report(f"{name}: project over bare", ratio(found, "project", "bare", "wall"), WALL[name], at_most=True)]
    if name == "short":
        met.append(report(f"{name}: project over plain", ratio(found, "project", "plain", "wall"), 1.0, at_most=True))
    without = 1 - ratio(found, "quiet", "project", "wall")
    print(f"     logs and checkpoints, from a run without them: {without:.3f} of the seconds")
    share = waited(found["project"])
    if name == "long":
        met.append(report(f"{name}: share of logs and checkpoints in a round", max(share, 0.0), SHARE, at_most=True))
        met.append(report(f"{name}: the same, from a run without them", without, SHARE, at_most=True))
    else:
        print(f"     logs and checkpoints, by the timing of rounds: {share:.3f}")
    return met


def peaks(ways: Sequence[str], folder: Path) -> dict[str, float]:
    """Peak memory of each way in bytes, printed by kind."""
    found = {}
    for way in ways:
        peak = run(way, folder, sampled=True)["peak"]
        found[way] = float(sum(peak.values()))
        own, shared, files = (peak[kind] / 1e6 for kind in KINDS)
        print(
            f"     {way:8} {found[way] / 1e6:6.0f} MB at most: own {own:.0f}, shared {shared:.0f}, mapped files "
            f"{files:.0f}",
            flush=True,
        )
    return found


def imported() -> None:
    """Print what importing this package costs a process over importing torch and torchvision."""
    texts = {
        "torch and torchvision": "import torch, torchvision",
        "this package's engine as well": "import torch, torchvision, fedrs_lightning.engine.engine, "
        "fedrs_lightning.engine.ranks.strategy, fedrs_lightning.tasks.classification, fedrs_lightning.methods.fedmad, "
        "fedrs_lightning.data.clients.dataset",
    }
    for name, text in texts.items():
        program = f"{text}\nprint(flush=True)\ninput()"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            found = memory([process.pid])
            process.stdin.write("\n")
        print(
            f"     a process that imported {name}: own memory {found['own'] / 1e6:.0f} MB, "
            f"mapped files {found['files'] / 1e6:.0f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="default: all")
    parser.add_argument("--repetitions", type=int, default=3, help="default 3; 0 samples memory alone")
    parser.add_argument("--rounds", type=int, help="of the jobs long and short (default 3)")
    parser.add_argument("--clients", type=int, help="fewer clients, for a look")
    parser.add_argument("--width", type=int, help="a narrower network, for a look")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--no-memory", action="store_true", help="time alone")
    options = parser.parse_args()
    place = scratch()
    results: list[bool] = []
    largest: dict[str, float] = {}
    for name in options.jobs:
        job = replace(JOBS[name], optimizer=options.optimizer)
        job = replace(job, clients=options.clients or job.clients, width=options.width or job.width)
        job = replace(job, rounds=job.rounds if name == "many" else options.rounds or job.rounds)
        print(f"{name}: {job}", flush=True)
        write_job(job, place / name)
        if name != "many" and options.repetitions:
            results += seconds(name, place / name, options.repetitions)
        if not options.no_memory:
            ways = ("bare", "project") if name == "many" else ("bare", "plain", "project")
            found = peaks(ways, place / name)
            print(f"     peak memory, project over bare: {found['project'] / found['bare']:.3f}")
            largest[name] = found["project"]
            if name == "short":
                goal = f"{name}: peak memory of all processes, project over bare"
                results.append(report(goal, found["project"] / found["bare"], MEMORY, at_most=True))
    if not options.no_memory:
        imported()
    if {"short", "many"} <= largest.keys():
        more = largest["many"] / largest["short"]
        results.append(report("peak memory with 512 clients over that with 64", more, MORE_CLIENTS, at_most=True))
    shutil.rmtree(place)
    finish(results)


if __name__ == "__main__":
    main()
