"""Pictures of runs: learning curves, clients in the last round, weights and scores over rounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.files import atomic_path
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.tables import collect, flatten, full_name, is_lower_better, label_of, unknown_metric

# Okabe and Ito's colours, told apart under the common kinds of colour blindness; yellow is left out as too pale for a
# line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.")
NUMBERED = 12  # clients that a picture of single clients can number
WORDS = {"map": "mAP", "miou": "mIoU", "f1": "F1"}
"""Spelling of parts of metric names."""
STYLE: Any = {  # matplotlib types its keys as literals
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "legend.frameon": False,
}


@dataclass
class Curve:
    """One label's runs: `values` [seeds, rounds] at the rounds that all of them evaluated."""

    label: str
    stores: list[RunStore]
    rounds: np.ndarray
    values: np.ndarray
    running: bool


def plot_curves(stores: Sequence[RunStore], out: Path, metric: str | None = None) -> Path:
    """Mean over seeds with a band of one sample deviation, one colour a label.

    Runs that are not complete are drawn, and called running, only where their label has no complete run.

    Args:
        stores: runs of any number of labels and seeds.
        out: picture to write; its suffix chooses the format.
        metric: `protocol/metric` or a metric's own name; None takes the headline of the first complete run, or the
            first evaluated metric of a running one.

    Raises:
        ConfigError: no run logged the metric.
    """
    key = metric_key(stores, metric)
    curves = _curves(stores, key)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for index, curve in enumerate(curves):
            colour, style = COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]
            mean = curve.values.mean(0)
            seeds = (
                f"{len(curve.stores)} seed{'' if len(curve.stores) == 1 else 's'}{', running' if curve.running else ''}"
            )
            mark = "o" if len(curve.rounds) == 1 else None
            axes.plot(
                curve.rounds,
                mean,
                color=colour,
                linestyle=style,
                linewidth=1.8,
                marker=mark,
                label=f"{curve.label} ({seeds})",
            )
            if len(curve.stores) > 1:
                spread = curve.values.std(0, ddof=1)
                axes.fill_between(curve.rounds, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _value_axis(axes, key, max(curve.values.max() for curve in curves))
        axes.set_title(
            _title(stores)
            + ("; bands: one deviation over seeds" if any(len(curve.stores) > 1 for curve in curves) else "")
        )
        # The order of the last values: the legend reads like the right edge of the curves.
        handles, names = axes.get_legend_handles_labels()
        order = np.argsort([-curve.values.mean(0)[-1] for curve in curves], kind="stable")
        axes.legend(
            [handles[i] for i in order], [names[i] for i in order], loc="center left", bbox_to_anchor=(1.01, 0.5)
        )
        return save(figure, out)


def plot_clients(stores: Sequence[RunStore], out: Path, metric: str | None = None) -> Path | None:
    """Every client in the last round, one column a label: a point a client and seed, its area by training samples.

    Up to `NUMBERED` clients carry their number, and stand side by side in its order; their names are beside the
    picture.

    Returns:
        `out`, or None when no complete run has values of single clients under this metric.
    """
    key = metric_key(stores, metric)
    protocol, _, name = key.partition("/")
    columns: dict[str, list[tuple[float, float, int]]] = {}
    names: dict[int, str] = {}
    for group in collect(stores).groups:
        for result in group.results:
            column = (name if result["headline"]["protocol"] == protocol else key).removesuffix(
                "_pooled"
            )  # of one client
            rows = [row for row in result["per_client"] if row.get(column) is not None]
            points = [(row[column], row.get("num_samples", 1), row["client"]) for row in rows]
            names |= {row["client"]: row.get("name") or "" for row in rows}
            if points:
                columns.setdefault(_named(group.label, group.experiment, stores), []).extend(points)
    if not columns:
        return None
    largest = max(size for points in columns.values() for _, size, _ in points)
    places = {client: place for place, client in enumerate(sorted(names))} if len(names) <= NUMBERED else {}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(4.5, 1.1 * len(columns) + 1.5), 4.0), layout="constrained")
        axes = figure.add_subplot()
        for index, points in enumerate(columns.values()):
            values, sizes, clients = np.array(points, dtype=float).T
            # Golden-ratio steps spread the points evenly and the same way in every picture.
            shift = ((np.arange(len(values)) * 0.618034) % 1 - 0.5) * 0.5
            if places:
                shift = (np.array([places[int(client)] for client in clients]) + 0.5) / len(places) * 0.7 - 0.35
            colour = COLOURS[index % len(COLOURS)]
            axes.scatter(index + shift, values, s=12 + 90 * sizes / largest, color=colour, alpha=0.55, linewidth=0)
            for client in places:
                which = clients == client
                if which.any():
                    place = (index + shift[which][0], values[which].max())
                    axes.annotate(
                        str(client), place, (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=6
                    )
            axes.hlines(values.mean(), index - 0.36, index + 0.36, color=colour, linewidth=2)
        axes.set_xticks(range(len(columns)), list(columns), rotation=20 if max(map(len, columns)) > 12 else 0)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        _value_axis(
            axes, key.removesuffix("_pooled"), max(value for points in columns.values() for value, _, _ in points)
        )
        told = [
            f"{client} {names[client]}"
            for client in places
            if names[client] not in ("", str(client), f"client {client}")
        ]
        if told:
            axes.annotate(
                "\n".join(told),
                (1, 1),
                (6, 0),
                xycoords="axes fraction",
                textcoords="offset points",
                va="top",
                fontsize=7,
            )
        axes.set_title(f"{_title(stores)}: clients in the last round\n(area: training samples, line: mean)", fontsize=9)
        return save(figure, out)


def plot_weights(store: RunStore, out: Path) -> Path | None:
    """Aggregation weights and alignment scores of one run, clients against rounds.

    Returns:
        `out`, or None when the client log holds no weight.
    """
    panels: dict[str, dict[tuple[int, int], float]] = {}
    for row in store.clients():
        if row.get("phase") != "train":
            continue
        for key, value in row.items():
            if value is not None and (key == "weight" or key.endswith("/score")):
                panels.setdefault(key, {})[row["client"], row["round"]] = value
    if "weight" not in panels:
        return None
    clients = sorted({client for panel in panels.values() for client, _ in panel})
    last = max(number for panel in panels.values() for _, number in panel)
    result = store.result() or {}
    names = {row["client"]: row.get("name") or f"client {row['client']}" for row in result.get("per_client", [])}
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7.2, 0.8 + len(panels) * (0.9 + 0.22 * min(len(clients), 30))), layout="constrained")
        for index, (key, panel) in enumerate(sorted(panels.items(), key=lambda item: item[0] != "weight")):
            axes = figure.add_subplot(len(panels), 1, index + 1)
            grid = np.full((len(clients), last), np.nan)
            for (client, number), value in panel.items():
                grid[clients.index(client), number - 1] = value
            signed = bool(np.nanmin(grid) < 0)
            limit = max(float(np.nanmax(np.abs(grid))), 1e-12)
            colours = mpl.colormaps["PuOr_r" if signed else "cividis"].with_extremes(bad="#eeeeee")
            image = axes.imshow(
                np.ma.masked_invalid(grid),
                aspect="auto",
                interpolation="nearest",
                cmap=colours,
                vmin=-limit if signed else 0,
                vmax=limit,
                extent=(0.5, last + 0.5, len(clients) - 0.5, -0.5),
            )
            every = -(-len(clients) // 30)
            axes.set_yticks(
                range(0, len(clients), every),
                [names.get(client, f"client {client}") for client in clients[::every]],
                fontsize=7,
            )
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("round" if index == len(panels) - 1 else "")
            axes.set_title(
                "aggregation weight"
                if key == "weight"
                else f"score ({key.rpartition('/')[0]}): agreement with the cohort, -1 to 1"
            )
            figure.colorbar(image, ax=axes, pad=0.01)
        label = label_of(store, result) if result else f"{_running_label(store)}, running"
        seed = f", seed {result['seed']}" if result else ""
        absent = (
            "; grey: not in the cohort" if any(len(panel) < len(clients) * last for panel in panels.values()) else ""
        )
        figure.suptitle(f"{label}{seed}{absent}", x=0.01, ha="left", fontsize=10)
        return save(figure, out)


def weighted_runs(stores: Sequence[RunStore]) -> list[tuple[str, RunStore]]:
    """One run a label, complete if there is one, whose client log has scores; with a name for its file."""
    found: dict[str, RunStore] = {}
    collection = collect(stores)
    groups = [(_named(group.label, group.experiment, stores), group.stores[0]) for group in collection.groups]
    groups += [
        (_named(_running_label(store), store.path.parent.name, stores), store) for store, _ in collection.left_out
    ]
    for label, store in groups:
        name = re.sub(r"[^A-Za-z0-9.=+-]+", "-", label).strip("-")
        if name not in found and any(key.endswith("/score") for row in store.clients() for key in row):
            found[name] = store
    return list(found.items())


def metric_key(stores: Sequence[RunStore], metric: str | None) -> str:
    """Full name `protocol/metric` of what is drawn.

    Raises:
        ConfigError: no run logged it; names what there is.
        RunError: no run has an evaluated round yet.
    """
    known: dict[str, None] = {}
    headline = None
    for store in stores:
        result = store.result()
        if result is not None and headline is None:
            headline = result["headline"]
        known |= {
            key: None for record in store.rounds() for key, value in record["metrics"].items() if value is not None
        }
    if not known:
        raise RunError(f"{stores[0].path}: no round is finished yet, so there is nothing to draw")
    scores = [key for key in known if not is_lower_better(key)] or list(known)
    default = f"{headline['protocol']}/{headline['metric']}" if headline else scores[0]
    if metric is None:
        return default
    protocol = default.partition("/")[0]
    wanted = full_name(metric, protocol, known)
    if wanted not in known:
        raise unknown_metric(metric, known, [protocol])
    return wanted


def _curves(stores: Sequence[RunStore], key: str) -> list[Curve]:
    complete = collect(stores)
    curves = []
    drawn: set[tuple[str, str]] = set()
    for group in complete.groups:
        drawn.add((group.experiment, group.label.partition(" [")[0]))
        curve = _curve(_named(group.label, group.experiment, stores), group.stores, key, running=False)
        curves.extend([curve] if curve else [])
    running: dict[tuple[str, str], list[RunStore]] = {}
    for store, _ in complete.left_out:
        name = (store.path.parent.name, _running_label(store))
        if name not in drawn:
            running.setdefault(name, []).append(store)
    for (experiment, label), members in running.items():
        curve = _curve(_named(label, experiment, stores), members, key, running=True)
        curves.extend([curve] if curve else [])
    if not curves:
        raise ConfigError(f"no run has the metric '{key}' in a round that all seeds of its label have evaluated")
    return curves


def _curve(label: str, stores: list[RunStore], key: str, running: bool) -> Curve | None:
    series = []
    for store in stores:
        series.append(
            {
                record["round"]: record["metrics"][key]
                for record in store.rounds()
                if record["metrics"].get(key) is not None
            }
        )
    rounds = sorted(set.intersection(*map(set, series)))
    if not rounds:
        return None
    values = np.array([[one[number] for number in rounds] for one in series], dtype=float)
    return Curve(label, stores, np.array(rounds), values, running)


def _running_label(store: RunStore) -> str:
    config = flatten(store.config())
    method = config.get("method.class_path", config.get("method"))
    name = str(method).rpartition(".")[2] if method else store.path.name
    label = config.get("run.label")
    return f"{name} {label}" if label else name


def _experiments(stores: Sequence[RunStore]) -> list[str]:
    return list(dict.fromkeys((store.result() or {}).get("experiment", store.path.parent.name) for store in stores))


def _named(label: str, experiment: str, stores: Sequence[RunStore]) -> str:
    return label if len(_experiments(stores)) == 1 else f"{experiment}: {label}"


def _title(stores: Sequence[RunStore]) -> str:
    synthetic = any(
        (store.result() or store.manifest() or {}).get(key)
        for store in stores
        for key in ("synthetic_data", "synthetic")
    )
    names = _experiments(stores)
    more = len(names) - 2
    shown = (
        ", ".join(names) if more < 2 else f"{', '.join(names[:2])} and {more} more"
    )  # a longer title squeezes the axes
    return shown + (" (synthetic data)" if synthetic else "")


def _value_axis(axes: Any, key: str, largest: float) -> None:
    protocol, _, name = key.partition("/")
    percent = not is_lower_better(key) and largest <= 1
    name = " ".join(WORDS.get(word, word) for word in name.split("_"))
    axes.set_ylabel(name + (" [%]" if percent else "") + (f", {protocol}" if protocol else ""))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol="", decimals=None))


def save(figure: Figure, out: Path) -> Path:
    """Write a figure atomically; the suffix chooses the format.

    Raises:
        ConfigError: a suffix that is no picture format.
    """
    # The object interface needs no pyplot state, so that a run can draw in a process that has figures of its own.
    FigureCanvasAgg(figure)
    kind = out.suffix.lstrip(".") or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ConfigError(f"{out}: pictures cannot be written as '{kind}'; use one of {', '.join(sorted(known))}")
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format=kind)
    return out
