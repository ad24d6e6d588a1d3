"""What is written behind is written in the same order, to the same end, and its failures are told as if it were not."""

import errno
import os
import random
import signal
import threading
import time
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from fedrs_lightning.engine import memory as memory_module
from fedrs_lightning.engine.checkpoint import CheckpointStore
from fedrs_lightning.engine.cohort import assign
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.engine.writing import Writer
from fedrs_lightning.errors import RunError, TrainingError
from fedrs_lightning.methods import FedAvg, FedBN, LocalOnly
from fedrs_lightning.results.store import RunStore

from .conftest import make_engine, on_ranks, run
from .test_resume import in_child, same

ROUNDS = 3
FEDBN = {"num_rounds": ROUNDS, "clients_per_round": None}
MANY = {"num_rounds": 7, "clients_per_round": None, "evaluate_every": 100}  # the first three are not evaluated


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run that writes nothing behind."""
    return run(FedBN, tmp_path_factory.mktemp("at-once"), options={"write_behind": False, "memory_cache": 0}, **FEDBN)


@pytest.fixture(scope="module")
def lagging(tmp_path_factory):
    """What the run ends in whose rank 1 is killed."""
    return run(LocalOnly, tmp_path_factory.mktemp("unbroken"), **MANY)


def until(true, seconds=20.0):
    """Wait for something that another thread does; ends the process where it never comes."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            os._exit(77)
        time.sleep(0.002)


def ahead(engine, round):
    """Until the thread that trains is in a round after `round`."""
    until(lambda: engine.round > round)


# The thread.


def test_work_is_done_in_order_beside_the_caller_and_drained():
    done, go = [], threading.Event()
    writer = Writer()
    writer.submit(lambda: (go.wait(10), done.append((0, threading.current_thread()))))
    for number in range(1, 20):
        writer.submit(lambda number=number: done.append((number, threading.current_thread())))
    assert done == []
    go.set()
    writer.drain()
    assert [number for number, _ in done] == list(range(20))
    assert {thread for _, thread in done} != {threading.current_thread()}
    taken = writer.take()
    assert taken["behind"] > 0
    assert taken["wait"] > 0
    assert writer.take() == {"behind": 0.0, "wait": 0.0}


@pytest.mark.parametrize("behind", [True, False])
def test_nothing_is_done_after_a_failure(behind):
    def fail():
        raise RunError("the disk is gone")

    done = []
    writer = Writer(behind)
    with pytest.raises(RunError, match="the disk is gone"):  # noqa: PT012
        writer.submit(partial(done.append, 1))
        writer.submit(fail)
        writer.submit(partial(done.append, 2))
        writer.drain()
    with pytest.raises(RunError, match="the disk is gone"):
        writer.submit(partial(done.append, 3))
    writer.end(1.0)
    assert done == [1]


def test_after_an_error_there_is_time_for_what_counts_and_no_more():
    hold, done = threading.Event(), []
    writer = Writer()
    counts = writer.submit(partial(done.append, "counts"))
    writer.submit(hold.wait)
    writer.submit(partial(done.append, "does not"))
    writer.end(20.0, counts)
    assert done == ["counts"]
    hold.set()
    until(lambda: not any(thread.name.startswith("writer") for thread in threading.enumerate()))
    assert done == ["counts"]


# Client memory.


def one(value):
    return {"model/w": torch.full((50,), float(value)), "own/v": torch.tensor([float(value)])}


@pytest.mark.parametrize("budget", [0.0, 300.0, 1e9])
def test_a_memory_is_a_copy_of_what_was_given(budget, tmp_path):
    """Whether it lies at hand or in its file, and in the layout of the file."""
    writer = Writer()
    memory = ClientMemory(tmp_path, writer, budget)
    for round in (1, 2):
        for client in range(4):
            live = one(10 * round + client) | {"model/c": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)}
            expected = {key: value.clone() for key, value in live.items()}
            memory.save(client, round, live)
            for value in live.values():
                value.fill_(-1.0)
            memory.commit([client], round)
            loaded = memory.load(client)
            assert loaded.keys() == expected.keys()
            assert all(torch.equal(loaded[key], value) for key, value in expected.items())
            assert all(value.is_contiguous() for value in loaded.values())
            held = sum(kept.size for kept in memory._kept.values())
            assert held <= budget
    writer.drain()
    fresh = ClientMemory(tmp_path)
    fresh.restart(memory.index, 2)
    for client in range(4):
        assert torch.equal(fresh.load(client)["own/v"], one(20 + client)["own/v"])


def test_what_another_rank_has_written_since_is_not_taken_from_hand(tmp_path):
    mine, other = ClientMemory(tmp_path, budget=1e9), ClientMemory(tmp_path, budget=1e9)
    mine.save(1, 1, one(1))
    for memory in (mine, other):
        memory.commit([1], 1)
    other.save(1, 2, one(2))
    for memory in (mine, other):
        memory.commit([1], 2)
    assert mine.load(1)["own/v"].item() == 2.0
    assert not mine._kept


def test_a_file_that_another_rank_has_not_finished_is_waited_for(tmp_path):
    writer, go = Writer(), threading.Event()
    theirs, mine = ClientMemory(tmp_path, writer), ClientMemory(tmp_path)
    writer.submit(go.wait)
    theirs.save(3, 1, one(3))
    mine.commit([3], 1)
    threading.Timer(0.2, go.set).start()
    assert mine.load(3)["own/v"].item() == 3.0
    assert mine.writer.take()["wait"] > 0.1
    writer.drain()


def test_a_rank_that_cannot_write_is_not_waited_for(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    theirs, mine = ClientMemory(tmp_path, Writer()), ClientMemory(tmp_path)
    monkeypatch.setattr(memory_module, "save_file", lambda state, path, metadata: (_ for _ in ()).throw(full))
    theirs.save(3, 1, one(3))
    mine.commit([3, 4], 1)
    with pytest.raises(RunError, match=r"000003\.r00001\.safetensors: No space left on device; free some"):
        mine.load(4)
    with pytest.raises(RunError, match=r"000003\.r00001\.safetensors: No space left on device; free some"):
        theirs.writer.drain()
    mine.clear_leftovers(0)
    assert not list(tmp_path.iterdir())


def test_patience_ends(tmp_path, monkeypatch):
    memory = ClientMemory(tmp_path)
    memory.commit([4], 1)
    monkeypatch.setattr(memory_module, "PATIENCE", 0.1)
    with pytest.raises(RunError, match=r"000004\.r00001\.safetensors: the rank that trained this client has not wri"):
        memory.load(4)
    memory.settled = 1
    with pytest.raises(RunError, match="cannot read the memory of client 4"):
        memory.load(4)


def test_files_of_the_next_round_are_not_pruned(tmp_path):
    memory = ClientMemory(tmp_path)
    for round in (1, 2, 3):
        memory.save(0, round, one(round))
    (tmp_path / ".000001.r00003.safetensors.7.tmp").touch()
    memory.prune([{0: 2}], 2)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"000000.r00002.safetensors", "000000.r00003.safetensors", ".000001.r00003.safetensors.7.tmp"}


# A run.


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("budget", [0.0, 3000.0, 1e9])
def test_written_behind_or_not_the_run_is_the_same(world_size, budget, tmp_path, reference):
    """Also when the writer is slow, and whatever of the memories stays at hand."""

    def slow(engine):
        submit = engine.writer.submit
        engine.writer.submit = lambda work: submit(lambda: (time.sleep(0.02), work()))

    outcome = run(FedBN, tmp_path, world_size, before=slow, options={"memory_cache": budget}, **FEDBN)
    same(outcome, reference, ROUNDS)


def test_clients_are_evaluated_where_their_memory_is_at_hand(tmp_path, reference):
    """No file is read in a run that continues nothing and always has all clients."""

    def body(fabric):
        engine = make_engine(fabric, FedBN(), tmp_path, **FEDBN)
        engine.resume()
        read = []
        memory_module._read = lambda path, *_: read.append(path)
        engine.fit()
        return engine.exchange.collect(read)

    assert on_ranks(2, body) == [[], []]
    assert RunStore(tmp_path).history() == reference.history


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_place_to_be_makes_no_rank_busier(world_size):
    dice = random.Random(world_size)
    for _ in range(200):
        costs = {client: float(dice.randint(1, 30)) for client in range(dice.randint(1, 12))}
        homes = {client: dice.randrange(world_size) for client in costs if dice.random() < 0.8}
        plain, placed = assign(costs, world_size), assign(costs, world_size, homes)
        busiest = [max(sum(costs[client] for client in share) for share in shares) for shares in (plain, placed)]
        assert busiest[1] <= busiest[0]
        assert sorted(client for share in placed for client in share) == sorted(costs)
        at_home = {client: rank for rank, share in enumerate(plain) for client in share}
        assert assign(costs, world_size, at_home) == plain
    equal = assign(dict.fromkeys(range(6), 1.0), 2, {0: 1, 1: 1, 2: 1, 3: 0, 4: 0, 5: 0})
    assert equal == [[3, 4, 5], [0, 1, 2]]


@pytest.mark.parametrize("behind", [True, False])
def test_a_method_may_write_to_its_memory(behind, tmp_path):
    """And the copy at hand, which may still be on its way to the file, stays what it was."""

    class Counting(FedAvg):
        def on_local_start(self, local):
            local.memory.setdefault("counting/visits", torch.zeros(1)).add_(1)

    run(Counting, tmp_path, options={"write_behind": behind}, **FEDBN)
    for round in (2, 3):
        visits = [load_file(path) for path in (tmp_path / "clients").glob(f"*.r{round:05d}.*")]
        assert [visit["counting/visits"].item() for visit in visits] == [float(round)] * 6


def test_the_writer_lags_one_round_at_most(tmp_path):
    """A round is handed in once the one before is saved, and trains before that."""
    events = []

    def watch(engine):
        save, train = engine.checkpoints.save, engine.local.train

        def slowly(checkpoint):
            if checkpoint.round < ROUNDS:
                ahead(engine, checkpoint.round)
                time.sleep(0.2)
            save(checkpoint)
            events.append(("saved", checkpoint.round))

        def noted(client, round, server):
            events.append(("trains", round))
            return train(client, round, server)

        engine.checkpoints.save, engine.local.train = slowly, noted

    run(FedBN, tmp_path, before=watch, **FEDBN)
    order = list(dict.fromkeys(events))
    assert order.index(("trains", 2)) < order.index(("saved", 1)) < order.index(("trains", 3))
    assert [event for event in order if event[0] == "saved"] == [("saved", round) for round in (1, 2, 3)]
    timings = [record["timing"] for record in RunStore(tmp_path).rounds()]
    assert timings[0].keys() == timings[1].keys()
    assert timings[1]["behind"] > 0.2
    assert timings[1]["wait"] > 0
    parts = ("train", "exchange", "evaluate", "checkpoint")
    assert timings[1]["seconds"] == pytest.approx(sum(timings[1][part] for part in parts))


STEPS = {
    "append_clients": lambda engine: engine.store,
    "append_round": lambda engine: engine.store,
    "sync": lambda engine: engine.store,
    "wait_for": lambda engine: engine.memory,
    "save": lambda engine: engine.checkpoints,
    "prune": lambda engine: engine.memory,
    "log_dict": lambda engine: engine.fabric,
}


@pytest.mark.parametrize("step", STEPS)
def test_kill_between_the_steps_of_a_commit_while_the_next_round_trains(step, tmp_path, reference):
    for moment in ("before", "after"):

        def arm(engine, moment=moment):
            owner = STEPS[step](engine)
            commit, does, rounds = engine._commit, getattr(owner, step), []

            def noted(rows, record, checkpoint):
                rounds.append(checkpoint.round)
                commit(rows, record, checkpoint)

            engine._commit = noted

            def deadly(*args, **kwargs):
                last = rounds[-1:] == [2]
                if not last or moment == "after":
                    does(*args, **kwargs)
                if last:
                    ahead(engine, 2)
                    os.kill(os.getpid(), signal.SIGKILL)

            setattr(owner, step, deadly)

        path = tmp_path / moment
        status = in_child(partial(run, FedBN, path, before=arm, **FEDBN))
        assert os.WIFSIGNALED(status), (step, moment, status)
        same(run(FedBN, path, **FEDBN), reference, ROUNDS)
        assert not list(path.rglob("*.tmp"))


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_kill_of_another_rank_that_lags(moment, tmp_path, lagging):
    """Rank 1 dies in round 3, at the first of its memories of round 2: that round was no checkpoint yet."""
    path = tmp_path / "killed"

    def arm(engine):
        written = memory_module.save_file

        def deadly(state, place, metadata):
            last = engine.rank == 1 and ".r00002." in place.name
            if last:
                ahead(engine, 2)
            if not last or moment != "before":
                written(state, place, metadata)
            if last and moment == "half":
                os.truncate(place, place.stat().st_size // 2)
            if last and moment == "after":
                place.rename(place.parent / f"{place.name[1:].partition('.safetensors')[0]}.safetensors")
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

        memory_module.save_file = deadly

    with pytest.raises(Exception, match="SIGKILL"):
        run(LocalOnly, path, 2, before=arm, **MANY)
    assert CheckpointStore(path / "checkpoints").rounds() == [1]
    same(run(LocalOnly, path, **MANY), lagging, MANY["num_rounds"])


# Failures.


def failing(tmp_path, spoil, kind=RunError):
    """Messages of both ranks, and how long a run of two ranks took to fail."""

    def body(fabric):
        engine = make_engine(fabric, FedBN(), tmp_path, **FEDBN)
        engine.resume()
        spoil(engine)
        start = time.monotonic()
        try:
            engine.fit()
        except kind as error:
            return engine.exchange.collect((str(error), time.monotonic() - start))
        return []

    return on_ranks(2, body)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_memory_that_cannot_be_written_is_told_on_all_ranks(rank, tmp_path, reference):
    def spoil(engine):
        written = memory_module.save_file

        def full(state, place, metadata):
            if engine.rank == rank and ".r00002." in place.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            written(state, place, metadata)

        memory_module.save_file = full

    messages = failing(tmp_path, spoil)
    assert len(messages) == 2
    assert len({text for text, _ in messages}) == 1
    assert "r00002.safetensors: No space left on device; free some, then run the same command again" in messages[0][0]
    assert max(seconds for _, seconds in messages) < 10
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [1]
    same(run(FedBN, tmp_path, **FEDBN), reference, ROUNDS)
    assert not list(tmp_path.rglob("*.failed"))


def test_a_checkpoint_that_cannot_be_written_is_told_on_all_ranks(tmp_path, reference):
    def spoil(engine):
        save = engine.checkpoints.save

        def full(checkpoint):
            if checkpoint.round == 2:
                raise OSError(errno.EDQUOT, "Disk quota exceeded", str(engine.checkpoints.path(2)))
            save(checkpoint)

        engine.checkpoints.save = full

    messages = failing(tmp_path, spoil)
    assert len(messages) == 2
    assert len({text for text, _ in messages}) == 1
    assert "round-00002.safetensors: Disk quota exceeded; free some" in messages[0][0]
    same(run(FedBN, tmp_path, **FEDBN), reference, ROUNDS)


def test_a_logger_that_fails_ends_the_run_and_its_round_is_saved(tmp_path, reference):
    def spoil(engine):
        def refuse(values, step):
            if step == 2:
                raise ValueError("the chart is closed")

        engine.fabric.log_dict = refuse

    with pytest.raises(ValueError, match="the chart is closed"):
        run(FedBN, tmp_path, before=spoil, **FEDBN)
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [1, 2]
    same(run(FedBN, tmp_path, **FEDBN), reference, ROUNDS)


def test_the_last_round_is_met_before_the_run_ends(tmp_path):
    def spoil(engine):
        engine.checkpoints.save = lambda checkpoint: (_ for _ in ()).throw(RunError("nowhere to write"))

    with pytest.raises(RunError, match="nowhere to write"):
        run(FedBN, tmp_path, before=spoil, **FEDBN | {"num_rounds": 1})


@pytest.mark.filterwarnings("error:.*could not be saved")
@pytest.mark.parametrize("error", [TrainingError("diverged"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_round_that_has_ended_is_saved_although_the_next_one_fails(error, tmp_path):
    def arm(engine):
        save, train, failed = engine.checkpoints.save, engine.local.train, threading.Event()

        def slowly(checkpoint):
            if checkpoint.round == 2:
                failed.wait(20)
                time.sleep(0.1)
            save(checkpoint)

        def fails(client, round, server):
            if round == 3:
                failed.set()
                raise error
            return train(client, round, server)

        engine.checkpoints.save, engine.local.train = slowly, fails

    with pytest.raises(type(error)):
        run(FedBN, tmp_path, before=arm, **FEDBN)
    assert CheckpointStore(tmp_path / "checkpoints").rounds() == [1, 2]
    assert [record["round"] for record in RunStore(tmp_path).rounds()] == [1, 2]


def test_a_round_that_has_ended_and_cannot_be_saved_is_named(tmp_path, monkeypatch, reference):
    """Its files never come, for example of a rank that is gone: the run ends soon, and says what that costs."""
    monkeypatch.setattr(memory_module, "GRACE", 0.2)

    def arm(engine):
        named, train = engine.memory.named, engine.local.train
        lost = engine.memory.path(99, 2)
        engine.memory.named = lambda round, index: named(round, index) + [lost] * (round == 2)

        def fails(client, round, server):
            if round == 3:
                raise TrainingError("diverged")
            return train(client, round, server)

        engine.local.train = fails

    with (
        pytest.warns(UserWarning, match=r"round 2 has ended but could not be saved \(.*000099.*; the same command"),
        pytest.raises(TrainingError, match="diverged"),
    ):
        run(FedBN, tmp_path, before=arm, **FEDBN)
    same(run(FedBN, tmp_path, **FEDBN), reference, ROUNDS)
