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
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.files import atomic_path
from fedrs_lightning.results.hold import is_held
from fedrs_lightning.results.run import flatten
from fedrs_lightning.results.store import RunStore
from fedrs_lightning.results.tables import collect, full_name, is_lower_better, label_of, unknown_metric

# Okabe and Ito's colours, told apart under the common kinds of colour blindness, without yellow, too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.")
NUMBERED = 12  # clients that a picture of single clients can number
WORDS = {"map": "mAP", "miou": "mIoU", "f1": "F1"}
"""Spelling of parts of metric names."""
# Any: matplotlib types its keys as literals
PLAIN: Any = {"figure.dpi": 150, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
PLAIN |= {"axes.axisbelow": True, "axes.titlelocation": "left", "axes.titlesize": 10, "legend.frameon": False}
STYLE: Any = PLAIN | {"axes.grid": True, "axes.grid.axis": "y", "grid.color": "#dddddd", "grid.linewidth": 0.6}
BESIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
"""Place of a legend right of the axes."""


@dataclass
class Curve:
    """One label's runs: `values` [seeds, rounds] at the rounds that all of them evaluated."""

    label: str
    stores: list[RunStore]
    rounds: np.ndarray
    values: np.ndarray
    running: bool


def look(number: int) -> dict[str, Any]:
    """Colour and style of a line by its number."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def rounds_axis(axes: Any) -> None:
    """Whole rounds from left to right."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")


def heat_map(axes: Any, values: np.ndarray, colours: str, **options: Any) -> Any:
    """Show [rows, columns] as colours, NaN in grey; returns the image, for its colour bar."""
    shades = mpl.colormaps[colours].with_extremes(bad="#eeeeee")
    return axes.imshow(np.ma.masked_invalid(values), cmap=shades, **{"aspect": "auto", **options})


def coloured(mask: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Class ids in the colours of a palette (uint8 [C, 3]), ignored ones in black."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[: len(palette)] = palette
    return colours[mask]


def class_legend(figure: Figure, classes: Sequence[str], palette: np.ndarray, **options: Any) -> None:
    """The colour of each class, below the panels."""
    pairs = zip(classes, palette / 255, strict=False)
    handles = [Patch(facecolor=colour, edgecolor="#888888", label=name) for name, colour in pairs]
    figure.legend(handles=handles, loc="outside lower center", **options)


def plot_curves(stores: Sequence[RunStore], out: Path, metric: str | None = None) -> Path:
    """Mean over seeds with a band of one sample deviation, one colour a label.

    Runs that are not complete are drawn only where their label has no complete run, and called running or
    interrupted, as a process works on one of them or not.

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
            mean, count = curve.values.mean(0), len(curve.stores)
            seeds = f"{count} seed{'' if count == 1 else 's'}{f', {_state(*curve.stores)}' if curve.running else ''}"
            mark, name = "o" if len(curve.rounds) == 1 else None, f"{curve.label} ({seeds})"
            axes.plot(curve.rounds, mean, linewidth=1.8, marker=mark, label=name, **look(index))
            if count > 1:
                spread, colour = curve.values.std(0, ddof=1), look(index)["color"]
                axes.fill_between(curve.rounds, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
        rounds_axis(axes)
        _value_axis(axes, key, max(curve.values.max() for curve in curves))
        bands = any(len(curve.stores) > 1 for curve in curves)
        axes.set_title(_title(stores) + ("; bands: one deviation over seeds" if bands else ""))
        # The order of the last values: the legend reads like the right edge of the curves.
        handles, names = axes.get_legend_handles_labels()
        order = np.argsort([-curve.values.mean(0)[-1] for curve in curves], kind="stable")
        axes.legend([handles[i] for i in order], [names[i] for i in order], **BESIDE)
        return save(figure, out)


def plot_clients(stores: Sequence[RunStore], out: Path, metric: str | None = None) -> Path | None:
    """Every client in the last round, one column a label: a point a client and seed, its area by training samples.

    Up to `NUMBERED` clients carry their number, and stand side by side in its order; their names are beside them.

    Returns:
        `out`, or None when no complete run has values of single clients under this metric.
    """
    key = metric_key(stores, metric)
    protocol, _, name = key.partition("/")
    columns: dict[str, list[tuple[float, float, int]]] = {}
    names: dict[int, str] = {}
    for group in collect(stores).groups:
        for result in group.results:
            own = name if result["headline"]["protocol"] == protocol else key
            column = own.removesuffix("_pooled")  # of one client
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
                    over: Any = {"textcoords": "offset points", "ha": "center", "va": "bottom"}
                    axes.annotate(str(client), place, (0, 5), fontsize=6, **over)
            axes.hlines(values.mean(), index - 0.36, index + 0.36, color=colour, linewidth=2)
        axes.set_xticks(range(len(columns)), list(columns), rotation=20 if max(map(len, columns)) > 12 else 0)
        axes.set_xlim(-0.6, len(columns) - 0.4)
        highest = max(value for points in columns.values() for value, _, _ in points)
        _value_axis(axes, key.removesuffix("_pooled"), highest)
        given = {client: name for client, name in names.items() if name not in ("", str(client), f"client {client}")}
        told = "\n".join(f"{client} {given[client]}" for client in places if client in given)
        offset: Any = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate(told, (1, 1), (6, 0), va="top", fontsize=7, **offset)
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
    with mpl.rc_context(PLAIN):
        figure = Figure(figsize=(7.2, 0.8 + len(panels) * (0.9 + 0.22 * min(len(clients), 30))), layout="constrained")
        for index, (key, panel) in enumerate(sorted(panels.items(), key=lambda item: item[0] != "weight")):
            axes = figure.add_subplot(len(panels), 1, index + 1)
            grid = np.full((len(clients), last), np.nan)
            for (client, number), value in panel.items():
                grid[clients.index(client), number - 1] = value
            signed = bool(np.nanmin(grid) < 0)
            limit = max(float(np.nanmax(np.abs(grid))), 1e-12)
            place: Any = {"interpolation": "nearest", "extent": (0.5, last + 0.5, len(clients) - 0.5, -0.5)}
            scale = {"vmin": -limit if signed else 0, "vmax": limit}
            image = heat_map(axes, grid, "PuOr_r" if signed else "cividis", **scale, **place)
            every = -(-len(clients) // 30)
            shown = [names.get(client, f"client {client}") for client in clients[::every]]
            axes.set_yticks(range(0, len(clients), every), shown, fontsize=7)
            rounds_axis(axes)
            axes.set_xlabel("round" if index == len(panels) - 1 else "")
            score = f"score ({key.rpartition('/')[0]}): agreement with the cohort, -1 to 1"
            axes.set_title("aggregation weight" if key == "weight" else score)
            figure.colorbar(image, ax=axes, pad=0.01)
        label = (
            f"{label_of(store, result)}, seed {result['seed']}"
            if result
            else f"{_running_label(store)}, {_state(store)}"
        )
        absent = any(len(panel) < len(clients) * last for panel in panels.values())
        figure.suptitle(f"{label}{'; grey: not in the cohort' if absent else ''}", x=0.01, ha="left", fontsize=10)
        return save(figure, out)


def weighted_runs(stores: Sequence[RunStore]) -> list[tuple[str, RunStore]]:
    """One run a label, complete if there is one, whose client log has scores; with a name for its file."""
    found: dict[str, RunStore] = {}
    collection = collect(stores)
    runs = [(group.label, group.experiment, group.stores[0]) for group in collection.groups]
    runs += [(_running_label(store), store.path.parent.name, store) for store, _ in collection.left_out]
    for label, experiment, store in runs:
        name = re.sub(r"[^A-Za-z0-9.=+-]+", "-", _named(label, experiment, stores)).strip("-")
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
    for store in stores:
        for record in store.rounds():
            known |= {key: None for key, value in record.get("metrics", {}).items() if value is not None}
    if not known:
        raise RunError(f"{stores[0].path}: no round is finished yet, so there is nothing to draw")
    results = [result for store in stores if (result := store.result()) is not None]
    headline = next((result["headline"] for result in results if "headline" in result), None)
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
    drawn = {(group.experiment, group.label.partition(" [")[0]) for group in complete.groups}
    running: dict[tuple[str, str], list[RunStore]] = {}
    for store, _ in complete.left_out:
        name = (store.path.parent.name, _running_label(store))
        if name not in drawn:
            running.setdefault(name, []).append(store)
    rows = [(group.experiment, group.label, group.stores, False) for group in complete.groups]
    rows += [(experiment, label, members, True) for (experiment, label), members in running.items()]
    curves = []
    for experiment, label, members, unfinished in rows:
        logs = [
            [(record["round"], record.get("metrics", {}).get(key)) for record in store.rounds()] for store in members
        ]
        series = [{number: value for number, value in log if value is not None} for log in logs]
        rounds = sorted(set.intersection(*map(set, series)))
        if rounds:
            values = np.array([[one[number] for number in rounds] for one in series], dtype=float)
            curves.append(Curve(_named(label, experiment, stores), members, np.array(rounds), values, unfinished))
    if not curves:
        raise ConfigError(f"no run has the metric '{key}' in a round that all seeds of its label have evaluated")
    return curves


def _state(*stores: RunStore) -> str:
    return "running" if any(is_held(store.path) for store in stores) else "interrupted"


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
    facts = [store.result() or store.manifest() or {} for store in stores]
    synthetic = any(fact.get(key) for fact in facts for key in ("synthetic_data", "synthetic"))
    names = _experiments(stores)
    more = len(names) - 2  # a longer title squeezes the axes
    shown = ", ".join(names) if more < 2 else f"{', '.join(names[:2])} and {more} more"
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
