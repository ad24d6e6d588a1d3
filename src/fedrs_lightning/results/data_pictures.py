"""Pictures of data: classes by client, band histograms by client, and some samples of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from fedrs_lightning.results.plots import PLAIN, STYLE, class_legend, coloured, heat_map, look, save
from fedrs_lightning.results.short_text import short_name, short_number

MANY = 28  # clients with a line style of their own; beyond them lines are grey
ROLES = {
    "red": ("red", "r", "b04", "b4"),
    "green": ("green", "g", "b03", "b3"),
    "blue": ("blue", "b", "b02", "b2", "estimated b"),
    "near infrared": ("near infrared", "nir", "ir", "b08", "b8"),
}
"""Names of bands, in lower case, by what they show."""

FALSE = "false colour (near infrared, red, green)"
COMPOSITES = {"true colour": ("red", "green", "blue"), FALSE: ("near infrared", "red", "green")}


def plot_class_heat_map(
    shares: np.ndarray, counts: np.ndarray, clients: Sequence[str], classes: Sequence[str], out: Path, title: str
) -> Path:
    """Classes by client: colour is the share of a client's data, the number its count; grey where there is none.

    Args:
        shares: in [0, 1], [K, C].
        counts: int [K, C].
        clients: K names.
        classes: C names.
        out: picture to write.
        title: says what is counted.
    """
    numbered = len(clients) <= 30 and len(classes) <= 30
    cell = 0.42 if numbered else max(0.03, 12 / max(len(clients), 30))
    with mpl.rc_context(PLAIN):
        figure = Figure(figsize=(3.4 + 0.5 * len(classes), 2.6 + cell * len(clients)), layout="constrained")
        axes = figure.add_subplot()
        top = max(float(shares.max(initial=0)), 1e-9)
        image = heat_map(axes, np.where(counts == 0, np.nan, shares), "Blues", norm=PowerNorm(0.5, 0, top))
        for row, column in np.argwhere(counts > 0) if numbered else ():
            colour = "white" if (shares[row, column] / top) ** 0.5 > 0.6 else "black"
            text = short_number(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        names = [short_name(name, 30) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
        every = -(-len(clients) // 60)
        axes.set_yticks(range(0, len(clients), every), [short_name(name, 24) for name in clients[::every]], fontsize=8)
        axes.set_title(f"{title}\ncolour: share of the client's training data; grey: none", fontsize=9)
        figure.colorbar(image, ax=axes, shrink=0.8, format=mpl.ticker.PercentFormatter(xmax=1, decimals=0))
        return save(figure, out)


def plot_band_histograms(
    histograms: Mapping[str, Sequence[np.ndarray | None]],
    widths: Mapping[str, int],
    clients: Sequence[str],
    out: Path,
    title: str,
) -> Path:
    """One panel a band, one line a client: square root of the share of pixels by value, at most 48 bins.

    The axis of values ends at the 99.5th percentile of all clients; logarithmic where that is 12 times the median.

    Args:
        histograms: by band, pixels by value of each client, int [bins]; None where a client lacks the band.
        widths: by band, values of one bin.
        clients: names, in the order of the histograms.
        out: picture to write.
        title: says what is counted.
    """
    columns = min(4, len(histograms))
    rows = -(-len(histograms) // columns)
    many = len(clients) > MANY
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * columns + (0 if many else 1.6), 2.1 * rows + 0.6), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(grid.reshape(-1)):
            if place >= len(histograms):
                axes.set_axis_off()
                continue
            band, tables = list(histograms.items())[place]
            edges, logarithmic = _edges(np.sum([table for table in tables if table is not None], axis=0), widths[band])
            shown = [(look(client), table) for client, table in enumerate(tables) if table is not None]
            highest = 0.0
            for style, table in shown:
                density = _density(table, widths[band], edges)
                highest = max(highest, float(density.max()))
                style = {"color": "#55555555"} if many else style
                axes.step(edges, np.append(density, density[-1:]), where="post", linewidth=1.1, **style)
            axes.set_xscale("log" if logarithmic else "linear")
            axes.set_xlim(edges[0], edges[-1])
            axes.set_yscale("function", functions=(_root, np.square))
            axes.set_ylim(0, 1.05 * highest)
            axes.set_yticks([])
            axes.tick_params(labelsize=7)
            axes.set_title(band, fontsize=9)
        if not many:
            handles: list[Any] = [mpl.lines.Line2D([], [], **look(number)) for number in range(len(clients))]
            figure.legend(handles, [short_name(name, 20) for name in clients], loc="outside right upper", fontsize=8)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return save(figure, out)


def _root(share: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(share, 0))  # matplotlib asks for values below 0 too


def _edges(counts: np.ndarray, width: int) -> tuple[np.ndarray, bool]:
    """Edges of at most 48 bins between the 0.5th and the 99.5th percentile of a histogram, and whether they grow."""
    cumulated = np.cumsum(counts)
    places = np.searchsorted(cumulated, np.array([0.005, 0.5, 0.995]) * cumulated[-1])
    low, middle, high = (int(value) * width for value in places)
    high += width
    logarithmic = middle > 0 and high > 12 * middle
    first = max(low, width) if logarithmic else low
    steps = max(1, min(48, (high - first) // width))
    wide = np.geomspace(first, high, steps + 1) if logarithmic else np.linspace(first, high, steps + 1)
    return np.unique((wide / width).round().astype(np.int64)) * width, logarithmic


def _density(table: np.ndarray, width: int, edges: np.ndarray) -> np.ndarray:
    """Share of the pixels in each bin by the bin's width."""
    cumulated = np.concatenate([[0], np.cumsum(table)])[np.minimum(edges // width, len(table))]
    return np.diff(cumulated) / max(int(table.sum()), 1) / np.diff(edges)


@dataclass(frozen=True)
class Sheet:
    """Some samples of one client.

    Attributes:
        bands: stored pixels by band, [B, h, w].
        texts: what stands below each sample, B.
        mask: class ids [B, h, w], 255 = ignore; None where samples have no mask.
        classes: names of the classes in the mask.
        palette: uint8 [C, 3].
    """

    bands: Mapping[str, np.ndarray]
    texts: Sequence[str]
    mask: np.ndarray | None = None
    classes: Sequence[str] = ()
    palette: np.ndarray | None = None


def plot_samples(sheet: Sheet, out: Path, title: str) -> Path:
    """A contact sheet: samples beside each other, true colour above false colour above the mask.

    Colours are stretched between the 2nd and the 98th percentile of the sheet: true colour of 8 bits with one range for
    all bands, which keeps the hue; reflectances and false colour each band on its own, which takes out haze.
    """
    pictures = composites(sheet.bands)
    pictures = composites(sheet.bands)
    if sheet.mask is not None:
        assert sheet.palette is not None
        pictures["label (black: ignored)"] = coloured(sheet.mask, sheet.palette)
    number = len(sheet.texts)
    lines = max(text.count("\n") + 1 for text in sheet.texts)
    with mpl.rc_context(PLAIN):
        high = 1.62 * len(pictures) + 0.13 * lines + (0.9 if sheet.classes else 0.4)
        figure = Figure(figsize=(max(6.0, 1.75 * number + 0.5), high), layout="constrained")
        grid = figure.subplots(len(pictures), number, squeeze=False)
        for row, (name, content) in zip(grid, pictures.items(), strict=True):
            for place, axes in enumerate(row):
                axes.imshow(content[place], interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set(visible=True, color="#aaaaaa", linewidth=0.5)  # white classes end somewhere too
            row[0].set_ylabel(name.replace(" (", "\n("), fontsize=7)
        for axes, text in zip(grid[-1], sheet.texts, strict=True):
            axes.set_xlabel(text, fontsize=6.5)
        if sheet.classes and sheet.palette is not None:
            names = [short_name(name, 24) for name in sheet.classes]
            class_legend(figure, names, sheet.palette, ncols=min(len(names), 5), fontsize=7)
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        return save(figure, out)


def composites(bands: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Colour pictures of samples, each float [B, h, w, 3] in [0, 1]: true and false colour where the bands are there.

    Where no band has a known name, the first three are shown, or the first one in grey.
    """
    known: dict[str, np.ndarray] = {}
    for name, pixels in bands.items():
        for role in (role for role, names in ROLES.items() if name.lower() in names):
            known.setdefault(role, pixels)
    made = {name: [known[role] for role in roles] for name, roles in COMPOSITES.items() if known.keys() >= set(roles)}
    if not made:
        names = list(bands)[: 3 if len(bands) >= 3 else 1]
        made = {", ".join(names): [bands[name] for name in (names if len(names) == 3 else names * 3)]}
    bright = {name: name != FALSE and chosen[0].dtype == np.uint8 for name, chosen in made.items()}
    return {name: stretch(np.stack(chosen, axis=-1), bright[name]) for name, chosen in made.items()}


def stretch(pixels: np.ndarray, together: bool) -> np.ndarray:
    """Values between the 2nd and the 98th percentile to [0, 1]; pixels that are 0 in all bands are left aside.

    Args:
        pixels: [B, h, w, 3].
        together: one range for all bands instead of one each.
    """
    values = pixels.astype(np.float64)
    seen = values[(pixels > 0).any(axis=-1)]
    if not len(seen):
        return np.zeros_like(values)
    limits: Any = np.percentile(seen, [2, 98], axis=None if together else 0)
    return np.clip((values - limits[0]) / np.maximum(limits[1] - limits[0], 1e-9), 0, 1)
