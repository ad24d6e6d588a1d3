"""The round loop. It knows hooks, not methods: nothing here asks which method or data set runs."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from fedrs_lightning.data.batches.loading import ClientLoader, Loading
from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.engine.checkpoint import Checkpoint, CheckpointStore
from fedrs_lightning.engine.cohort import CohortSampler, assign, in_order
from fedrs_lightning.engine.device import Placement
from fedrs_lightning.engine.evaluate import Evaluation, Evaluator
from fedrs_lightning.engine.local import Composer, LocalTraining
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.engine.ranks.contact import contact
from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.engine.ranks.preemption import Preemption
from fedrs_lightning.engine.ranks.server import Publisher
from fedrs_lightning.engine.ranks.shared import Neighbours, Room
from fedrs_lightning.engine.ranks.uploads import Collector, Gathered
from fedrs_lightning.engine.ranks.watch import before_ranks_end
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.engine.writing import Writer
from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.files import naming_the_place
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.results.store import Record, RunStore
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.states import digest, first_not_finite, summing
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Client, State, Upload

AT_THE_END = 30.0
"""Seconds that an error leaves the last round that ended to be saved."""

LAST_MOMENT = 5.0
"""The same before other ranks, which may still be writing, are ended."""


class Engine:
    """Runs a federated experiment on all ranks; construct it with the same arguments on each.

    Args:
        fabric: launched.
        task: built in the random stream (seed, "model").
        method: what differs from federated averaging.
        federation: the data.
        schedule: rounds, cohorts, batches.
        seed: of the run; all random streams derive from it.
        path: run directory, visible to all ranks.
        name: of the run, for people.
        channels_last: memory format of network and images.
        compile: compile the network.
        upload_memory: bytes of uploads that a rank holds in memory.
        memory_cache: bytes of client memories that a rank keeps at hand.
        write_behind: write client memories, logs and checkpoints while the next round trains.
        keep_checkpoints: how many of the newest stay on disk.
        preemption: listens for the scheduler's warning; None does not listen.
        loading: how batches come from the packs.
        share_memory: ranks of one machine share memory; False lets them send to each other, as between machines.

    Raises:
        ConfigError: cohort, batches or clients that cannot work, or data, task and method that do not fit.
    """

    def __init__(
        self,
        fabric: L.Fabric,
        task: Task,
        method: FedAvg,
        federation: Federation,
        schedule: Schedule,
        *,
        seed: int,
        path: Path,
        name: str = "run",
        channels_last: bool = False,
        compile: bool = False,
        upload_memory: float = 2**30,
        memory_cache: float = 2**30,
        write_behind: bool = True,
        keep_checkpoints: int = 2,
        preemption: Preemption | None = None,
        loading: Loading | None = None,
        share_memory: bool = True,
    ) -> None:
        self.fabric, self.task, self.method, self.schedule = fabric, task, method, schedule
        self.federation, self.path, self.preemption = federation, Path(path), preemption
        self.rank, self.seed, self.name = fabric.global_rank, seed, name
        self.store = RunStore(self.path)
        training = _pooled(federation) if method.pools_clients else federation
        self.clients = [Client(split.id, len(split.train), split.name) for split in training.clients]
        size = None if method.pools_clients else schedule.clients_per_round  # all data at once is no client to draw
        self.sampler = CohortSampler(self.clients, size, seed)
        batches = (schedule.batch_size, schedule.min_last_batch)
        self.loader = ClientLoader(training, *batches, seed, fabric.device, channels_last, loading)
        if self.loader.note and fabric.global_rank == 0:
            warnings.warn(self.loader.note, stacklevel=2)
        _check_batches(self.loader, self.clients, task)
        task.check_batch(federation.source.gather(training.clients[0].train[:1]))
        method.check(task)

        with rng_stream(seed, "adapt"):
            method.adapt(task)
        fabric.to_device(task)
        if channels_last:
            task.model.to(memory_format=torch.channels_last)
        self.composer = Composer(task, method.private_keys(task), method.sent_keys(task))
        self.writer = Writer(write_behind)
        self.memory = ClientMemory(self.path / "clients", self.writer, memory_cache)
        self.checkpoints = CheckpointStore(self.path / "checkpoints", keep_checkpoints)
        self.exchange = Exchange(fabric)
        self.room = Room(upload_memory, self.path / "spool" / f"rank-{fabric.global_rank}")
        on_step = [callback.on_step for callback in fabric._callbacks if hasattr(callback, "on_step")]
        own = (self.composer, self.loader, self.memory)
        self.local = LocalTraining(fabric, method, *own, seed, schedule.local_epochs, on_step)
        neighbours = Neighbours(self.rank, self.exchange.collect, self.room.folder, share_memory)
        self.collector = Collector(
            self.exchange,
            neighbours,
            self.room,
            self.composer.sent.layout,
            self.local.parameters,
            size or len(self.clients),
            method.streams,
            fabric.device,
            self.composer.size,
        )
        if self.collector.seats is not None:
            self.composer.move(self.collector.seats.current.data)
        if compile:
            task.model.compile()
        self.publish = Publisher(self.exchange, neighbours, self.composer.shared, self.room)
        self.place = Placement(fabric.device)
        self.evaluator = Evaluator(self.local, federation, self.exchange, schedule.eval_batch_size)
        self.evaluator.check()
        self.round = 0
        self.published = self.publish(self._initial_server())
        self.best: dict[str, float] = {}
        self.loggers: dict[str, str] = {}
        self.config = ""
        self.preempted = False
        self._handed_in: tuple[int, Future[bool]] | None = None  # the last round, and whether it is saved

    @property
    def server(self) -> State:
        """The server state in host memory. Its tensors stay as they are until the aggregation of the round after next
        begins.
        """
        return self.published.state()

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.fabric.world_size

    @property
    def headline(self) -> str:
        """Key of the metric that the run reports, `protocol/score`."""
        protocol, suffix = self.evaluator.headline
        return f"{protocol}/{self.score_name}{suffix}"

    @property
    def score_name(self) -> str:
        """Name of the task's headline score: the first of its scores."""
        return next(iter(self.task.scores(self.task.metric())))

    def resume(self) -> None:
        """Continue after the newest usable checkpoint, or stay before round 1 when there is none.

        Whatever a broken run left of later rounds is removed.

        Raises:
            RunError: there are checkpoints, but none can be used.
        """
        checkpoint = self._checked_newest()
        if checkpoint is not None:
            self.round, self.published = checkpoint.round, self.publish(checkpoint.server)
            self.best, self.loggers = checkpoint.best, checkpoint.loggers
        self.memory.restart(checkpoint.index if checkpoint is not None else {}, self.round)
        if self.rank == 0:
            self.store.truncate(self.round)
            for round in self.checkpoints.rounds():
                if round > self.round:
                    self.checkpoints.path(round).unlink()
            self.memory.clear_leftovers(self.round)
            self._prune(self.round, self.memory.index, self.best)
        self.exchange.barrier()

    def fit(self) -> None:
        """Run the remaining rounds. `preempted` tells afterwards whether the scheduler ended the run early.

        When it returns, everything is written. When it raises, the last round that ended is saved if that is possible.

        Raises:
            TrainingError: a loss, upload or server state is not finite.
            RunError: another rank is gone, or something cannot be written.
        """
        self._watch = _Stopwatch()
        self.fabric.call("on_run_start", engine=self)
        try:
            with before_ranks_end(self.fabric, self._give_a_moment):
                while self.round < self.schedule.num_rounds and not self.preempted:
                    self._next_round()
                with self.exchange.together():
                    self.writer.drain()
        except BaseException as error:
            self._save_what_ended(error)
            raise
        finally:
            self.fabric.call("on_run_end", engine=self)
            self.room.close()
            self.publish.close()

    def digest(self) -> str:
        """SHA-256 of server state and all client memories."""
        total = hashlib.sha256(digest(self.server).encode())
        for client_id in sorted(self.memory.index):
            total.update(f"\0{client_id} {digest(self.memory.load(client_id))}".encode())
        return total.hexdigest()

    def digest_model(self) -> str:
        """SHA-256 of the server's `model/*` keys."""
        return digest({key: value for key, value in self.server.items() if key.startswith("model/")})

    def _next_round(self) -> None:
        self.round += 1
        watch = self._watch
        cohort = self.sampler.sample(self.round)  # the same list on every rank
        steps = {client.id: float(self.loader.num_steps(client.id, self.schedule.local_epochs)) for client in cohort}
        order, shares = in_order(cohort, steps), assign(steps, self.world_size)
        ranks = {client_id: rank for rank, share in enumerate(shares) for client_id in share}
        mine = shares[self.rank]
        todo = {"num_steps": int(sum(steps[client] for client in mine)), "num_clients": len(mine)}
        self.fabric.call("on_round_start", engine=self, **todo)

        dealt = [ranks[client.id] for client in order]
        self.collector.begin(self.round, order, dealt, self._weights_before(order))
        bytes_down = self._train(order, dealt)
        watch.lap("train")
        gathered = self.collector.finish(self.publish.next())
        self.published = self.publish(self._aggregate(gathered))
        self.memory.commit(gathered.keeps_memory, self.round)
        self.memory.homes |= gathered.ranks
        busy = self.exchange.collect((watch.seconds["train"], bytes_down))
        watch.lap("exchange")
        evaluates = self.schedule.evaluates(self.round)
        evaluation = self.evaluator(self._served()) if evaluates else Evaluation()
        watch.lap("evaluate")
        with self.exchange.together():
            self.writer.check()  # what could not be written on any rank ends the run here
            if self.rank == 0:
                record = self._record(cohort, gathered, evaluation, busy)
                self._save(record, gathered, evaluation, watch)
                self.fabric.call("on_round_end", engine=self, record=record)
            else:
                watch.take()
        self.memory.settled = self.round - 1
        self.preempted = self.preemption is not None and self.preemption.agreed(self.fabric)

    def _weights_before(self, order: Sequence[Client]) -> Tensor | None:
        """Aggregation weights of the cohort, where the method knows them before training."""
        if not self.method.streams:
            return None
        return self.method.weights(self.server, [Upload(client, {}) for client in order])

    def _train(self, order: Sequence[Client], dealt: Sequence[int]) -> int:
        """Train this rank's clients and hand their uploads over; when any rank fails, all raise.

        Returns:
            Bytes that these clients received.
        """
        bytes_down = 0
        with self.exchange.together():
            server = self._served()
            remembers = bool(self.composer.private or self.memory.index)  # clients stay where their memory is at hand
            for position in self.collector.positions(dealt, fixed=remembers):
                result = self.local.train(order[position], self.round, server)
                moved = self.collector.put(position, result.upload, result.own, result.keeps_memory)
                if moved is not None:
                    self.composer.move(moved)
                bytes_down += result.bytes_down
        return bytes_down

    def _aggregate(self, gathered: Gathered) -> State:
        """The next server state on rank 0; when it is not finite, all ranks raise."""
        server = self.server
        near = self.collector.neighbours.leaders.count(0)  # ranks whose cores wait for this one
        with self.exchange.together():
            if self.rank == 0:
                with one_thread(), summing(near, self.fabric.device):
                    server = self.method.aggregate(server, gathered.uploads)
                damaged = first_not_finite(server)
                if damaged is not None:
                    self.collector.require_finite(gathered.uploads)
                    reason = "is not finite after aggregation, although all uploads are"
                    raise TrainingError(f"round {self.round}: {damaged} {reason}")
        return server

    def _record(self, cohort: list[Client], gathered: Gathered, evaluation: Evaluation, busy: list[Any]) -> Record:
        uploads = sorted(gathered.uploads, key=lambda upload: upload.client.id)
        samples = np.array([upload.client.num_samples for upload in uploads], dtype=np.float64)
        logs = [upload.log.items() for upload in uploads]
        terms = [sum(value for name, value in log if name.startswith("loss/")) for log in logs]
        seconds = [train for train, _ in busy]
        absent = {"absent_classes": evaluation.absent} if evaluation.absent else {}
        return {
            "round": self.round,
            "cohort": [client.id for client in cohort],
            "metrics": {"train/loss": float(np.dot(samples, terms) / samples.sum()), **evaluation.metrics},
            "bytes": {"up": gathered.bytes_up, "down": sum(down for _, down in busy)},
            "num_steps": gathered.num_steps,
            "counts": evaluation.counts,
            **absent,
            "timing": {"idle_fraction": 1 - sum(seconds) / (max(seconds) * len(seconds)) if max(seconds) > 0 else 0.0},
        }

    def _save(self, record: dict[str, Any], gathered: Gathered, evaluation: Evaluation, watch: _Stopwatch) -> None:
        """Hand the round to the writer, once the round before it is saved."""
        rows: list[dict[str, Any]] = []
        for upload in sorted(gathered.uploads, key=lambda upload: upload.client.id):
            row = {"round": self.round, "client": upload.client.id, "phase": "train"}
            rows.append(row | {"num_samples": upload.client.num_samples, "num_steps": upload.num_steps} | upload.log)
        rows += [{"round": self.round} | row for row in evaluation.rows]
        value = evaluation.metrics.get(f"validation/{self.score_name}")
        if value is not None and value > self.best.get("value", -math.inf):
            self.best = {"round": self.round, "value": value}
        if self._handed_in is not None:
            self.writer.wait(self._handed_in[1])
        watch.lap("checkpoint")
        # What is written of a round is counted with the next one, since its record is written first.
        record["timing"] |= watch.take() | self.writer.take()
        plain = (dict(self.memory.index), dict(self.loggers), dict(self.best), self.config)
        checkpoint = Checkpoint(self.round, self.server, *plain)
        self._handed_in = self.round, self.writer.submit(partial(self._commit, rows, dict(record), checkpoint))
        watch.lap("checkpoint")

    def _commit(self, rows: list[dict[str, Any]], record: Record, checkpoint: Checkpoint) -> None:
        """Logs first, then the checkpoint that makes them count, then what no checkpoint needs any more."""
        with naming_the_place(self.path):
            self.store.append_clients(rows)
            self.store.append_round(record)
            self.store.sync()
            checkpoint = replace(checkpoint, logs=self.store.fingerprint())
            self.memory.wait_for(self.memory.named(checkpoint.round, checkpoint.index))
            self.checkpoints.save(checkpoint)
            self._prune(checkpoint.round, checkpoint.index, checkpoint.best)
            self.fabric.log_dict(logged(record), step=checkpoint.round)

    def _prune(self, round: int, index: dict[int, int], best: dict[str, float]) -> None:
        kept = self.checkpoints.prune({int(best["round"])} if best else set())
        self.memory.prune([index, *(self.checkpoints.index(round) for round in kept)], round)

    def _give_a_moment(self) -> None:
        """Before other ranks are ended: a moment for what they and this one still write of a round that has ended."""
        self.writer.idle(LAST_MOMENT, self._handed_in and self._handed_in[1])

    def _save_what_ended(self, error: BaseException) -> None:
        """After an error: save the last round that ended where that is possible, and say so where it is not."""
        self.writer.end(AT_THE_END, self._handed_in and self._handed_in[1])
        if self._handed_in is None or self.checkpoints.path(self._handed_in[0]).exists():
            return
        failure = self.writer.failure
        if failure is None or str(failure) != str(error):
            problem = f"round {self._handed_in[0]} has ended but could not be saved"
            reason = f" ({failure})" if failure is not None else ""
            warnings.warn(f"{problem}{reason}; the same command runs it again", stacklevel=2)

    def _checked_newest(self) -> Checkpoint | None:
        """Rank 0 decides which checkpoint counts; all ranks load that one."""
        round = 0
        with self.exchange.together():
            if self.rank == 0:
                newest = self.checkpoints.newest(self._unusable)
                round = 0 if newest is None else newest.round
        with contact():
            round = self.fabric.broadcast(round)
        return self.checkpoints.load(round) if round else None

    def _unusable(self, checkpoint: Checkpoint) -> str | None:
        path = self.memory.missing(checkpoint.index)
        if path is not None:
            return f"{path}: client memory of round {checkpoint.round} is missing or damaged"
        return self.store.fault(checkpoint.round, checkpoint.logs)

    def _initial_server(self) -> State:
        live = self.composer.live.items()
        shared = {key: tensor.cpu().clone() for key, tensor in live if key not in self.composer.private}
        return shared | self.method.init_server(self.task, self.clients)

    def _served(self) -> State:
        """The server state on the network's device, as clients receive it."""
        server, self.composer.served = self.place(self.published)
        return server


@contextmanager
def one_thread() -> Iterator[None]:
    """What enters the server state is computed by one thread: the number decides the bits of some sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pooled(federation: Federation) -> Federation:
    """All clients' training data as one client."""
    train = np.sort(np.concatenate([client.train for client in federation.clients]))
    return replace(federation, clients=(ClientSplit(0, "all clients", train),))


def _check_batches(loader: ClientLoader, clients: Sequence[Client], task: Task) -> None:
    normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in task.modules())
    for client in clients:
        who = f"client {client.id}" + (f" ({client.name})" if client.name else "")
        if client.num_samples == 0:
            raise ConfigError(f"{who} has no training samples; leave it out, or share the data among fewer clients")
        if normalises and client.num_samples == 1:
            problem = "has 1 training sample, and batch normalisation cannot train on one; leave the client out"
            raise ConfigError(f"{who} {problem}, share the data among fewer clients, or take a network without it")
        if normalises and min(loader.batch_sizes(client.id)) == 1:
            problem = f"has {client.num_samples} samples, so a batch of 1 would reach batch normalisation, which"
            remedy = "set schedule.min_last_batch to null, or change schedule.batch_size"
            raise ConfigError(f"{who} {problem} cannot train on it; {remedy}")


def logged(record: dict[str, Any]) -> dict[str, float]:
    """What loggers get: metrics, bytes and timing of a round."""
    values = dict(record["metrics"])
    values |= {f"bytes/{name}": float(value) for name, value in record["bytes"].items()}
    return values | {f"timing/{name}": float(value) for name, value in record["timing"].items()}


class _Stopwatch:
    """Seconds by part of the round, since the last `take`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken | {"seconds": sum(taken.values())}
