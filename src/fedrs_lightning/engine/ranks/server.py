"""The server state where every rank can read it: written once, in memory that the ranks of a machine share.

Two blocks take turns, so that a state stays as it is until the aggregation of the round after the next begins: clients
may train from it and a thread may write it to disk meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.engine.ranks.shared import Block, Neighbours, Room
from fedrs_lightning.flat import FlatLayout, FlatState, flat_copy
from fedrs_lightning.types import State


@dataclass
class Published:
    """A server state in host memory.

    Attributes:
        model: the shared entries of the network.
        own: the method's entries.
    """

    model: FlatState
    own: FlatState

    def state(self) -> State:
        """All entries; views."""
        return {**self.model, **self.own}


class Publisher:
    """Brings rank 0's server state to all ranks.

    Args:
        exchange: to the other ranks.
        neighbours: whose memory can be read.
        layout: of the shared entries of the network.
        room: whose budget holds for the method's entries too.
    """

    def __init__(self, exchange: Exchange, neighbours: Neighbours, layout: FlatLayout, room: Room) -> None:
        self.exchange, self.neighbours, self.layout = exchange, neighbours, layout
        self._leads = neighbours.leader == exchange.rank
        self._group: Any = None
        if any(neighbours.leaders):
            self._group = dist.new_group(sorted(set(neighbours.leaders)), backend="gloo")
        self._turn = 0
        self._rooms = [
            Room(room.budget, room.folder / f"server-{number}") for number in range(2)
        ]  # of method's entries
        # Blocks go with whoever made them, so that they are kept here.
        self._blocks = [Block.in_memory(layout.size, room.folder) for _ in range(2)] if self._leads else []
        places = self._of_leader([block.place(0, layout.size) for block in self._blocks])
        data = [block.data for block in self._blocks] or [neighbours.read(place) for place in places]
        self._models = [FlatState(layout, part) for part in data]

    def next(self) -> FlatState:
        """Room on rank 0 for the shared entries of the state that is published next."""
        return self._models[self._turn]

    def __call__(self, state: Mapping[str, Tensor]) -> Published:
        """Rank 0's state on every rank; a meeting of all ranks. What others give is not looked at."""
        model, room = self._models[self._turn], self._rooms[self._turn]
        self._turn = 1 - self._turn
        room.clear()
        layout, data, place = FlatLayout.of({}), model.data[:0], None
        if self.exchange.rank == 0:
            for key, value in model.items():
                if state[key] is not value:
                    value.copy_(state[key])
            own = {key: value for key, value in state.items() if key not in model}
            layout = FlatLayout.of(own)
            data, place = room.take(layout.size)
            flat_copy(own, layout, data)
        layout, place = self.exchange.broadcast((layout, place))
        if self._group is not None:
            if self._leads:
                if self.exchange.rank != 0:
                    data, place = room.take(layout.size)
                self._to_machines(model.data)
                self._to_machines(data)
            place = self._of_leader(place)
        if not self._leads:
            data = self.neighbours.read(place)
        return Published(model, FlatState(layout, data))

    def close(self) -> None:
        """Give back what lies in files."""
        for room in self._rooms:
            room.close()

    def _to_machines(self, data: Tensor) -> None:
        if len(data):
            with contact():
                dist.broadcast(data, src=0, group=self._group)

    def _of_leader(self, value: Any) -> Any:
        """What the rank gave whose memory this one reads."""
        return self.exchange.collect(value)[self.neighbours.leader]
