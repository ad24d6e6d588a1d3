"""The check of tiles whose images and labels are files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrs_lightning.data.check.rasters import RasterFacts, image_facts, label_facts
from fedrs_lightning.data.check.report import Item, Report, Seen, alike, drawn, in_threads
from fedrs_lightning.data.rasters.class_tables import ClassTable


@dataclass(frozen=True)
class FilesOfTile:
    """Files of one tile that belong together.

    Attributes:
        id: of the tile.
        part: row of the summary table, such as `train`.
        images: name of a kind of image to file and number of channels.
        labels: name of a kind of label to file, table and remedy for unknown pixels.
    """

    id: str
    part: str
    images: Mapping[str, tuple[Path, int]]
    labels: Mapping[str, tuple[Path, ClassTable, str]]


Examined = list[tuple[FilesOfTile, dict[str, RasterFacts]]]
"""Tiles with what was found in each of their files, by its kind."""


def check_tile_files(
    report: Report,
    tiles: Sequence[FilesOfTile],
    class_names: Sequence[str],
    kinds: Sequence[str],
    sample: int | None,
    seed: int,
    usual: tuple[int, int] | None = None,
) -> Examined:
    """Look into the files of tiles.

    Args:
        report: is added to; its mode says whether all rows are decoded, or headers and a strip of rows of GeoTIFFs.
        tiles: in the order of the report.
        class_names: of the labels.
        kinds: of files, for the summary table.
        sample: look into the files of this many tiles, drawn at random, instead of all.
        seed: of that draw.
        usual: height and width of official tiles; None where they vary.
    """
    for tile in tiles:
        row = report.files.setdefault(tile.part, dict.fromkeys(("tiles", *kinds), 0))
        for kind in ("tiles", *tile.images, *tile.labels):
            row[kind] += 1

    def examine(tile: FilesOfTile) -> dict[str, RasterFacts]:
        images = {kind: image_facts(path, bands, report.deep) for kind, (path, bands) in tile.images.items()}
        labels = {
            kind: label_facts(path, table, report.deep, hint) for kind, (path, table, hint) in tile.labels.items()
        }
        return images | labels

    examined = list(in_threads(examine, drawn(tiles, sample, seed)))
    pixels = np.zeros(len(class_names) + 1, dtype=np.int64)
    unusual: list[RasterFacts] = []
    for tile, files in examined:
        report.checked += len(files)
        images, labels = [files[kind] for kind in tile.images], [files[kind] for kind in tile.labels]
        if not _interchanged(report, images, labels):
            report.findings += [finding for found in files.values() for finding in found.findings]
            _compare_sizes(report, images + labels)
        unusual += [found for found in images[:1] if usual and found.size not in (None, usual)]
        pixels += next((found.pixels for found in labels if found.pixels is not None), 0)
    _compare_contents(report, examined)
    if unusual and usual:
        text = f"official tiles are {usual[0]} x {usual[1]}; so are {len(unusual)} of {len(examined)} tiles"
        report.add("note", f"{unusual[0].path}: is {_size(unusual[0])}, {text}")
    if report.deep:
        report.counts = dict(zip((*class_names, "none of them"), pixels.tolist(), strict=True))
    return examined


def _interchanged(report: Report, images: Sequence[RasterFacts], labels: Sequence[RasterFacts]) -> bool:
    swapped = [found for found in images if found.photo is False]
    photos = [found for found in labels if found.photo]
    if swapped and photos:
        both = f"{swapped[0].path}: holds a label and {photos[0].path} holds a photo"
        report.add("error", f"{both}; image and label are interchanged, swap them")
        return True
    for found in swapped:
        if not found.findings:  # otherwise its type says so already
            found.add("error", "holds few colours, so it is a label, not an image; replace it from the archive")
    return False


def _compare_sizes(report: Report, files: Sequence[RasterFacts]) -> None:
    sized = [found for found in files if found.size is not None]
    for found in sized[1:]:
        if found.size != sized[0].size:
            other = f"{sized[0].path.name} of the same tile is {_size(sized[0])}"
            report.add("error", f"{found.path}: is {_size(found)}, but {other}; replace both from the archive")


def _compare_contents(report: Report, examined: Examined) -> None:
    seen: list[tuple[Item, Seen]] = []
    for tile, files in examined:
        for kind, found in ((kind, files[kind]) for kind in tile.images if files[kind].content):
            seen.append((Item(tile.id, str(found.path), tile.part), Seen((), f"{kind} {found.content}")))
    reported: set[tuple[tuple[str, str], ...]] = set()
    for same in alike(seen):
        tiles = tuple((item.part, item.key) for item, _ in same)
        if tiles not in reported:
            reported.add(tiles)  # the other kinds of images of these tiles are the same too
            report.add_same([item for item, _ in same], "replace it from the archive, or remove all but one")


def _size(found: RasterFacts) -> str:
    assert found.size is not None
    return f"{found.size[0]} x {found.size[1]}"
