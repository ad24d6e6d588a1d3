"""Evaluation under named protocols, shared out over ranks; counts are summed and samples gathered, scores taken once.

    global            one model, the common test set; only where a method has one model
    personal_common   each client's composed model on the common test set
    personal_own      each client's composed model on that client's own test data; per domain too, where clients have
    one validation        as personal_common, on data held out of training; the only one that may choose a round

Where a method has a single model, every client's composed model is that model, so that all methods stand in one table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.engine.cohort import assign
from fedrs_lightning.engine.local import LocalTraining
from fedrs_lightning.engine.ranks.exchange import Exchange
from fedrs_lightning.errors import ConfigError
from fedrs_lightning.types import State

_COMMON = "each client's composed model on the common test set; mean over clients, plain and weighted by"
_OWN = "each client's composed model on its own test data; mean over clients, pooled over all clients (counts summed or"
PROTOCOLS = {
    "global": "the one global model on the common test set",
    "personal_common": f"{_COMMON} training samples",
    "personal_own": f"{_OWN} samples gathered first), and pooled per domain",
    "validation": "each client's composed model on data held out of training; mean over clients",
}

ONE_MODEL = -1
"""Stands for the client where the one global model is scored."""

LARGEST_LOGGED = 4096
"""Entries of a count that still goes into the round log."""


@dataclass
class Evaluation:
    """Results of one round.

    Attributes:
        metrics: `protocol/score` with suffix `_weighted` (by training samples), `_min` (worst client), `_pooled`
            (counts or samples of all clients together before the score is taken), `@<domain>` (pooled within a domain)
            or `_domain_mean`. A score without a value is left out.
        rows: one per client and protocol; `absent_classes` where means over classes leave some out.
        counts: the pooled integer states of each protocol, such as a confusion matrix, as nested lists.
        absent: classes that the pooled data of each protocol do not show.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, list[str]] = field(default_factory=dict)


class Evaluator:
    """Evaluates the server's model and every client's composed model.

    Args:
        local: this rank's network, method, batches and memories.
        federation: test sets and clients (all of them, also where a method pools their training data).
        exchange: to other ranks.
        batch_size: of evaluation; fixes the chunks, so that results do not depend on the number of ranks.
    """

    def __init__(self, local: LocalTraining, federation: Federation, exchange: Exchange, batch_size: int) -> None:
        self.local, self.task = local, local.task
        self.federation, self.exchange, self.batch_size = federation, exchange, batch_size

    @property
    def headline(self) -> tuple[str, str]:
        """Protocol that a run reports, and suffix of its score.

        Test sets of different size and content, as under `personal_own`, are pooled; a common one needs no pooling.
        """
        protocol = self.federation.headline or ("personal_common" if len(self.federation.test) else "personal_own")
        return protocol, "_pooled" if protocol == "personal_own" else ""

    def check(self) -> None:
        """Refuse a run that would have nothing to report.

        Raises:
            ConfigError: no client has test data under the headline's protocol.
        """
        protocol, _ = self.headline
        known = {name for client in self.federation.clients for name, _ in self._sets(client)}
        if protocol not in known | {"global"}:
            problem = f"there are no test data for {protocol}, which this run reports"
            raise ConfigError(f"{problem}; give the data set more samples or another split")

    def __call__(self, server: State) -> Evaluation:
        """Evaluate the server state, which lies on the task's device.

        Raises:
            FedrsError: a client's memory or data cannot be read on any rank; on all of them.
        """
        mine: list[Any] = []
        self.task.eval()
        personal = self.local.method.personal_keys(self.task)
        with self.exchange.together(), torch.inference_mode():
            mine = self._personal(server) if personal else self._single(server)
        merged: dict[tuple[str, int], Metric] = {}
        for part in self.exchange.collect(mine):
            for unit, state in part:
                merged.setdefault(unit, self._pool([])).merge_state(state)
        return self._summarise(merged)

    def _sets(self, client: ClientSplit) -> list[tuple[str, np.ndarray]]:
        """Protocols that score this client's model, with their samples."""
        sets = {"personal_common": self.federation.test, "validation": self.federation.validation}
        sets |= {} if client.test is None else {"personal_own": client.test}
        known = self.federation.protocols
        return [(name, indices) for name, indices in sets.items() if len(indices) and name in known]

    def _personal(self, server: State) -> list[Any]:
        """Whole clients shared out over ranks, where they trained last if that keeps all busy."""
        sets = {client.id: self._sets(client) for client in self.federation.clients}
        costs = {client: float(sum(len(indices) for _, indices in own)) for client, own in sets.items()}
        units = []
        shares = assign(costs, self.exchange.world_size, self.local.memory.homes)
        for client_id in shares[self.exchange.rank]:
            self.local.compose(client_id, server)
            units += [((name, client_id), self._score(indices, 0, 1)) for name, indices in sets[client_id]]
        return units

    def _single(self, server: State) -> list[Any]:
        """One model: batches shared out over ranks, and a test set that several clients share is predicted once."""
        self.local.composer.install(server, {})
        found: dict[int, dict[str, Any]] = {}

        def score(indices: np.ndarray) -> dict[str, Any]:
            if id(indices) not in found:
                found[id(indices)] = self._score(indices, self.exchange.rank, self.exchange.world_size)
            return found[id(indices)]

        shared = len(self.federation.test) and "global" in self.federation.protocols
        units = [(("global", ONE_MODEL), score(self.federation.test))] if shared else []
        for client in self.federation.clients:
            units += [((name, client.id), score(indices)) for name, indices in self._sets(client)]
        return units

    def _score(self, indices: np.ndarray, first: int, step: int) -> dict[str, Any]:
        metric = self.task.metric()
        for _, batch in self.local.loader.ordered(indices, self.batch_size, first, step):
            with self.local.fabric.autocast():
                output = self.task(batch["image"])
            self.task.update(metric, output, batch)
        return {name: _on_cpu(value) for name, value in metric.metric_state.items()}

    def _scores(self, metric: Metric) -> dict[str, float]:
        """The scores that have a value."""
        return {name: value for name, value in self.task.scores(metric).items() if not math.isnan(value)}

    def _summarise(self, merged: dict[tuple[str, int], Metric]) -> Evaluation:
        result = Evaluation()
        for protocol in dict.fromkeys(name for name, _ in merged):
            ordered = sorted(merged.items(), key=lambda item: item[0])
            metrics = {unit: metric for (name, unit), metric in ordered if name == protocol}
            pooled = self._pool(metrics.values())
            result.counts |= {protocol: counts} if (counts := _plain_counts(pooled)) else {}
            result.absent |= {protocol: absent} if (absent := self.task.absent_classes(pooled)) else {}
            if protocol == "global":
                result.metrics |= {f"global/{name}": value for name, value in self._scores(pooled).items()}
                continue
            clients = [client for client in self.federation.clients if client.id in metrics]
            scores = {client.id: self._scores(metrics[client.id]) for client in clients}
            result.metrics |= {f"{protocol}/{name}": value for name, value in _means(scores, clients).items()}
            if protocol != "personal_common":
                result.metrics |= {f"{protocol}/{name}_pooled": value for name, value in self._scores(pooled).items()}
            if protocol == "personal_own":
                domains = self._by_domain(metrics, clients)
                result.metrics |= {f"{protocol}/{name}": value for name, value in domains.items()}
            for client in clients:
                row = {"client": client.id, "phase": "evaluate", "protocol": protocol} | scores[client.id]
                absent = self.task.absent_classes(metrics[client.id])
                row |= {"absent_classes": absent} if absent else {}
                result.rows.append(row | {"num_test": len(dict(self._sets(client))[protocol])})
        return result

    def _by_domain(self, metrics: dict[int, Metric], clients: Sequence[ClientSplit]) -> dict[str, float]:
        domains = [domain for domain in dict.fromkeys(client.domain for client in clients) if domain]
        scores = {}
        for domain in domains:
            own = [metrics[client.id] for client in clients if client.domain == domain]
            scores[domain] = self._scores(self._pool(own))
        named = {f"{name}@{domain}": value for domain in domains for name, value in scores[domain].items()}
        for name in _names(scores.values()) if domains else []:
            values = [score[name] for score in scores.values() if name in score]
            named[f"{name}_domain_mean"] = sum(values) / len(values)
        return named

    def _pool(self, metrics: Iterable[Metric]) -> Metric:
        pooled = self.task.metric().cpu()  # where the ranks' states are
        for metric in metrics:
            pooled.merge_state(metric)
        return pooled


def _names(scores: Iterable[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for score in scores for name in score))


def _means(scores: Mapping[int, Mapping[str, float]], clients: Sequence[ClientSplit]) -> dict[str, float]:
    """Mean over the clients that have a score (none for a class that a client's test data do not show)."""
    means: dict[str, float] = {}
    for name in _names(scores.values()):
        having = [client for client in clients if name in scores[client.id]]
        values = np.array([scores[client.id][name] for client in having])
        means[name] = float(values.mean())
        if "/" not in name:  # scores of single classes are given as plain means only
            weights = np.array([len(client.train) for client in having], dtype=np.float64)
            means[f"{name}_weighted"] = float(values @ weights / weights.sum())
            means[f"{name}_min"] = float(values.min())
    return means


def _on_cpu(state: Any) -> Any:
    """Counts as they are; gathered samples, batch by batch on the device, as one tensor in the list."""
    if isinstance(state, list):
        return [torch.cat(state).cpu()] if state else []
    return state.cpu()


def _plain_counts(metric: Metric) -> dict[str, Any]:
    states = {name: value for name, value in metric.metric_state.items() if isinstance(value, torch.Tensor)}
    small = {name: value for name, value in states.items() if value.numel() <= LARGEST_LOGGED}
    return {name: value.tolist() for name, value in small.items() if not value.is_floating_point()}
