"""Evaluation under named protocols, shared out over ranks; integer states are summed, ratios taken once.

    global            one model, the common test set; only where a method has one model
    personal_common   each client's composed model on the common test set
    personal_own      each client's composed model on that client's own test data
    validation        as personal_common, on data held out of training; the only one that may choose a round

Where a method has a single model, every client's composed model is that model, so that all methods stand in one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import numpy as np
import torch

from fedrs_lightning.data.federated import Federation
from fedrs_lightning.data.loading import ClientLoader
from fedrs_lightning.engine.cohort import assign
from fedrs_lightning.engine.exchange import Exchange
from fedrs_lightning.engine.local import Composer
from fedrs_lightning.engine.memory import ClientMemory
from fedrs_lightning.methods.base import FedAvg
from fedrs_lightning.types import State

PROTOCOLS = {
    "global": "the one global model on the common test set",
    "personal_common": "each client's composed model on the common test set; mean over clients, plain and weighted by training samples",
    "personal_own": "each client's composed model on its own test data; mean over clients, plain and weighted by training samples, and pooled",
    "validation": "each client's composed model on data held out of training; mean over clients",
}


@dataclass
class Evaluation:
    """Results of one round.

    Attributes:
        metrics: `protocol/score` with suffix `_weighted` (by training samples), `_min` (worst client) or `_pooled`.
        rows: one per client and protocol.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


class Evaluator:
    """Evaluates the server's model and every client's composed model.

    Args:
        fabric: launched.
        method: for `download`.
        composer: of this rank's task.
        loader: for evaluation batches.
        federation: test sets and clients (all of them, also where a method pools their training data).
        memory: of all clients.
        exchange: to other ranks.
        batch_size: of evaluation; fixes the chunks, so that results do not depend on the number of ranks.
    """

    def __init__(
        self,
        fabric: L.Fabric,
        method: FedAvg,
        composer: Composer,
        loader: ClientLoader,
        federation: Federation,
        memory: ClientMemory,
        exchange: Exchange,
        batch_size: int,
    ) -> None:
        self.fabric, self.method, self.composer, self.loader = fabric, method, composer, loader
        self.federation, self.memory, self.exchange, self.batch_size = federation, memory, exchange, batch_size
        self.task = composer.task

    @property
    def headline(self) -> str:
        """The protocol that a run reports: the common test set where there is one, else each client's own."""
        return "personal_common" if len(self.federation.test) else "personal_own"

    def __call__(self, server: State) -> Evaluation:
        """Evaluate.

        Args:
            server: the server state, on the task's device.
        """
        self.task.eval()
        with torch.inference_mode():
            mine = self._personal(server) if self.composer.private else self._single(server)
        merged: dict[tuple[str, int], Any] = {}
        for part in self.exchange.collect(mine):
            for unit, state in part:
                merged.setdefault(unit, self.task.metric()).merge_state(state)
        return self._summarise(merged)

    def _sets(self, client: int | None) -> Sequence[tuple[str, np.ndarray]]:
        own = [] if client is None else [split.test for split in self.federation.clients if split.id == client]
        sets = [("personal_common", self.federation.test), ("validation", self.federation.validation)]
        sets += [("personal_own", indices) for indices in own if indices is not None]
        return [(name, indices) for name, indices in sets if len(indices)]

    def _personal(self, server: State) -> list[Any]:
        """Whole clients shared out over ranks."""
        costs = {client.id: float(sum(len(indices) for _, indices in self._sets(client.id))) for client in self.federation.clients}
        units = []
        for client_id in assign(costs, self.exchange.world_size)[self.exchange.rank]:
            kept = {key: tensor.to(self.fabric.device) for key, tensor in self.memory.load(client_id).items()}
            self.composer.install(self.method.download(server, client_id), kept)
            units += [((name, client_id), self._score(indices, 0, 1)) for name, indices in self._sets(client_id)]
        return units

    def _single(self, server: State) -> list[Any]:
        """One model: batches shared out over ranks. The common sets are counted under client -1."""
        self.composer.install(server, {})
        rank, world = self.exchange.rank, self.exchange.world_size
        units = [((name, -1), self._score(indices, rank, world)) for name, indices in self._sets(None)]
        for client in self.federation.clients:
            if client.test is not None and len(client.test):
                units.append((("personal_own", client.id), self._score(client.test, rank, world)))
        return units

    def _score(self, indices: np.ndarray, first: int, step: int) -> dict[str, Any]:
        metric = self.task.metric().to(self.fabric.device)
        for _, batch in self.loader.ordered(indices, self.batch_size, first, step):
            with self.fabric.autocast():
                output = self.task(batch["image"])
            self.task.update(metric, output, batch)
        return {name: value.cpu() for name, value in metric.metric_state.items()}

    def _summarise(self, merged: dict[tuple[str, int], Any]) -> Evaluation:
        result = Evaluation()
        sizes = {client.id: len(client.train) for client in self.federation.clients}
        sets = {client.id: dict(self._sets(client.id)) for client in self.federation.clients}
        for protocol in ("personal_common", "personal_own", "validation"):
            single = merged.get((protocol, -1))
            if single is not None and protocol == "personal_common":
                result.metrics |= {f"global/{name}": value for name, value in self.task.scores(single).items()}
            metrics = {client_id: merged.get((protocol, client_id)) if single is None else single for client_id in sizes}
            scores = {client_id: self.task.scores(metric) for client_id, metric in metrics.items() if metric is not None}
            if not scores:
                continue
            weights = np.array([sizes[client_id] for client_id in scores], dtype=np.float64)
            for name in next(iter(scores.values())):
                values = np.array([score[name] for score in scores.values()])
                result.metrics[f"{protocol}/{name}"] = float(values.mean())
                result.metrics[f"{protocol}/{name}_weighted"] = float(values @ weights / weights.sum())
                result.metrics[f"{protocol}/{name}_min"] = float(values.min())
            if protocol == "personal_own":
                pooled = self.task.metric()
                for metric in metrics.values():
                    if metric is not None:
                        pooled.merge_state(metric)
                result.metrics |= {f"{protocol}/{name}_pooled": value for name, value in self.task.scores(pooled).items()}
            result.rows += [
                {"client": client_id, "phase": "evaluate", "protocol": protocol, **score, "num_test": len(sets[client_id][protocol])}
                for client_id, score in scores.items()
            ]
        return result
