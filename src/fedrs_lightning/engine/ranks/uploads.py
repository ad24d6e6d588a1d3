"""One round's uploads on their way to the server: added while others train, or kept until all are there.

Where the aggregation weights are known before training, shared entries go straight into a sum (sums.py) and only the
method's own entries are kept. Otherwise every upload is packed into memory that rank 0 reads (shared.py). Ranks of
other machines send theirs, while they train on, to rank 0, which treats them as its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.engine.ranks.shared import Block, Copies, Neighbours, Place, Room, Seats, Tickets
from fedrs_lightning.engine.ranks.sums import Ledger, RunningSum, SharedSum
from fedrs_lightning.errors import ConfigError, FedrsError, TrainingError
from fedrs_lightning.flat import Entry, FlatLayout, FlatState, flat_copy, placed
from fedrs_lightning.states import Summed, first_not_finite, numerators, summing
from fedrs_lightning.types import Client, State, Upload

REMEDY = "lower the learning rate (optimizer.init_args.lr) or look at this client's data"


@dataclass(frozen=True)
class Header:
    """What all ranks know of an upload: its place in the order, what it counts, and where its kept entries lie."""

    position: int
    rank: int
    num_steps: int
    log: dict[str, float]
    keeps_memory: bool
    content: int
    entries: tuple[Entry, ...]
    place: Place


@dataclass
class Gathered:
    """One round's uploads.

    Attributes:
        uploads: in the order of the cohort on rank 0, empty elsewhere.
        bytes_up: bytes of all uploads, without padding; on every rank.
        keeps_memory: ids of clients that wrote a memory version; on every rank.
        num_steps: optimiser steps of all clients; on every rank.
        ranks: that trained each client; on every rank.
    """

    uploads: list[Upload] = field(default_factory=list)
    bytes_up: int = 0
    keeps_memory: list[int] = field(default_factory=list)
    num_steps: int = 0
    ranks: dict[int, int] = field(default_factory=dict)


class Collector:
    """Takes the uploads of a rank's clients as they finish, and hands the cohort's to the server.

    Args:
        exchange: to the other ranks.
        neighbours: whose memory can be read.
        room: for what is kept.
        layout: of the shared entries that every upload holds.
        parameters: keys of those that are trainable.
        num_clients: of the largest cohort.
        streams: whether uploads may be added before all are there.
        device: of the live network.
        size: bytes of the live network.

    Attributes:
        seats: where the network may live, if it is to move from one to the next; None where it stays where it is.
    """

    def __init__(
        self,
        exchange: Exchange,
        neighbours: Neighbours,
        room: Room,
        layout: FlatLayout,
        parameters: tuple[str, ...],
        num_clients: int,
        streams: bool,
        device: torch.device,
        size: int,
    ) -> None:
        self.exchange, self.neighbours, self.room = exchange, neighbours, room
        self.layout, self.parameters, self.device = layout, parameters, device
        self.near = neighbours.leader == 0
        self.seats: Seats | None = None
        self._mail = _Mail(exchange, neighbours) if any(neighbours.leaders) else None
        self._sum: SharedSum | None = None
        self._receiving: SharedSum | None = None
        self._on_device: RunningSum | None = None
        if streams and exchange.world_size == 1 and device.type != "cpu":
            total = torch.zeros(RunningSum.size_of(layout), dtype=torch.uint8, device=device)
            self._on_device = RunningSum(layout, total)
        elif streams:
            self._share_sum(num_clients)
            if self.near and device.type == "cpu":
                self.seats = Seats(size, layout.size, room.budget, room.folder)
        self._tickets: Tickets | None = None
        if exchange.world_size > 1 and not any(neighbours.leaders):
            self._ticket_block, opened = neighbours.share(Tickets.SIZE, room.folder)
            self._tickets = Tickets(opened)
        self._copies, self._received = Copies(room), Copies(room)
        self._order: list[Client] = []
        self._round = 0
        self._weights: Tensor | None = None
        self._headers: list[Header] = []
        self._kept: dict[int, Tensor] = {}
        self._in = 0

    def _share_sum(self, num_clients: int) -> None:
        places: tuple[Place, Place] | None = None
        if self.exchange.rank == 0:
            sizes = RunningSum.size_of(self.layout), Ledger.size_of(num_clients)
            blocks = [Block.in_memory(size, self.room.folder) for size in sizes]
            self._blocks = blocks  # they go with whoever made them
            Ledger(blocks[1]).begin()
            places = blocks[0].place(0, sizes[0]), blocks[1].place(0, sizes[1])
        total, ledger = self.exchange.broadcast(places)
        if self.near:
            self._sum = self._shared_sum(total, ledger)
            if self.exchange.rank == 0 and self._mail is not None:
                self._receiving = self._shared_sum(total, ledger)

    def _shared_sum(self, total: Place, ledger: Place) -> SharedSum:
        opened = Block.opened(ledger.path, ledger.block_size)  # of its own: a lock is the opened file's
        running = RunningSum(self.layout, self.neighbours.read(total))
        return SharedSum(running, Ledger(opened), self.neighbours.read, self._refuse)

    @property
    def streams(self) -> bool:
        """Whether this round's shared entries are summed as they come."""
        return self._weights is not None

    def begin(self, round: int, order: Sequence[Client], ranks: Sequence[int], weights: Tensor | None) -> None:
        """A new round.

        Args:
            round: from 1.
            order: the cohort in the order in which it is summed.
            ranks: that train them.
            weights: float64 [K] in that order where they are known, else None.
        """
        self.room.clear()
        self._round, self._order, self._weights = round, list(order), weights
        self._headers, self._kept, self._in = [], {}, 0
        self._copies.clear()
        self._received.clear()
        if self.seats is not None:
            self.seats.clear()
        if weights is not None:
            factors, self._divisor = numerators(weights, [Upload(client, {}) for client in order])
            self._factors: list[float] = factors.tolist()
            for shared in (self._sum, self._receiving):
                if shared is not None:
                    shared.begin(self._factors)
        if self._mail is not None:
            self._mail.begin(ranks, self._receive if weights is not None else None)

    def positions(self, ranks: Sequence[int], fixed: bool) -> Iterator[int]:
        """Places in the order whose clients this rank trains, ascending.

        Ranks of one machine draw them one by one, so that none waits for a slower one longer than for a client. Who
        trains a client decides no bit.

        Args:
            ranks: that train them if they are dealt out before.
            fixed: deal them out before, so that clients stay where their memory is at hand.
        """
        if self._tickets is None or fixed:
            yield from (position for position, rank in enumerate(ranks) if rank == self.exchange.rank)
            return
        while (position := self._tickets.draw()) < len(ranks):
            yield position

    def put(self, position: int, upload: Upload, own: State, keeps_memory: bool) -> Tensor | None:
        """Take the upload of the client at this place in the order.

        Args:
            position: in the order of the cohort.
            upload: whose state is flat, laid out as all are.
            own: the method's own entries.
            keeps_memory: whether the client wrote a memory version.

        Returns:
            The memory in which the network lives from now on, where what it lived in was left to the sum. Else what was
            given may change afterwards.

        Raises:
            TrainingError: an upload is not finite, this one or another that was added.
            RunError: there is no room on the disk for what exceeds the memory.
        """
        state = upload.state
        assert isinstance(state, FlatState)
        # A shared sum is looked at when the upload is in it, and what is kept when the server has worked with it.
        alone = self.streams and self._sum is None
        self._require_finite(position, state if alone else {}, own)
        start = 0 if self.streams else self.layout.size
        layout = FlatLayout.of(own, start)
        kept, place = self.room.take(layout.size)
        self._kept[position] = kept
        kept[:start].copy_(state.data[:start])
        flat_copy(placed(own, kept.device), layout, kept)
        content = self.layout.content() + layout.content()
        told = (upload.num_steps, upload.log, keeps_memory, content, layout.entries, place)
        self._headers.append(Header(position, self.exchange.rank, *told))
        moved = self._add(position, state.data) if self.streams else None
        if self._mail is not None and not self.near:
            self._mail.send(kept)
        return moved

    def _add(self, position: int, state: Tensor) -> Tensor | None:
        if self._on_device is not None:
            self._on_device.add([state], [self._factors[position]], fresh=self._in == 0)
            self._in += 1
        elif self._sum is None:
            assert self._mail is not None
            self._mail.send(self.room.take(self.layout.size)[0].copy_(state))
        elif (place := self._left(position)) is None:
            self._sum.put(position, self._copies.of(position, state, self._sum.turn))
        else:
            self._sum.put(position, place)
            return self.seats.current.data if self.seats is not None else None
        return None

    def _left(self, position: int) -> Place | None:
        """Where the upload lies if the network moves on to another seat; None where there is none."""
        if self.seats is None or self._sum is None:
            return None
        left = self.seats.current
        if not self.seats.take(self._sum.turn):
            self._sum.advance()
            if not self.seats.take(self._sum.turn):
                return None
        return self.seats.leave(position, left)

    def _receive(self, position: int, state: Tensor) -> None:
        """What another machine sent."""
        assert self._receiving is not None
        self._receiving.put(position, self._received.of(position, state, self._receiving.turn))

    def _require_finite(self, position: int, *states: Mapping[str, Tensor]) -> None:
        damaged = first_not_finite(*states)
        if damaged is not None:
            who = f"client {self._order[position].id}, round {self._round}"
            raise TrainingError(f"{who}: its upload {damaged} is not finite; {REMEDY}")

    def _refuse(self, position: int, state: Tensor) -> None:
        self._require_finite(position, FlatState(self.layout, state))

    def require_finite(self, uploads: Sequence[Upload]) -> None:
        """Name the first upload that is not finite.

        Raises:
            TrainingError: there is one.
        """
        for position, upload in enumerate(uploads):
            self._require_finite(position, upload.state)

    def finish(self, out: FlatState) -> Gathered:
        """Everything of the round, once all ranks have trained; a meeting of all ranks.

        Args:
            out: rank 0's room for the sum of the shared entries.
        """
        headers = sorted((header for part in self.exchange.collect(self._headers) for header in part), key=_position)
        gathered = Gathered(
            bytes_up=sum(header.content for header in headers),
            keeps_memory=[self._order[header.position].id for header in headers if header.keeps_memory],
            num_steps=sum(header.num_steps for header in headers),
            ranks={self._order[header.position].id: header.rank for header in headers},
        )
        if self._mail is not None:
            self._mail.finish()
        if self.exchange.rank == 0:
            if self._tickets is not None:
                self._tickets.begin()  # nobody draws before the next state is published
            uploads = [self._upload(header) for header in headers]
            gathered.uploads = uploads if self._weights is None else self._summed(uploads, out)
        return gathered

    def _upload(self, header: Header) -> Upload:
        mailed = self._kept if self._mail is None else self._kept | self._mail.kept
        data = mailed[header.position] if header.position in mailed else self.neighbours.read(header.place)
        own = FlatLayout(header.entries, header.place.size)
        state = _Added(own, data) if self.streams else FlatState(self.layout + own, data)
        return Upload(self._order[header.position], state, header.num_steps, header.log, self.parameters)

    def _summed(self, uploads: list[Upload], out: FlatState) -> Summed:
        assert self._weights is not None
        if self._on_device is not None:
            self._on_device.into(out.data, self._divisor)
        elif self._sum is not None:
            with summing(self.neighbours.leaders.count(0)):
                self._sum.finish(out.data, self._divisor)
            self._sum.ledger.begin()
        return Summed(uploads, self._weights, {entry.name: out[entry.name] for entry in self.layout.entries})


class _Added(FlatState):
    """An upload's own entries, where the shared ones are in the sum already."""

    def __getitem__(self, key: str) -> Tensor:
        try:
            return super().__getitem__(key)
        except KeyError:
            reason = f"an upload has no entry {key} any more: shared entries are added while clients train"
            remedy = "a method that looks at single uploads says `streams = False`"
            raise ConfigError(f"{reason}; {remedy}") from None


class _Mail:
    """Uploads between machines: sent by a thread while a rank trains on, received by one of rank 0, in their order.

    It has a process group of its own, so that it never waits for what the ranks say to each other meanwhile.
    """

    def __init__(self, exchange: Exchange, neighbours: Neighbours) -> None:
        self.rank, self.neighbours = exchange.rank, neighbours
        self.group: Any = dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._failure: list[Exception] = []
        self._letters: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        self.kept: dict[int, Tensor] = {}  # what came with the upload at each place, on rank 0

    def begin(self, ranks: Sequence[int], add: Callable[[int, Tensor], None] | None) -> None:
        """A new round, whose clients these ranks train; `add` takes their shared entries, if they come apart."""
        self._failure, self.kept = [], {}
        far = [(position, rank) for position, rank in enumerate(ranks) if self.neighbours.leaders[rank] != 0]
        if self.rank == 0:
            self._run(lambda: self._receive(far, add))
        elif self.neighbours.leader != 0:
            self._run(self._send)

    def send(self, content: Tensor) -> None:
        """Post bytes, which stay as they are until `finish`."""
        self._letters.put(content)

    def finish(self) -> None:
        """Wait until everything of the round has arrived.

        Raises:
            LostContact: a rank is gone.
        """
        self._letters.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure:
            with contact():
                raise self._failure[0]
        self._letters = queue.SimpleQueue()

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except (RuntimeError, FedrsError) as error:
                self._failure.append(error)

        self._thread = threading.Thread(target=guarded, name="uploads", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while (content := self._letters.get()) is not None:
            dist.send(torch.tensor([len(content)]), dst=0, group=self.group)
            if len(content):
                dist.send(content, dst=0, group=self.group)

    def _receive(self, far: Sequence[tuple[int, int]], add: Callable[[int, Tensor], None] | None) -> None:
        for position, rank in far:
            if add is not None:
                add(position, self._letter(rank))
            self.kept[position] = self._letter(rank)

    def _letter(self, rank: int) -> Tensor:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, src=rank, group=self.group)
        content = torch.empty(int(size), dtype=torch.uint8)
        if len(content):
            dist.recv(content, src=rank, group=self.group)
        return content


def _position(header: Header) -> int:
    return header.position
