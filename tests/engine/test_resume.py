"""A killed run, continued, ends in the same bits as the unbroken one."""

import json
import os
import random
import shutil
import signal
import time
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from fedrs_lightning import files
from fedrs_lightning.engine.checkpoint import Checkpoint, CheckpointStore
from fedrs_lightning.errors import RunError
from fedrs_lightning.methods import FedAvg, FedBN, FedMAD

from .conftest import run

ROUNDS = 4


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """`unbroken(method, rounds)`: what a run that nothing stopped ends in."""
    return cache(lambda method, rounds=ROUNDS: run(method, tmp_path_factory.mktemp("unbroken"), num_rounds=rounds))


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """`begun(method, done, rounds, path)`: in `path` lies a run of `rounds` rounds, stopped after `done`."""

    @cache
    def of(method, done, rounds):
        path = tmp_path_factory.mktemp("begun") / "run"
        run(method, path, num_rounds=rounds, before=lambda engine: setattr(engine.schedule, "num_rounds", done))
        return path

    return lambda method, done, path, rounds=ROUNDS: shutil.copytree(of(method, done, rounds), path)


def in_child(body) -> int:
    """Run `body` in a forked process; returns its raw wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def same(outcome, reference, rounds: int = ROUNDS) -> None:
    assert outcome.digest == reference.digest
    assert outcome.history == reference.history
    assert outcome.clients == reference.clients
    assert outcome.round == rounds


def test_kill_at_random_moments(tmp_path):
    """SIGKILL at ten random moments, each of an unfinished run and each followed by a resume; then the same bits."""
    rounds, dice = 8, random.Random(7)
    start = time.perf_counter()
    reference = run(FedMAD, tmp_path / "unbroken", num_rounds=rounds)
    duration = time.perf_counter() - start
    interrupted, attempt, reached = 0, 0, set()
    while interrupted < 10:
        path = tmp_path / f"killed-{attempt}"
        child = os.fork()
        if child == 0:
            run(FedMAD, path, num_rounds=rounds)
            os._exit(0)
        time.sleep(dice.uniform(0.02, 0.5) * duration)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = max(CheckpointStore(path / "checkpoints").rounds(), default=0)
        if done < rounds:
            interrupted += 1
            reached.add(done)
        else:
            same(run(FedMAD, path, num_rounds=rounds), reference, rounds)
            attempt += 1
    same(run(FedMAD, path, num_rounds=rounds), reference, rounds)
    assert len(reached) > 1, "every kill hit the same round"
    assert not list(tmp_path.rglob("*.tmp"))


def test_kill_at_every_write_of_a_round(tmp_path, unbroken, begun):
    """SIGKILL half-way through, just before and just after each file of a round: client memories and the checkpoint."""
    rounds = 3
    reference = unbroken(FedBN, rounds)
    writes = 4 + 1  # four clients, one checkpoint
    replace = os.replace
    for target in range(writes):
        for moment in ("half", "before", "after"):
            path = tmp_path / f"{target}-{moment}"
            begun(FedBN, 2, path, rounds)
            count = 0

            def deadly(source, destination, target=target, moment=moment):
                nonlocal count
                if count == target:
                    if moment == "half":
                        os.truncate(source, Path(source).stat().st_size // 2)
                        replace(source, f"{destination}.tmp")
                    if moment == "after":
                        replace(source, destination)
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                replace(source, destination)

            def body(path=path, deadly=deadly):
                files.os.replace = deadly
                run(FedBN, path, num_rounds=rounds)

            status = in_child(body)
            assert os.WIFSIGNALED(status), (target, moment)
            same(run(FedBN, path, num_rounds=rounds), reference, rounds)


def test_resume_on_another_number_of_ranks(tmp_path, unbroken):
    reference = unbroken(FedMAD)
    path = tmp_path / "moved"
    run(FedMAD, path, world_size=2, num_rounds=ROUNDS, before=lambda engine: setattr(engine.schedule, "num_rounds", 3))
    same(run(FedMAD, path, world_size=3, num_rounds=ROUNDS), reference)


def test_half_a_log_line_and_files_of_a_later_round_are_ignored(tmp_path, unbroken, begun):
    reference = unbroken(FedBN)
    path = begun(FedBN, 3, tmp_path / "torn")
    with (path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 4, "metrics": {}})[:17])
    (path / "clients" / "000001.r00004.safetensors").write_bytes(b"rubbish")
    same(run(FedBN, path, num_rounds=ROUNDS), reference)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["cut", "flip", "memory", "memory bit", "memories swapped"])
def test_a_damaged_checkpoint_falls_back_and_says_so(damage, tmp_path, unbroken, begun):
    reference = unbroken(FedBN)
    path = begun(FedBN, 3, tmp_path / "damaged")
    newest = path / "checkpoints" / "round-00003.safetensors"
    if damage == "cut":
        os.truncate(newest, newest.stat().st_size - 100)
    elif damage == "flip":
        flip_a_bit(newest)
    else:
        first, *_, victim = sorted((path / "clients").glob("*.r00003.safetensors"))
        if damage == "memory":
            os.truncate(victim, 40)
        elif damage == "memory bit":
            flip_a_bit(victim)
        else:
            aside = victim.with_name("aside")
            victim.rename(aside)
            first.rename(victim)
            aside.rename(first)
    with pytest.warns(UserWarning, match="Falling back to the checkpoint of round 2"):
        outcome = run(FedBN, path, num_rounds=ROUNDS)
    same(outcome, reference)


def test_no_usable_checkpoint_is_an_error(tmp_path):
    path = tmp_path / "lost"
    run(FedAvg, path, num_rounds=2)
    for file in (path / "checkpoints").iterdir():
        file.write_bytes(b"\0" * 20)
    with pytest.raises(RunError, match=r"no usable checkpoint: .*round-00002.*round-00001.*start again"):
        run(FedAvg, path, num_rounds=3)


def test_a_warning_from_the_scheduler_stops_all_ranks_at_the_end_of_the_round(tmp_path, unbroken):
    """Only rank 1 gets the signal; both stop after the same round, and the run continues to the same bits."""
    reference = unbroken(FedMAD)
    path = tmp_path / "preempted"

    def arm(engine):
        from fedrs_lightning.engine.ranks.preemption import Preemption

        engine.preemption = Preemption()
        train = engine.local.train

        def watched(client, round, server):
            if engine.rank == 1 and round == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
            return train(client, round, server)

        engine.local.train = watched

    before = signal.getsignal(signal.SIGUSR1)
    try:
        stopped = run(FedMAD, path, world_size=2, num_rounds=ROUNDS, before=arm)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopped.preempted
    assert stopped.round == 2
    same(run(FedMAD, path, num_rounds=ROUNDS), reference)


def test_old_versions_go_and_named_ones_stay(tmp_path):
    path = tmp_path / "kept"
    run(FedBN, path, num_rounds=ROUNDS)
    assert [file.name for file in sorted((path / "checkpoints").iterdir())] == [
        "round-00003.safetensors",
        "round-00004.safetensors",
    ]
    store = CheckpointStore(path / "checkpoints")
    named = {f"{client:06d}.r{round:05d}.safetensors" for kept in (3, 4) for client, round in store.index(kept).items()}
    assert {file.name for file in (path / "clients").iterdir()} == named
    assert not list((path / "spool").rglob("*.safetensors"))


def test_the_best_round_on_validation_data_keeps_its_checkpoint(tmp_path):
    from .conftest import make_federation

    path = tmp_path / "best"
    outcome = run(
        FedBN,
        path,
        num_rounds=6,
        federation=make_federation(validation=20),
        optimizer=partial(torch.optim.Adam, lr=0.05),
    )
    values = [record["metrics"]["validation/overall_accuracy"] for record in outcome.history]
    best = values.index(max(values)) + 1
    assert set(CheckpointStore(path / "checkpoints").rounds()) == {best, 5, 6}


def test_an_empty_state_is_stored(tmp_path):
    store = CheckpointStore(Path(tmp_path))
    store.save(Checkpoint(1, {}))
    assert store.newest().server == {}
