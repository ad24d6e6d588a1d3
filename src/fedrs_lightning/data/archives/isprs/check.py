"""The checks of Potsdam and Vaihingen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedrs_lightning.data.archives.folders import numeric
from fedrs_lightning.data.archives.isprs.archive import CONVERTED_HINT, ISPRSArchive
from fedrs_lightning.data.archives.isprs.files import ConvertedFiles, ISPRSFiles
from fedrs_lightning.data.archives.isprs.potsdam import ORDER_REMEDY, irrg_order
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.check.tile_files import Examined, FilesOfTile, check_tile_files
from fedrs_lightning.data.rasters.class_tables import ISPRS, ISPRS_CONVERTED
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import DataError

ENOUGH = 1000  # pixels of vegetation, to judge its colours


def check_isprs(report: Report, archive: ISPRSArchive, sample: int | None, seed: int) -> None:
    """Check a Potsdam or Vaihingen folder with all its modalities and labels, see `Archive.check`."""
    report.unit = "pixels"
    found = archive.files()
    report.found(found.folder)
    kinds, side = (*archive.kinds, "full label", "eroded label"), archive.side
    if found.converted is not None:
        kinds, side = ("image", "label"), None
        tiles = list(_converted(report, archive, found.converted))
    else:
        _refuse_unknown(report, found.unknown, archive.all_tiles)
        for area in sorted(found.labelled() - {*archive.known}):
            path = next(files[area][0] for files in found.labels.values() if area in files)
            report.add("note", f"{path}: is a label of area {area}, which has no image; such labels are not read")
        there = found.labelled().union(*found.images.values()) & {*archive.known} - {*archive.skip_tiles}
        tiles = [_paired(report, archive, found, tile) for tile in there]
    tiles.sort(key=lambda tile: (tile.part, numeric(tile.id)))
    examined = check_tile_files(report, tiles, ISPRS.names, kinds, sample, seed, side)
    _compare_channels(report, examined)
    if [*archive.kinds] == ["IRRG"] and report.deep and not report.synthetic:
        _judge_vegetation(report, examined)  # the spectral shift of a synthetic sample may be that of no camera


def _paired(report: Report, archive: ISPRSArchive, found: ISPRSFiles, tile: str) -> FilesOfTile:
    """Images and labels of a tile that is not skipped."""
    photos = {kind: files[tile] for kind, files in found.images.items() if tile in files}
    masks = {f"{kind} label": files[tile] for kind, files in found.labels.items() if tile in files}
    if not masks:
        remedy = f"unpack the ground truth, or add '{tile}' to skip_tiles"
        report.add("error", f"{next(iter(photos.values()))[0]}: image of tile {tile} has no label; {remedy}")
    if not photos:
        path = next(iter(masks.values()))[0]
        report.add("error", f"{path}: label of tile {tile} has no image; unpack the images, or remove the label")
    for what, copies in ({f"{kind} image": paths for kind, paths in photos.items()} | masks).items():
        # Training labels are also delivered in a folder of their own, beside the complete ones.
        first, *more = [path for path in copies if "participants" not in path.parent.name] or copies
        for path in more:
            twice = f"the {what} of tile {tile} is there twice, also as {first}"
            report.add("error", f"{path}: {twice}; remove one of them")
    images = {kind: (paths[0], archive.kinds[kind]) for kind, paths in photos.items()}
    labels = {kind: (paths[0], ISPRS, archive.label_hint(tile)) for kind, paths in masks.items()}
    return FilesOfTile(tile, "train" if tile in archive.official[0] else "test", images, labels)


def _refuse_unknown(report: Report, paths: Sequence[Path], what: str) -> None:
    by_tile: dict[str, list[Path]] = {}
    for path in paths:
        by_tile.setdefault("".join(re.findall(r"\d+_?\d*", path.stem)[-1:]), []).append(path)
    for same in by_tile.values():
        more = f" (and {len(same) - 1} more files of it)" if len(same) > 1 else ""
        report.add("error", f"{same[0]}{more}: is none of {what}; rename it or move it out of the folder")


def _converted(report: Report, archive: ISPRSArchive, found: ConvertedFiles) -> Iterator[FilesOfTile]:
    for path in found.orphans:
        other = "ann_dir" if "img_dir" in path.parts else "img_dir"
        report.add("error", f"{path}: has no counterpart in {other}; convert it again, or remove it")
    for tile, pieces in found.pieces.items():
        if tile not in archive.known:
            _refuse_unknown(report, [next(iter(pieces.values()))[0]], "the official tiles")
        elif tile not in archive.skip_tiles:
            part = "train" if tile in archive.official[0] else "test"
            for image, label in pieces.values():
                labels = {"label": (label, ISPRS_CONVERTED, f"{CONVERTED_HINT}; convert it again")}
                yield FilesOfTile(image.stem.removeprefix(archive.prefix), part, {"image": (image, 3)}, labels)


def _compare_channels(report: Report, examined: Examined) -> None:
    """Compare IRRG files with the RGB or RGBIR file of the tile: are they IR, R, G?"""
    wrong: list[Path] = []
    for _, files in examined:
        photos = {kind: found.path for kind, found in files.items() if found.photo}
        reference = photos.get("RGB", photos.get("RGBIR"))
        if reference is None or "IRRG" not in photos:
            continue
        try:
            if irrg_order(photos["IRRG"], reference) == "IR, G, B":
                wrong.append(photos["IRRG"])
        except DataError:
            continue  # of another size, which is reported already
    if wrong:
        more = f" (and {len(wrong) - 1} more tiles)" if len(wrong) > 1 else ""
        report.add("error", f"{wrong[0]}{more}: its channels are IR, G, B and not IR, R, G; {ORDER_REMEDY}")


def _judge_vegetation(report: Report, examined: Examined) -> None:
    """Vegetation is brightest in near infrared: warn where the first channel is not."""
    for _, files in examined:
        image, label = files.get("IRRG"), files.get("full label", files.get("eroded label"))
        if image is None or label is None or not image.photo or label.photo is not False or image.size != label.size:
            continue
        ids, _ = ISPRS.decode(read_whole(label.path)[:3])
        green = (ids == ISPRS.names.index("low vegetation")) | (ids == ISPRS.names.index("tree"))
        means = read_whole(image.path)[:3, green].mean(axis=1) if green.sum() >= ENOUGH else [0]
        if means[0] < max(means):
            what = "vegetation is not brightest in the first channel, so the bands may not be IR, R, G"
            report.add("warning", f"{image.path}: {what}; compare it with the archive")
