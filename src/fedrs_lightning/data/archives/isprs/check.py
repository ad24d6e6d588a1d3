"""The checks of Potsdam and Vaihingen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrs_lightning.data.archives.folders import numeric, walk
from fedrs_lightning.data.archives.isprs import potsdam, vaihingen
from fedrs_lightning.data.archives.isprs.files import ConvertedFiles
from fedrs_lightning.data.check.report import Report, synthetic_marker
from fedrs_lightning.data.check.tile_files import Examined, FilesOfTile, check_tile_files
from fedrs_lightning.data.rasters.class_tables import ISPRS, ISPRS_CONVERTED
from fedrs_lightning.data.rasters.rows import GEOTIFF, read_whole
from fedrs_lightning.errors import DataError

if TYPE_CHECKING:
    from fedrs_lightning.data.archives.isprs.archive import Found, ISPRSArchive

PARTICIPANTS = "participants"  # folders of the training labels alone, beside the complete ones
ENOUGH = 1000  # pixels of vegetation, to judge its colours


def check_potsdam(archive: potsdam.Potsdam, deep: bool, sample: int | None, seed: int) -> Report:
    """Check a Potsdam folder with all its modalities and labels, see `Archive.check`."""
    report = Report.of(archive, deep, "pixels")
    with report.refusals():
        found = potsdam.list_files(archive.root)
        kinds = (*potsdam.SUFFIX.values(), "full label", "eroded label")
        bands = {name: len(order) for name, order in potsdam.ORDER.items()}
        images = {potsdam.SUFFIX[name]: (files, bands[name]) for name, files in found.images.items()}
        examined = _examine(report, archive, found, images, kinds, (6000, 6000), sample, seed)
        for path in walk(found.folder, potsdam.DEPTH):
            match = re.fullmatch(r"top_potsdam_(\d+_\d+)_(RGBIR|RGB|IRRG)", path.stem)
            first = None if match is None else found.images[match[2].lower()].get(match[1])
            if match and path.suffix.lower() in GEOTIFF and first not in (None, path):
                _twice(report, path, first, f"the {match[2]} image of tile {match[1]}")
        _compare_channels(report, examined)
    return report


def check_vaihingen(archive: vaihingen.Vaihingen, deep: bool, sample: int | None, seed: int) -> Report:
    """Check a Vaihingen folder with all its labels, see `Archive.check`."""
    report = Report.of(archive, deep, "pixels")
    with report.refusals():
        found = vaihingen.list_files(archive.root)
        for area in sorted(found.labelled() - {*archive.official[0], *archive.official[1]}):
            path = next(files[area] for files in found.labels.values() if area in files)
            report.add("note", f"{path}: is a label of area {area}, which has no image; such labels are not read")
        kinds = ("IRRG", "full label", "eroded label")
        examined = _examine(report, archive, found, {"IRRG": (found.images, 3)}, kinds, None, sample, seed)
        used = {*found.unknown, *found.images.values()}
        used |= {path for files in found.labels.values() for path in files.values()}
        for path in walk(found.folder, vaihingen.DEPTH) if found.converted is None else ():
            match = re.fullmatch(r"top_mosaic_09cm_area(\d+)(_noBoundary)?", path.stem)
            if match is None or path.suffix.lower() not in GEOTIFF or path in used or PARTICIPANTS in path.parent.name:
                continue
            first = (found.labels["eroded"] if match[2] else found.images).get(match[1])
            _twice(
                report, path, first, f"the {'eroded label' if match[2] else 'image or full label'} of area {match[1]}"
            )
        _judge_vegetation(report, examined)
    return report


def _examine(
    report: Report,
    archive: ISPRSArchive,
    found: Found,
    images: Mapping[str, tuple[Mapping[str, Path], int]],
    kinds: Sequence[str],
    usual: tuple[int, int] | None,
    sample: int | None,
    seed: int,
) -> Examined:
    """Pair images and labels of each tile that is not skipped, and look into them.

    Args:
        report: is added to.
        archive: names official and skipped tiles.
        found: files of its folder.
        images: kind of image to tile to file, and its number of bands.
        kinds: see `check_tile_files`.
        usual: see `check_tile_files`.
        sample: see `check_tile_files`.
        seed: see `check_tile_files`.
    """
    report.folder = str(found.folder)
    known = {*archive.official[0], *archive.official[1]}
    if found.converted is not None:
        tiles, kinds, usual = _converted(report, archive, found.converted), ("image", "label"), None
    else:
        _unknown(report, found.unknown, f"the {len(known)} {archive.title} {archive.unit}")
        imaged = {tile for files, _ in images.values() for tile in files}
        there = (imaged | found.labelled()) & known - {*archive.skip_tiles}
        tiles = [_paired(report, archive, found, images, tile) for tile in there]
    tiles = sorted(tiles, key=lambda tile: (tile.part, numeric(tile.id)))
    report.note_synthetic(synthetic_marker(found.folder))
    return check_tile_files(report, tiles, ISPRS.names, kinds, sample, seed, usual)


def _paired(
    report: Report,
    archive: ISPRSArchive,
    found: Found,
    images: Mapping[str, tuple[Mapping[str, Path], int]],
    tile: str,
) -> FilesOfTile:
    hint = archive.label_hint(tile)
    photos = {kind: (files[tile], bands) for kind, (files, bands) in images.items() if tile in files}
    copies = {kind: found.label_copies(kind, tile) for kind in ("full", "eroded")}
    labels = {f"{kind} label": (paths[0], ISPRS, hint) for kind, paths in copies.items() if paths}
    if not labels:
        remedy = f"unpack the ground truth, or add '{tile}' to skip_tiles"
        report.add("error", f"{next(iter(photos.values()))[0]}: image of tile {tile} has no label; {remedy}")
    if not photos:
        path = next(iter(labels.values()))[0]
        report.add("error", f"{path}: label of tile {tile} has no image; unpack the images, or remove the label")
    for kind, paths in copies.items():
        for path in paths[1:] if paths and PARTICIPANTS not in paths[0].parent.name else ():
            _twice(report, path, paths[0], f"the {kind} label of tile {tile}")
    return FilesOfTile(tile, "train" if tile in archive.official[0] else "test", photos, labels)


def _unknown(report: Report, paths: Sequence[Path], what: str) -> None:
    by_tile: dict[str, list[Path]] = {}
    for path in paths:
        by_tile.setdefault("".join(re.findall(r"\d+_?\d*", path.stem)[-1:]), []).append(path)
    for same in by_tile.values():
        more = f" (and {len(same) - 1} more files of it)" if len(same) > 1 else ""
        report.add("error", f"{same[0]}{more}: is none of {what}; rename it or move it out of the folder")


def _twice(report: Report, path: Path, first: Path | None, what: str) -> None:
    also = "" if first is None else f", also as {first}"
    report.add("error", f"{path}: {what} is there twice{also}; remove one of them")


def _converted(report: Report, archive: ISPRSArchive, found: ConvertedFiles) -> list[FilesOfTile]:
    for path in found.orphans:
        other = "ann_dir" if "img_dir" in path.parts else "img_dir"
        report.add("error", f"{path}: has no counterpart in {other}; convert it again, or remove it")
    hint, tiles = "not a converted index PNG (0 boundary, 1 to 6); convert it again", []
    for name, pieces in found.pieces.items():
        tile = name.removeprefix(archive.prefix)
        if tile in archive.skip_tiles:
            continue
        if not any(tile in official for official in archive.official):
            _unknown(report, [next(iter(pieces.values()))[0]], "the official tiles")
            continue
        part = "train" if tile in archive.official[0] else "test"
        for image, label in pieces.values():
            files = {"image": (image, 3)}, {"label": (label, ISPRS_CONVERTED, hint)}
            tiles.append(FilesOfTile(image.stem.removeprefix(archive.prefix), part, *files))
    return tiles


def _compare_channels(report: Report, examined: Examined) -> None:
    """Compare IRRG files with the RGB or RGBIR file of the tile: are they IR, R, G?"""
    wrong: list[Path] = []
    for _, files in examined:
        photos = {kind: found.path for kind, found in files.items() if found.photo}
        reference = photos.get("RGB", photos.get("RGBIR"))
        if reference is None or "IRRG" not in photos:
            continue
        try:
            if potsdam.irrg_order(photos["IRRG"], reference) == "IR, G, B":
                wrong.append(photos["IRRG"])
        except DataError:
            continue  # of another size, which is reported already
    if wrong:
        more = f" (and {len(wrong) - 1} more tiles)" if len(wrong) > 1 else ""
        remedy = "set irrg_from: rgbir, which needs 4_Ortho_RGBIR, or irrg_order: accept"
        report.add("error", f"{wrong[0]}{more}: its channels are IR, G, B and not IR, R, G; {remedy}")


def _judge_vegetation(report: Report, examined: Examined) -> None:
    """Vegetation is brightest in near infrared: warn where the first channel is not."""
    if report.mode != "deep" or report.synthetic:
        return  # the spectral shift of a synthetic sample may take it far from any camera
    for _, files in examined:
        image, label = files.get("IRRG"), files.get("full label", files.get("eroded label"))
        if image is None or label is None or not image.photo or label.photo is not False or image.size != label.size:
            continue
        ids, _ = ISPRS.decode(read_whole(label.path)[:3])
        green = (ids == ISPRS.names.index("low vegetation")) | (ids == ISPRS.names.index("tree"))
        means = read_whole(image.path)[:3, green].mean(axis=1) if green.sum() >= ENOUGH else [0]
        if means[0] < max(means):
            report.add(
                "warning",
                f"{image.path}: vegetation is not brightest in the first channel, so the bands may not be IR, R, G; "
                "compare it with the archive",
            )
