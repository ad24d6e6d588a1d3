"""Tables over runs: mean and sample deviation over seeds of every (experiment, label).

`collect` sorts runs into groups and says what it left out, `tabulate` computes, `render.py` writes. Runs that are not
complete and runs of another configuration never enter a mean.
"""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.files import RESTORE, misfit
from fedrs_lightning.results.run import flatten, is_harmless
from fedrs_lightning.results.store import Record, RunStore

FREE_KEYS = ("seed", "run", "resume", "config", "print_config")
"""Parts of a configuration in which the runs of one row may differ."""

RULES = (
    ("last round", "final", ""),
    ("mean of last rounds", "last4", ""),
    ("weighted, last round", "final", "_weighted"),
)
"""Columns of a metric: title, entry of `result.json` and suffix of the metric."""

POOLED = "_pooled"
"""Suffix of a score over all clients' test data together."""

_NEEDED = ("seed", "num_rounds", "headline", "final", "last4", "per_client")  # of a complete result


@dataclass
class Group:
    """Complete runs of one row: same experiment, label and configuration; one a seed."""

    experiment: str
    label: str
    stores: list[RunStore] = field(default_factory=list)
    results: list[Record] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> tuple[str, str]:
        """Protocol and metric that the runs report first."""
        headline = self.results[0]["headline"]
        return str(headline["protocol"]), str(headline["metric"])


@dataclass
class Collection:
    """Groups in order of first appearance, runs that are not complete with the reason, and notes."""

    groups: list[Group]
    left_out: list[tuple[RunStore, str]]
    notes: list[str]


@dataclass(frozen=True)
class Cell:
    """Mean over seeds; `deviation` is the sample standard deviation (n - 1), None for one seed."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]
    best: bool = False


@dataclass
class Table:
    """Rows of one experiment. `cells[row][column]` is None where a row has no such value."""

    experiment: str
    caption: list[str]
    columns: list[str]
    labels: list[str]
    protocols: list[str]
    rounds: list[int]
    seeds: list[list[int]]
    cells: list[list[Cell | None]]
    percent: list[bool]


def collect(stores: Iterable[RunStore]) -> Collection:
    """Sort runs into groups.

    Runs of one label whose configurations differ in more than the seed become rows of their own, with the differing
    keys in the label and a note. A seed that appears twice counts once, with a note.
    """
    buckets: dict[tuple[str, str], list[tuple[RunStore, Record, dict[str, Any]]]] = {}
    left_out: list[tuple[RunStore, str]] = []
    notes: list[str] = []
    for store in stores:
        try:
            result = store.result()
            if result is None or result.get("status") != "complete":
                left_out.append((store, _progress(store, result)))
                continue
            problem = misfit(result, {f"{name}!": object for name in _NEEDED})
            if problem is not None:
                raise RunError(f"{store.path / 'result.json'}: {problem}; {RESTORE}, the run writes it again")
            key = (_text(store, result, "experiment"), label_of(store, result))
            result["devices"] = store.devices()
            buckets.setdefault(key, []).append((store, result, flatten(store.config())))
        except RunError as error:
            left_out.append((store, str(error)))
    groups = [group for key, runs in buckets.items() for group in _split(*key, runs, notes)]
    return Collection(groups, left_out, notes)


def tabulate(collection: Collection, metrics: Sequence[str] = ()) -> list[Table]:
    """Compute one table an experiment; numbers of different experiments must not be compared, so they share none.

    Args:
        collection: what `collect` returned.
        metrics: names such as `overall_accuracy` (under the headline protocol) or `personal_own/overall_accuracy`;
            empty takes the headline metric and, where a run has it, the same metric under `global`; a pooled one has
            its mean over clients beside it.

    Raises:
        ConfigError: no complete run has the metric; names the nearest one.
    """
    for metric in metrics:
        check_metric(metric, collection.groups)
    experiments: dict[str, list[Group]] = {}
    for group in collection.groups:
        experiments.setdefault(group.experiment, []).append(group)
    return [_table(experiment, groups, list(dict.fromkeys(metrics))) for experiment, groups in experiments.items()]


def check_metric(metric: str, groups: Sequence[Group]) -> None:
    """Make sure that a run has the metric; a name without protocol is read under the headline protocol.

    Raises:
        ConfigError: none has it; names the nearest one.
    """
    known = {key for group in groups for result in group.results for key in result["final"]}
    if not groups or any(_key(group, metric) in result["final"] for group in groups for result in group.results):
        return
    raise unknown_metric(metric, known, {group.headline[0] for group in groups})


def full_name(metric: str, protocol: str, known: Iterable[str]) -> str:
    """`protocol/metric` for a name, which may hold a slash itself (`ap/forest`), that is not a full one already."""
    return metric if metric in known else f"{protocol}/{metric}"


def unknown_metric(metric: str, known: Iterable[str], protocols: Iterable[str]) -> ConfigError:
    """Error that names the nearest known metric, or all of them.

    Args:
        metric: as given.
        known: full names.
        protocols: under which a name that is not full is read.
    """
    known = set(known)
    starts = [f"{protocol}/" for protocol in protocols]
    short = {key.removeprefix(start) for start in starts for key in known if key.startswith(start)}
    names = sorted(short | known if "/" in metric or not short else short)
    near = difflib.get_close_matches(metric, names, n=1, cutoff=0.5)
    remedy = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}"
    return ConfigError(f"no run has the metric '{metric}'; {remedy}")


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Dotted keys in which two flat configurations differ, apart from seed and run."""
    keys = [key for key in dict.fromkeys([*first, *second]) if key.split(".")[0] not in FREE_KEYS]
    absent = object()
    return [key for key in keys if first.get(key, absent) != second.get(key, absent)]


def label_of(store: RunStore, result: Record) -> str:
    """Label of a run in tables and plots: the method, with the settings it was swept over."""
    method, label = _text(store, result, "method"), _text(store, result, "label")
    return label if label.startswith(method) else f"{method} {label}"


def is_lower_better(metric: str) -> bool:
    """Whether a smaller value wins: losses."""
    return "loss" in metric.rpartition("/")[2] or metric.startswith(("loss/", "train/loss"))


def _text(store: RunStore, result: Record, key: str) -> str:
    if not isinstance(result.get(key), str):
        problem = f"'{key}' is missing; the run was written by another version, run it again"
        raise RunError(f"{store.path / 'result.json'}: {problem}")
    return str(result[key])


def _progress(store: RunStore, result: Record | None) -> str:
    rounds = store.rounds()
    done = rounds[-1]["round"] if rounds else 0
    total = flatten(store.config()).get("schedule.num_rounds")
    text = f"round {done} of {total}" if total is not None else f"round {done}"
    return text if result is None else f"{result.get('status')}, {text}"


def _split(experiment: str, label: str, runs: list[tuple[RunStore, Record, Record]], notes: list[str]) -> list[Group]:
    groups: list[Group] = []
    harmless: dict[str, None] = {}
    for store, result, config in runs:
        for group in groups:
            keys = differing(group.config, config)
            if all(map(is_harmless, keys)):
                harmless |= dict.fromkeys(keys)
                _add(group, store, result, notes)
                break
        else:
            group = Group(experiment, label, config=config)
            _add(group, store, result, notes)
            groups.append(group)
    for group in groups:
        pairs = sorted(zip(group.stores, group.results, strict=True), key=lambda pair: pair[1]["seed"])
        group.stores, group.results = [store for store, _ in pairs], [result for _, result in pairs]
    if harmless:
        notes.append(f"{label}: the runs differ in {', '.join(harmless)}")
    if len(groups) > 1:
        differ = [key for group in groups[1:] for key in differing(groups[0].config, group.config)]
        keys = list(dict.fromkeys(key for key in differ if not is_harmless(key)))
        apart = f"differ in more than the seed and are not averaged: {', '.join(keys)}"
        notes.append(f"{label}: the configurations {apart}")
        shown = keys[:3]
        for group in groups:
            values = ", ".join(f"{key.rpartition('.')[2]}={group.config.get(key, 'absent')}" for key in shown)
            group.label = f"{label} [{values}{', ...' if len(keys) > len(shown) else ''}]"
    return groups


def _add(group: Group, store: RunStore, result: Record, notes: list[str]) -> None:
    for other, known in zip(group.stores, group.results, strict=True):
        if known["seed"] == result["seed"]:
            same = "with the same result" if known.get("digest") == result.get("digest") else "with another result"
            which = f"{other.path} counts, {store.path} ({same}) does not"
            notes.append(f"{group.label}: seed {result['seed']} appears twice; {which}")
            return
    group.stores.append(store)
    group.results.append(result)


def _key(group: Group, metric: str) -> str:
    return full_name(metric, group.headline[0], {key for result in group.results for key in result["final"]})


def _table(experiment: str, groups: list[Group], metrics: list[str]) -> Table:
    headlines = ["/".join(group.headline) for group in groups]
    found: list[tuple[str, str, list[Cell | None]]] = []  # title, metric and cells
    for metric in metrics or [""]:
        keys = [_key(group, metric) if metric else "/".join(group.headline) for group in groups]
        for title, rule, suffix in RULES:
            cells = [_cell(group, rule, key + suffix) for group, key in zip(groups, keys, strict=True)]
            found.append((f"{metric}, {title}" if metric else title, metric, cells))
    if not metrics:
        found.append(("client mean, last round", "", [_beside(group, None) for group in groups]))
        found.append(("global, last round", "", [_beside(group, "global") for group in groups]))
    found = [(title, metric or groups[0].headline[1], cells) for title, metric, cells in found if any(cells)]
    lower = [is_lower_better(metric) for _, metric, _ in found]
    # Under different protocols the same number means different things: the best is marked among equals only.
    pool = [""] * len(groups) if metrics else headlines
    marked = [_mark(cells, pool, low) for (_, _, cells), low in zip(found, lower, strict=True)]
    shares = [all(abs(cell.mean) <= 1 for cell in cells if cell) for cells in marked]
    return Table(
        experiment=experiment,
        caption=_caption(experiment, groups, metrics),
        columns=[title for title, _, _ in found],
        labels=[group.label for group in groups],
        protocols=headlines,
        rounds=[int(group.results[0]["num_rounds"]) for group in groups],
        seeds=[[result["seed"] for result in group.results] for group in groups],
        cells=[list(row) for row in zip(*marked, strict=True)] if marked else [[] for _ in groups],
        percent=[share and not low for share, low in zip(shares, lower, strict=True)],
    )


def _beside(group: Group, protocol: str | None) -> Cell | None:
    """What stands beside the headline: its score under another protocol, or the mean of a pooled one over clients."""
    own, metric = group.headline
    score = metric.removesuffix(POOLED)
    if protocol == own or (protocol is None and score == metric):
        return None
    return _cell(group, "final", f"{protocol or own}/{score}")


def _cell(group: Group, rule: str, key: str) -> Cell | None:
    values = [result[rule].get(key) for result in group.results]
    known = tuple(float(value) for value in values if value is not None)
    if len(known) < len(values):
        return None
    return Cell(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, known)


def _mark(cells: Sequence[Cell | None], pool: Sequence[str], lower: bool) -> list[Cell | None]:
    marked = list(cells)
    for name in set(pool):
        rows = [(cell, index) for index, cell in enumerate(cells) if cell is not None and pool[index] == name]
        if len(rows) > 1:
            best = (min if lower else max)(cell.mean for cell, _ in rows)
            for cell, index in rows:
                if cell.mean == best:
                    marked[index] = Cell(cell.mean, cell.deviation, cell.values, best=True)
    return marked


def _caption(experiment: str, groups: list[Group], metrics: Sequence[str]) -> list[str]:
    results = [result for group in groups for result in group.results]
    synthetic = any(result.get("synthetic_data") for result in results)
    kind = "; synthetic data, not an Earth-observation result" if synthetic else ""
    protocols = _either(group.headline[0] for group in groups)
    lines = [f"{experiment}: {_span(results, 'num_clients', 'client')}, {_span(results, 'num_rounds', 'round')}{kind}"]
    if metrics:
        lines.append(f"Metrics: {', '.join(metrics)}; a name without protocol is read under {protocols}")
    else:
        lines.append(f"Metric: {_either(group.headline[1] for group in groups)}, protocol {protocols}")
        sentences: dict[str, str] = {}
        for result in results:
            wanted = (result["headline"]["protocol"], "global")
            sentences |= {name: text for name, text in result.get("protocols", {}).items() if name in wanted}
        lines += [f"{name}: {text}" for name, text in sentences.items()]
    tails = _either(str(count) for count in sorted({len(result.get("last4_rounds", ())) for result in results}))
    lines.append(f"Values of the last round, and the mean over the last {tails} evaluated rounds")
    lines += _steps(results)
    lines.append("Mean ± sample deviation over seeds; * best of its column")
    if len({group.headline for group in groups}) > 1:
        lines.append("The rows have different protocols: the best is marked among rows of one protocol only")
    return lines + _devices(groups)


def _devices(groups: Sequence[Group]) -> list[str]:
    """Where runs come from different devices, which runs come from which."""
    known: dict[str, list[str]] = {}
    for group in groups:
        seeds: dict[str, list[int]] = {}
        for result in group.results:
            seeds.setdefault(" and ".join(sorted(result.get("devices", ()))), []).append(result["seed"])
        for names, some in seeds.items():
            which = f" seed {', '.join(map(str, some))}" if len(seeds) > 1 else ""
            known.setdefault(names, []).append(f"{group.label}{which}")
    known.pop("", None)  # written by a version that did not say
    if len({name for group in groups for result in group.results for name in result.get("devices", ())}) < 2:
        return []
    shares = "; ".join(f"{names}: {', '.join(rows)}" for names, rows in known.items())
    return [f"Computed on different devices, which round differently: {shares}"]


def _steps(results: Sequence[Record]) -> list[str]:
    """Optimiser steps of the runs over their clients: rounds and epochs alone do not say how long they trained."""
    known = [(result.get("optimizer_steps"), result.get("num_clients")) for result in results]
    counts = [(steps, clients) for steps, clients in known if isinstance(steps, int) and isinstance(clients, int)]
    shares = sorted({steps / clients for steps, clients in counts if clients})
    if not shares:
        return []
    span = f"{shares[0]:.6g}" if len(shares) == 1 else f"{shares[0]:.6g} to {shares[-1]:.6g}"
    return [f"Optimiser steps of a run divided by its clients: {span}"]


def _either(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _span(results: Sequence[Record], key: str, noun: str) -> str:
    numbers = sorted({int(result[key]) for result in results if isinstance(result.get(key), int)})
    if not numbers:
        return f"unknown number of {noun}s"
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{text} {noun}{'' if numbers == [1] else 's'}"
