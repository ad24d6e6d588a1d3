"""Pictures of what happened inside a run: confusion matrix, loss terms, gates, drift, descriptors, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.patches
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedrs_lightning.results.plots import COLOURS, STYLE, STYLES, save
from fedrs_lightning.results.store import RunStore

MARKERS = "osD^vP*X"
GREY = "#eeeeee"


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
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(
            figsize=(max(side + 1.2, 4.8), side), layout="constrained"
        )  # the title of three classes needs the width
        axes = figure.add_subplot()
        colours = mpl.colormaps["Blues"].with_extremes(bad=GREY)
        image = axes.imshow(np.ma.masked_invalid(share), cmap=colours, vmin=0, vmax=1)
        for row, column in np.ndindex(*share.shape):
            if np.isfinite(share[row, column]):
                dark = share[row, column] > 0.6
                axes.text(
                    column,
                    row,
                    f"{100 * share[row, column]:.0f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                    fontsize=8,
                )
        axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(classes)), classes)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("labelled class")
        figure.suptitle(
            f"{title}\n% of the labelled pixels or samples of a row; grey: none", fontsize=9, x=0.01, ha="left"
        )
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
                sums.setdefault(key.removeprefix("loss/"), {}).setdefault(row["round"], []).append(
                    (value, row["num_samples"])
                )
    if len(sums) < 2:
        return None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for index, (name, rounds) in enumerate(sums.items()):
            tables = [np.array(rounds[number]) for number in sorted(rounds)]
            values = [np.average(table[:, 0], weights=table[:, 1]) for table in tables]
            axes.plot(
                sorted(rounds),
                values,
                STYLES[index // len(COLOURS) % 4],
                color=COLOURS[index % len(COLOURS)],
                label=name,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.set_ylabel("mean over clients")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
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
    rows = [
        row
        for row in store.clients()
        if row.get("phase") == "train" and any(key.startswith(f"{prefix}/") for key in row)
    ]
    if not rows:
        return None
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key.startswith(f"{prefix}/")]
    names = [_class_name(key.removeprefix(f"{prefix}/"), classes) for key in keys]
    clients = sorted({row["client"] for row in rows})
    last = {row["client"]: row for row in rows}
    grid = np.array([[last[client].get(key, np.nan) for key in keys] for client in clients], dtype=float)
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(9.6, 1.8 + 0.28 * max(len(clients), 6)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
        colours = mpl.colormaps["PuOr_r" if limits == (0.0, 1.0) else "cividis"].with_extremes(bad=GREY)
        image = left.imshow(
            np.ma.masked_invalid(grid),
            aspect="auto",
            cmap=colours,
            vmin=limits and limits[0],
            vmax=limits and limits[1],
        )
        left.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
        left.set_yticks(range(len(clients)), _client_names(store, clients), fontsize=7)
        left.set_title("last local training of each client")
        figure.colorbar(image, ax=left)
        for index, (key, name) in enumerate(zip(keys, names, strict=True)):
            rounds = sorted({row["round"] for row in rows if row.get(key) is not None})
            means = [
                np.mean([row[key] for row in rows if row["round"] == number and row.get(key) is not None])
                for number in rounds
            ]
            right.plot(
                rounds, means, STYLES[index // len(COLOURS) % 4], color=COLOURS[index % len(COLOURS)], label=name
            )
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xlabel("round")
        right.set_title("mean over the cohort")
        if limits:
            right.set_ylim(*limits)
        right.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
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
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for index, client in enumerate(clients):
            cluster, domain = clusters.get(client, -1), domains.get(client, "")
            colour = COLOURS[cluster % len(COLOURS)] if cluster >= 0 else "#999999"
            marker = MARKERS[named.index(domain) % len(MARKERS)]
            axes.scatter(points[index, 0], points[index, 1], color=colour, marker=marker, s=70, edgecolor="white")
            axes.annotate(str(client), points[index], xytext=(5, 4), textcoords="offset points", fontsize=7)
        for index, domain in enumerate(named):
            axes.scatter([], [], color="#555555", marker=MARKERS[index % len(MARKERS)], label=f"domain {domain or '?'}")
        for cluster in sorted({clusters.get(client, -1) for client in clients}):
            colour = COLOURS[cluster % len(COLOURS)] if cluster >= 0 else "#999999"
            axes.scatter(
                [], [], color=colour, marker="s", label=f"cluster {cluster}" if cluster >= 0 else "no cluster yet"
            )
        axes.set_xlabel(f"first component ({100 * share[0]:.0f} % of variance)")
        axes.set_ylabel(f"second component ({100 * (share[1] if len(share) > 1 else 0):.0f} %)")
        axes.set_title("client descriptors: colour is the server's cluster, marker the true domain")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
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
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[: len(palette)] = palette
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7.4, 2.3 * len(images) + 0.7), layout="constrained")
        grid = figure.subplots(len(images), 3, squeeze=False)
        for row, axes in enumerate(grid):
            low, high = np.percentile(images[row], [2, 98])
            picture = np.clip((images[row] - low) / max(high - low, 1e-9), 0, 1).transpose(1, 2, 0)
            for column, (axis, content) in enumerate(
                zip(axes, (picture, colours[labels[row]], colours[predictions[row]]), strict=True)
            ):
                axis.imshow(content)
                axis.set_xticks([])
                axis.set_yticks([])
                if row == 0:
                    axis.set_title(("image", "label (black: ignored)", "prediction")[column])
            axes[0].set_ylabel(names[row], fontsize=7)
        handles = [
            mpl.patches.Patch(facecolor=palette[index] / 255, edgecolor="#888888", label=name)
            for index, name in enumerate(classes)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(classes), 4), fontsize=8)
        return save(figure, out)


def _class_name(key: str, classes: Sequence[str]) -> str:
    return classes[int(key)] if key.isdecimal() and int(key) < len(classes) else key


def _client_names(store: RunStore, clients: Sequence[int]) -> list[str]:
    result: dict[str, Any] = store.result() or {}
    names = {row["client"]: row.get("name") for row in result.get("per_client", [])}
    return [f"{client} {names[client]}" if names.get(client) else f"client {client}" for client in clients]
