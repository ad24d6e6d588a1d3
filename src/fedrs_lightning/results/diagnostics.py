"""Pictures of what happened inside a run: confusion matrix, loss terms, gates, drift, descriptors, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedrs_lightning.results import plots
from fedrs_lightning.results.plots import BESIDE, COLOURS, PLAIN, STYLE, look, save
from fedrs_lightning.results.store import RunStore

MARKERS = "osD^vP*X"


def plot_confusion(counts: np.ndarray, classes: Sequence[str], out: Path, title: str) -> Path:
    """Confusion matrix, each row divided by its sum; numbers in percent.

    Args:
        counts: int [C, C], rows are labels, columns predictions.
        classes: C names.
        out: picture to write.
        title: says which data and protocol.
    """
    counts = np.asarray(counts, dtype=np.float64)
    support = counts.sum(1, keepdims=True)
    share = np.divide(counts, support, out=np.full_like(counts, np.nan), where=support > 0)
    side = 2.2 + 0.5 * len(classes)
    with mpl.rc_context(PLAIN):
        wide = max(side + 1.2, 4.8)  # the title of three classes needs the width
        figure = Figure(figsize=(wide, side), layout="constrained")
        axes = figure.add_subplot()
        image = plots.heat_map(axes, share, "Blues", vmin=0, vmax=1, aspect="equal")
        for row, column in np.argwhere(np.isfinite(share)):
            text, colour = f"{100 * share[row, column]:.0f}", "white" if share[row, column] > 0.6 else "black"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(classes)), classes)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("labelled class")
        below = "% of the labelled pixels or samples of a row; grey: none"
        figure.suptitle(f"{title}\n{below}", fontsize=9, x=0.01, ha="left")
        figure.colorbar(image, ax=axes, shrink=0.8)
        return save(figure, out)


def plot_loss_terms(store: RunStore, out: Path) -> Path | None:
    """Mean of each loss term over the cohort (by training samples), one line a term.

    Returns:
        `out`, or None where a run has one term or none.
    """
    sums: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in store.clients():
        for key, value in row.items():
            if key.startswith("loss/") and value is not None:
                rounds = sums.setdefault(key.removeprefix("loss/"), {})
                rounds.setdefault(row["round"], []).append((value, row["num_samples"]))
    if len(sums) < 2:
        return None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, rounds) in enumerate(sums.items()):
            tables = [np.array(rounds[number]) for number in sorted(rounds)]
            values = [np.average(table[:, 0], weights=table[:, 1]) for table in tables]
            axes.plot(sorted(rounds), values, label=name, **look(index))
        plots.rounds_axis(axes)
        axes.set_ylabel("mean over clients")
        axes.legend(**BESIDE)
        return save(figure, out)


def plot_by_class(
    store: RunStore,
    prefix: str,
    title: str,
    classes: Sequence[str],
    out: Path,
    *,
    limits: tuple[float, float] | None = None,
) -> Path | None:
    """Client log entries `prefix/<class>`: left the last value of each client and class, right each class over rounds.

    Returns:
        `out`, or None when the log holds none.
    """
    start, trained = f"{prefix}/", [row for row in store.clients() if row.get("phase") == "train"]
    rows = [row for row in trained if any(key.startswith(start) for key in row)]
    if not rows:
        return None
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key.startswith(start)]
    names = [_class_name(key.removeprefix(start), classes) for key in keys]
    clients = sorted({row["client"] for row in rows})
    last = {row["client"]: row for row in rows}
    grid = np.array([[last[client].get(key, np.nan) for key in keys] for client in clients], dtype=float)
    with mpl.rc_context(PLAIN):
        figure = Figure(figsize=(9.6, 1.8 + 0.28 * max(len(clients), 6)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        scale = dict(zip(("vmin", "vmax"), limits, strict=True)) if limits else {}
        image = plots.heat_map(left, grid, "PuOr_r" if limits == (0.0, 1.0) else "cividis", **scale)
        left.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        left.set_yticks(range(len(clients)), _client_names(store, clients), fontsize=7)
        left.set_title("last local training of each client")
        figure.colorbar(image, ax=left)
        for index, (key, name) in enumerate(zip(keys, names, strict=True)):
            values: dict[int, list[float]] = {}
            for row in rows:
                if row.get(key) is not None:
                    values.setdefault(row["round"], []).append(row[key])
            means = [np.mean(values[number]) for number in sorted(values)]
            right.plot(sorted(values), means, label=name, **look(index))
        plots.rounds_axis(right)
        right.set_title("mean over the cohort")
        if limits:
            right.set_ylim(*limits)
        right.legend(**BESIDE)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return save(figure, out)


def plot_descriptors(
    descriptors: Mapping[int, np.ndarray], clusters: Mapping[int, int], domains: Mapping[int, str], out: Path
) -> Path:
    """Clients' descriptors in their two leading principal components, after z-scores per entry.

    Args:
        descriptors: client id to vector [D].
        clusters: client id to cluster; colour.
        domains: client id to true domain; marker.
        out: picture to write.
    """
    clients = sorted(descriptors)
    table = np.stack([np.asarray(descriptors[client], dtype=np.float64) for client in clients])
    table = (table - table.mean(0)) / np.where(table.std(0) > 0, table.std(0), 1)
    left, sizes, _ = np.linalg.svd(table, full_matrices=False)
    points = np.zeros((len(clients), 2))
    points[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
    share = sizes**2 / max((sizes**2).sum(), 1e-30)
    named = sorted({domains.get(client, "") for client in clients})
    found = {client: clusters.get(client, -1) for client in clients}
    with mpl.rc_context(PLAIN):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.add_subplot()
        colours = {number: COLOURS[number % len(COLOURS)] if number >= 0 else "#999999" for number in found.values()}
        for (x, y), client in zip(points.tolist(), clients, strict=True):
            marker = MARKERS[named.index(domains.get(client, "")) % len(MARKERS)]
            axes.scatter(x, y, color=colours[found[client]], marker=marker, s=70, edgecolor="white")
            axes.annotate(str(client), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
        for index, domain in enumerate(named):
            axes.scatter([], [], color="#555555", marker=MARKERS[index % len(MARKERS)], label=f"domain {domain or '?'}")
        for number in sorted(colours):
            label = f"cluster {number}" if number >= 0 else "no cluster yet"
            axes.scatter([], [], color=colours[number], marker="s", label=label)
        axes.set_xlabel(f"first component ({100 * share[0]:.0f} % of variance)")
        axes.set_ylabel(f"second component ({100 * (share[1] if len(share) > 1 else 0):.0f} %)")
        axes.set_title("client descriptors: colour is the server's cluster, marker the true domain")
        axes.legend(**BESIDE)
        return save(figure, out)


def plot_predictions(
    images: np.ndarray,
    labels: np.ndarray,
    predictions: np.ndarray,
    classes: Sequence[str],
    palette: np.ndarray,
    names: Sequence[str],
    out: Path,
) -> Path:
    """A few crops, each as image, label and prediction side by side; ignored pixels are black.

    Args:
        images: float [N, 3, H, W] in any range; each is stretched between its 2nd and 98th percentile.
        labels: int [N, H, W], 255 = ignore.
        predictions: int [N, H, W].
        classes: C names.
        palette: uint8 [C, 3].
        names: N row labels.
        out: picture to write.
    """
    with mpl.rc_context(PLAIN):
        figure = Figure(figsize=(7.4, 2.3 * len(images) + 0.7), layout="constrained")
        grid = figure.subplots(len(images), 3, squeeze=False)
        for row, axes in enumerate(grid):
            low, high = np.percentile(images[row], [2, 98])
            picture = np.clip((images[row] - low) / max(high - low, 1e-9), 0, 1).transpose(1, 2, 0)
            shown = (picture, plots.coloured(labels[row], palette), plots.coloured(predictions[row], palette))
            for axis, content in zip(axes, shown, strict=True):
                axis.imshow(content)
                axis.set(xticks=[], yticks=[])
            axes[0].set_ylabel(names[row], fontsize=7)
        for axis, title in zip(grid[0], ("image", "label (black: ignored)", "prediction"), strict=True):
            axis.set_title(title)
        plots.class_legend(figure, classes, palette, ncols=min(len(classes), 4), fontsize=8)
        return save(figure, out)


def _class_name(key: str, classes: Sequence[str]) -> str:
    return classes[int(key)] if key.isdecimal() and int(key) < len(classes) else key


def _client_names(store: RunStore, clients: Sequence[int]) -> list[str]:
    names = {row["client"]: row.get("name") for row in (store.result() or {}).get("per_client", [])}
    return [f"{client} {names[client]}" if names.get(client) else f"client {client}" for client in clients]
