"""From the logs of a run to `result.json`: a pure function of records and facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedrs_lightning.errors import RunError
from fedrs_lightning.results.store import Record

FORMAT = 1
LAST_ROUNDS = 4
"""Rounds in the mean beside the last value. Even, since FedMAD's weights can oscillate with period two."""


def summarise(
    rounds: Sequence[Record],
    clients: Iterable[Record],
    *,
    protocol: str,
    metric: str,
    members: Sequence[Mapping[str, Any]],
    **facts: Any,
) -> dict[str, Any]:
    """Build the content of `result.json`.

    Args:
        rounds: records of `rounds.jsonl`.
        clients: records of `clients.jsonl`.
        protocol: headline protocol, for example `personal_common`.
        metric: headline metric without protocol, for example `overall_accuracy`.
        members: every client's `client` (id), `name` and `num_samples`, in order of id.
        **facts: written as they are: `experiment`, `method`, `label` (none takes `method`), `seed`, `config_hash` and
            `num_rounds` of the configuration, `protocols` (a sentence on each of this run), `classes` (that count in
            the metrics), `absent_classes` (that means over classes leave out, as the test data do not show them),
            `synthetic_data`, `digest` (of server state and all client memories), `digest_model` (of the server's
            `model/*`), `cost` (as `fedrs flops` counts it), `setup_bytes` (sent `up` and received `down` by all clients
            before round 1; not in `bytes`), `status` (another word than `complete` when the run ended early).

    Returns:
        Plain JSON values. `final` holds the last round; `last4` means over the last four evaluated rounds of every
        metric known in all of them (`last4_rounds` names these rounds); `headline.weighted` is null where the
        protocol has no mean weighted by training samples; `best` is null unless a metric `validation/<metric>` was
        logged: its largest value chooses the round, the earliest of equals, and never the test data.

    Raises:
        RunError: there is no round, or the last one lacks the headline value.
    """
    key = f"{protocol}/{metric}"
    evaluated = [record for record in rounds if record["metrics"].get(key) is not None]
    if not rounds:
        raise RunError("the run has no finished round, so there is nothing to sum up")
    last = rounds[-1]
    if not evaluated or evaluated[-1] is not last:
        known = ", ".join(sorted(last["metrics"])) or "nothing"
        problem = f"round {last['round']} has no {key}, only {known}"
        raise RunError(f"{problem}; the last round must be evaluated under the headline protocol")
    tail = evaluated[-LAST_ROUNDS:]
    last4 = _means([record["metrics"] for record in tail])
    rows = list(clients)
    headline = {"protocol": protocol, "metric": metric, "last": last["metrics"][key], "last4": last4[key]}
    absent: dict[str, Any] = {"absent_classes": [], "status": "complete", "cost": None, "setup_bytes": None}
    return {
        "format": FORMAT,
        **absent,
        **facts,
        "label": facts.get("label") or facts["method"],
        "num_clients": len(members),
        "headline": headline | {"weighted": last["metrics"].get(f"{key}_weighted")},
        "final": dict(last["metrics"]),
        "last4": last4,
        "last4_rounds": [record["round"] for record in tail],
        "best": _best(rounds, metric),
        "per_client": _per_client(rows, members, last["round"], protocol),
        "bytes": {way: sum(record.get("bytes", {}).get(way, 0) for record in rounds) for way in ("up", "down")},
        "setup_bytes": {"up": 0, "down": 0} | (facts.get("setup_bytes") or {}),
        "wall_seconds": sum(record.get("timing", {}).get("seconds", 0.0) for record in rounds),
        "optimizer_steps": sum(row.get("num_steps", 0) for row in rows if row.get("phase") == "train"),
    }


def _means(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    keys = [key for key in metrics[-1] if all(one.get(key) is not None for one in metrics)]
    return {key: sum(one[key] for one in metrics) / len(metrics) for key in keys}


def _best(rounds: Sequence[Record], metric: str) -> dict[str, Any] | None:
    key = f"validation/{metric}"
    candidates = [record for record in rounds if record["metrics"].get(key) is not None]
    if not candidates:
        return None
    best = max(candidates, key=lambda record: record["metrics"][key])
    value = best["metrics"][key]
    return {"round": best["round"], "chosen_on": "validation", "value": value, "metrics": dict(best["metrics"])}


def _per_client(
    rows: Iterable[Record], members: Sequence[Mapping[str, Any]], last: int, protocol: str
) -> list[dict[str, Any]]:
    """One row a client: headline metrics by their own name, other protocols' as `protocol/metric`."""
    table = {member["client"]: dict(member) for member in members}
    for row in rows:
        if row["round"] != last or row.get("phase") != "evaluate":
            continue
        client, prefix = row["client"], "" if row["protocol"] == protocol else f"{row['protocol']}/"
        if client not in table:
            problem = f"round {last} evaluates client {client}, which is not among the {len(table)} clients of the run"
            raise RunError(f"clients.jsonl: {problem}")
        values = {key: value for key, value in row.items() if key not in ("round", "client", "phase", "protocol")}
        table[client] |= {f"{prefix}{key}": value for key, value in values.items()}
    return list(table.values())
