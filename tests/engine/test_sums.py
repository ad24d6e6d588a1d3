"""Sums that several real processes add to, in whatever order they finish."""

import multiprocessing
import os
import time

import pytest
import torch

from fedrs_lightning.engine.ranks.shared import Block, Neighbours, Room
from fedrs_lightning.engine.ranks.sums import Ledger, RunningSum, SharedSum
from fedrs_lightning.errors import TrainingError
from fedrs_lightning.flat import FlatLayout, flat_copy
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.states import digest, flat_sum

FORK = multiprocessing.get_context("fork")


def some_state(client: int) -> dict[str, torch.Tensor]:
    rng = numpy_stream("sums", client)
    weight, bias = (torch.from_numpy(rng.normal(size=size)).float() for size in (70_001, 3))
    return {"weight": weight, "count": torch.tensor(int(rng.integers(99))), "bias": bias}


LAYOUT = FlatLayout.of(some_state(0))


class Machine:
    """Blocks of one sum, as rank 0 makes them, and what each process needs to take part."""

    def __init__(self, folder, num_clients: int) -> None:
        self.folder = folder
        self.total = Block.in_memory(RunningSum.size_of(LAYOUT), folder)
        self.ledger = Block.in_memory(Ledger.size_of(num_clients), folder)
        Ledger(self.ledger).begin()

    def member(self) -> SharedSum:
        neighbours = Neighbours(0, lambda value: [value], self.folder)
        total = RunningSum(LAYOUT, neighbours.read(self.total.place(0, len(self.total.data))))
        ledger = Ledger(Block.opened(self.ledger.path, len(self.ledger.data)))
        return SharedSum(total, ledger, neighbours.read, refuse)


def refuse(position, state):
    if not torch.isfinite(state.view(torch.float32)[:70_001]).all():
        raise TrainingError(f"upload {position} is not finite")


@pytest.mark.parametrize("budget", [2**30, 0.0])
@pytest.mark.parametrize("late", [0, 1, None])
def test_the_bits_do_not_depend_on_who_comes_when(late, budget, tmp_path):
    """Three processes with a share of 12 clients each; the one that is late holds all others up to the end."""
    clients, weights = range(12), torch.arange(1, 13, dtype=torch.float64) / 78
    machine = Machine(tmp_path, len(clients))
    done = FORK.Barrier(4)

    def work(rank: int) -> None:
        member, rng = machine.member(), numpy_stream("pauses", rank)
        room = Room(budget, tmp_path / str(rank))
        member.begin(weights.tolist())
        if rank == late:
            time.sleep(0.4)
        for client in clients[rank::3]:
            time.sleep(float(rng.uniform(0, 0.01)))
            data, place = room.take(LAYOUT.size)
            flat_copy(some_state(client), LAYOUT, data)
            member.put(client, place)
        done.wait(60)
        done.wait(60)  # what waits lies in this process

    processes = [FORK.Process(target=work, args=(rank,)) for rank in range(3)]
    for process in processes:
        process.start()
    server = machine.member()
    server.begin(weights.tolist())
    done.wait(60)
    out = flat_copy({}, LAYOUT)
    server.finish(out.data)
    done.wait(60)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    expected = flat_sum([flat_copy(some_state(client), LAYOUT) for client in clients], some_state(0), weights)
    assert digest(out) == digest(expected)


def test_a_process_that_dies_while_it_adds_lets_go(tmp_path):
    machine = Machine(tmp_path, 1)

    def die() -> None:
        with machine.member().ledger.adding() as held:
            os._exit(7 if held else 8)

    process = FORK.Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == 7
    with machine.member().ledger.adding() as held:
        assert held
        with machine.member().ledger.adding() as other:
            assert not other


def test_an_upload_that_is_not_finite_is_refused_by_name(tmp_path):
    machine = Machine(tmp_path, 3)
    member, room = machine.member(), Room(2**30, tmp_path)
    member.begin([0.2, 0.3, 0.5])
    for position in range(3):
        data, place = room.take(LAYOUT.size)
        state = flat_copy(some_state(position), LAYOUT, data)
        if position == 1:
            state["weight"][70_000] = float("nan")
        member.ledger.post(position, place)
    with pytest.raises(TrainingError, match="upload 1"):
        member.advance()


def test_an_upload_of_an_earlier_round_is_not_posted_any_more(tmp_path):
    machine = Machine(tmp_path, 2)
    member = machine.member()
    member.ledger.post(1, machine.total.place(0, 64))
    assert member.ledger.posted(1).size == 64
    assert member.ledger.posted(0) is None
    member.ledger.begin()
    assert member.ledger.posted(1) is None


def test_rooms_fill_memory_first_and_then_files_and_are_used_again(tmp_path):
    room = Room(3 * 4096, tmp_path / "room")
    for _ in range(2):
        places = [room.take(4096)[1].path for _ in range(5)]
        assert [path.startswith(str(tmp_path)) for path in places] == [False] * 3 + [True] * 2
        room.clear()
    assert len(list((tmp_path / "room").iterdir())) == 1
    room.close()
    assert not list((tmp_path / "room").iterdir())
