"""The round loop. It knows hooks, not methods: nothing here asks which method or data set runs."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import nn

from fedrs_lightning.data.batches.loading import ClientLoader, Loading
from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.engine.checkpoint import Checkpoint, CheckpointStore
from fedrs_lightning.engine.cohort import CohortSampler, assign
from fedrs_lightning.engine.evaluate import Evaluation, Evaluator
from fedrs_lightning.engine.local import Composer, LocalResult, LocalTraining
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.engine.ranks.exchange import Exchange, Gathered, UploadBuffers, contact
from fedrs_lightning.engine.ranks.preemption import Preemption
from fedrs_lightning.engine.settings import Schedule
from fedrs_lightning.errors import ConfigError, TrainingError
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.results.store import Record, RunStore
from fedrs_lightning.seeding import rng_stream
from fedrs_lightning.states import digest, first_not_finite
from fedrs_lightning.tasks.base import Task
from fedrs_lightning.types import Client, State


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
        keep_checkpoints: how many of the newest stay on disk.
        preemption: listens for the scheduler's warning; None does not listen.
        loading: how batches come from the packs.

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
        keep_checkpoints: int = 2,
        preemption: Preemption | None = None,
        loading: Loading | None = None,
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
        if compile:
            task.model.compile()
        self.composer = Composer(task, method.private_keys(task))
        self.memory = ClientMemory(self.path / "clients")
        self.checkpoints = CheckpointStore(self.path / "checkpoints", keep_checkpoints)
        buffers = UploadBuffers(upload_memory, self.path / "spool" / f"rank-{fabric.global_rank}")
        self.exchange = Exchange(fabric, buffers)
        on_step = [callback.on_step for callback in fabric._callbacks if hasattr(callback, "on_step")]
        own = (self.composer, self.loader, self.memory, buffers)
        self.local = LocalTraining(fabric, method, *own, seed, schedule.local_epochs, on_step)
        self.evaluator = Evaluator(self.local, federation, self.exchange, schedule.eval_batch_size)
        self.evaluator.check()
        self.round = 0
        self.server = self._initial_server()
        self.best: dict[str, float] = {}
        self.loggers: dict[str, str] = {}
        self.config = ""
        self.preempted = False

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
            self.round, self.server = checkpoint.round, checkpoint.server
            self.best, self.loggers = checkpoint.best, checkpoint.loggers
        self.memory.index = dict(checkpoint.index) if checkpoint is not None else {}
        if self.rank == 0:
            self.store.truncate(self.round)
            for round in self.checkpoints.rounds():
                if round > self.round:
                    self.checkpoints.path(round).unlink()
            self._prune()
        self.exchange.barrier()

    def fit(self) -> None:
        """Run the remaining rounds. `preempted` tells afterwards whether the scheduler ended the run early.

        Raises:
            TrainingError: a loss, upload or server state is not finite.
            RunError: another rank is gone.
        """
        self._watch = _Stopwatch()
        self.fabric.call("on_run_start", engine=self)
        try:
            while self.round < self.schedule.num_rounds and not self.preempted:
                self._next_round()
        finally:
            self.fabric.call("on_run_end", engine=self)
            self.exchange.buffers.clear()

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
        mine = set(assign(steps, self.world_size)[self.rank])
        todo = {"num_steps": int(sum(steps[client] for client in mine)), "num_clients": len(mine)}
        self.fabric.call("on_round_start", engine=self, **todo)

        trained = self._train([client for client in cohort if client.id in mine])
        watch.lap("train")
        kept = {client_id for client_id, result in trained.items() if result.keeps_memory}
        gathered = self.exchange.gather({key: result.upload for key, result in trained.items()}, cohort, kept)
        self.server = self.exchange.broadcast(self._aggregate(gathered))
        self.exchange.buffers.clear()
        self.memory.commit(gathered.keeps_memory, self.round)
        busy = self.exchange.collect((watch.seconds["train"], sum(result.bytes_down for result in trained.values())))
        watch.lap("exchange")
        evaluates = self.schedule.evaluates(self.round)
        evaluation = self.evaluator(self._on_device(self.server)) if evaluates else Evaluation()
        watch.lap("evaluate")
        if self.rank == 0:
            record = self._record(cohort, gathered, evaluation, busy)
            self._save(record, gathered, evaluation, watch)
            self.fabric.call("on_round_end", engine=self, record=record)
            self.fabric.log_dict(logged(record), step=self.round)
        self.exchange.barrier()
        self.preempted = self.preemption is not None and self.preemption.agreed(self.fabric)

    def _train(self, clients: Sequence[Client]) -> dict[int, LocalResult]:
        """Train this rank's clients; when any rank fails, all raise."""
        trained: dict[int, LocalResult] = {}
        with self.exchange.together():
            server = self._on_device(self.server)
            for client in clients:
                trained[client.id] = self.local.train(client, self.round, server)
        return trained

    def _aggregate(self, gathered: Gathered) -> State:
        """The next server state on rank 0; when it is not finite, all ranks raise."""
        server = self.server
        with self.exchange.together():
            if self.rank == 0:
                server = self.method.aggregate(self.server, gathered.uploads)
                self._require_finite(server, gathered)
        return server

    def _require_finite(self, server: State, gathered: Gathered) -> None:
        damaged = first_not_finite(server)
        if damaged is None:
            return
        remedy = "lower the learning rate (optimizer.init_args.lr) or look at this client's data"
        for upload in gathered.uploads:
            entry = first_not_finite(upload.state)
            if entry is not None:
                who = f"client {upload.client.id}, round {self.round}"
                raise TrainingError(f"{who}: its upload {entry} is not finite; {remedy}")
        raise TrainingError(f"round {self.round}: {damaged} is not finite after aggregation, although all uploads are")

    def _record(self, cohort: list[Client], gathered: Gathered, evaluation: Evaluation, busy: list[Any]) -> Record:
        samples = np.array([upload.client.num_samples for upload in gathered.uploads], dtype=np.float64)
        logs = [upload.log.items() for upload in gathered.uploads]
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
        """Logs first, then the checkpoint that makes them count, then what no checkpoint needs any more."""
        rows: list[dict[str, Any]] = []
        for upload in gathered.uploads:
            row = {"round": self.round, "client": upload.client.id, "phase": "train"}
            rows.append(row | {"num_samples": upload.client.num_samples, "num_steps": upload.num_steps} | upload.log)
        rows += [{"round": self.round} | row for row in evaluation.rows]
        self.store.append_clients(rows)
        value = evaluation.metrics.get(f"validation/{self.score_name}")
        if value is not None and value > self.best.get("value", -math.inf):
            self.best = {"round": self.round, "value": value}
        watch.lap("log")
        # A round's record is written before its checkpoint, which therefore is counted with the next round.
        record["timing"] |= watch.take()
        self.store.append_round(record)
        self.store.sync()
        known = (self.loggers, self.best, self.config, self.store.fingerprint())
        self.checkpoints.save(Checkpoint(self.round, self.server, dict(self.memory.index), *known))
        self._prune()
        watch.lap("checkpoint")

    def _prune(self) -> None:
        kept = self.checkpoints.prune({int(self.best["round"])} if self.best else set())
        self.memory.prune([self.memory.index, *(self.checkpoints.index(round) for round in kept)])

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

    def _on_device(self, server: State) -> State:
        device = self.fabric.device
        return server if device.type == "cpu" else {key: tensor.to(device) for key, tensor in server.items()}


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
        self.seconds: dict[str, float] = {"checkpoint": 0.0}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken | {"seconds": sum(taken.values())}
