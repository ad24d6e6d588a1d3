"""The check of BigEarthNet v2.0: tables, folders and band files."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.bigearthnet.archive import BigEarthNet
from fedrs_lightning.data.archives.bigearthnet.store import PatchStore, open_store
from fedrs_lightning.data.archives.bigearthnet.tables import Rows, country_table, in_season, read_tables
from fedrs_lightning.data.check.report import Item, Report, Seen, drawn, look_into, seen_pixels, spans
from fedrs_lightning.data.rasters.plain_tiff import first_pixels
from fedrs_lightning.errors import DataError

OFFSET = 1000  # added to reflectance x 10000 in products of 2022 and later
_OFFSET_SAMPLE = 12  # patches that are decoded to see it
_PLAIN = 60  # reflectance x 10000: patches of open water may span less in every band, and then equal ones may occur


def check_bigearthnet(archive: BigEarthNet, deep: bool, sample: int | None, seed: int) -> Report:
    """Check a BigEarthNet v2.0 archive: the patches of its season and countries, see `Archive.check`.

    Flagged patches are looked at too wherever their table is there; it must be there only if the archive takes them.
    """
    report = Report.of(archive, deep, "patches")
    with report.refusals():
        found = layout.find_layout(archive.root, archive.metadata, archive.flagged_metadata)
        report.folder = str(found.images)
        report.note_synthetic(layout.synthetic_marker(found))
        chosen = _chosen(report, archive, found)
        store = open_store(found)
        present = store.present(chosen.patch_ids.tolist())
        absent = chosen.patch_ids[~present].tolist()
        if absent:
            text = faults.not_on_disk(found.images, absent, len(chosen))
            report.add("error" if archive.missing == "error" else "note", text)
        _find_untrained(report, archive, chosen.take(present) if archive.missing == "leave_out" else chosen)
        if found.kind == "files":
            _find_unlisted(report, found)
        ids = drawn(chosen.patch_ids[present].tolist(), sample, seed)
        _look_at_patches(report, found, store, ids)
        _judge_offset(report, found, store, drawn(ids, min(_OFFSET_SAMPLE, len(ids)) or None, seed))
    return report


def _chosen(report: Report, archive: BigEarthNet, found: layout.Layout) -> Rows:
    """The patches to look at, counted by country, split and class."""
    there = found.flagged.is_file()
    if archive.flagged and not there:
        report.add("error", faults.no_flagged_table(found.flagged))
    rows = read_tables(found, flagged=there)
    report.add("error", *rows.faults)
    chosen, rule = rows.take(in_season(rows, archive.season)), f"season: {archive.season}"
    countries = np.asarray(layout.COUNTRIES)
    left = [name for name in layout.COUNTRIES if name in countries[chosen.country]]
    for name in archive.countries or ():
        if name not in left:
            report.add("error", faults.no_patches_of(name, rule, left))
    if archive.countries:
        chosen = chosen.take(np.isin(countries[chosen.country], archive.countries))
    elif not len(chosen):
        report.add("error", faults.nothing_left(found.metadata, rule))
    flagged = countries[chosen.country[chosen.flagged]].tolist()
    for line in country_table(chosen, "all"):
        counts = {name: int(getattr(line, name)) for name in (*layout.SPLITS, "days")}
        report.files[line.country] = counts | {"flagged": flagged.count(line.country)}
    splits, owners = np.asarray(layout.SPLITS)[chosen.split], countries[chosen.country]
    report.count(layout.CLASSES, chosen.labels, splits, owners, layout.COUNTRIES)
    return chosen


def _find_untrained(report: Report, archive: BigEarthNet, rows: Rows) -> None:
    """Countries that would be clients without training patches: an error where they are asked for."""
    used = rows if archive.flagged else rows.take(~rows.flagged)
    without = set(used.country.tolist()) - set(used.country[used.split == layout.SPLITS.index("train")].tolist())
    for number in sorted(without):
        report.add(
            "error" if archive.countries else "warning",
            f"country {layout.COUNTRIES[number]} has no training patches (season: {archive.season}), so that a run "
            "refuses it as a client; name the others in countries",
        )


def _find_unlisted(report: Report, found: layout.Layout) -> None:
    """Patches that no table names, and what does not belong among the patches."""
    text = layout.v1_fault(found.images)
    if text:
        report.add("error", text)
    known = _ids(found.metadata) | (_ids(found.flagged) if found.flagged.is_file() else set())
    unlisted: list[Path] = []
    for product in _names(found.images):
        if not re.fullmatch(layout.PRODUCT, product):
            if product not in (layout.METADATA, layout.FLAGGED_METADATA, layout.SYNTHETIC) and not text:
                report.add("warning", _unread(found.images / product, "not part of BigEarthNet"))
            continue
        folder = found.images / product
        for patch in _names(folder):
            if not re.fullmatch(layout.PATCH, patch):
                report.add("warning", _unread(folder / patch, "no patch of BigEarthNet v2.0"))
            elif patch not in known:
                unlisted.append(folder / patch)
    if unlisted and found.flagged.is_file():
        more = faults.more(len(unlisted) - 1)
        remedy = "remove the folder or restore the tables from the archive"
        report.add("error", f"{unlisted[0]}: this patch{more} is in no metadata table; {remedy}")
    elif unlisted:
        report.add(
            "note",
            f"{unlisted[0]}: this and {len(unlisted) - 1} more patches are not in {found.metadata.name}; "
            f"{layout.FLAGGED_METADATA}, which lists those with snow, cloud or shadow, is not there to tell",
        )


def _unread(path: Path, what: str) -> str:
    return f"{path}: is {what} and is not read; move it out of the folder"


def _ids(table: Path) -> set[str]:
    """All patch ids of a table, also of rows that have a fault."""
    from pyarrow import parquet

    return set(parquet.read_table(table, columns=["patch_id"])["patch_id"].to_pylist())


def _names(folder: Path) -> list[str]:
    """Sorted names in a folder: a hundred thousand paths would take longer to make than the folders to list."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not layout.junk(entry.name))
    except NotADirectoryError:
        return []
    except PermissionError:
        raise DataError(faults.no_permission(folder)) from None


def _look_at_patches(report: Report, found: layout.Layout, store: PatchStore, ids: list[str]) -> None:
    files, deep = found.kind == "files", report.mode == "deep"
    report.checked = len(ids) * (len(layout.ALL_BANDS) if files else 1)
    if not files and not deep:
        return  # a database has no headers, and which patches it holds is known already
    items = [Item(name, str(found.images / layout.product_of(name) / name)) for name in ids]
    decode = partial(decoded_patch, found.images) if files else lambda name: _pixels(store.decode(name).values())
    remedy = "unpack the archive again, or training and test data overlap"
    # Patches whose first pixels are alike are decoded, which tells whether all are.
    look_into(report, items, decode if deep else partial(patch_headers, found.images), None if deep else decode, remedy)


def patch_headers(images: Path, patch_id: str) -> Seen:
    """What the first bytes and sizes of a patch's twelve band files show, and the hash of these bytes' pixels."""
    texts, digest = [], hashlib.sha256()
    start = f"{images}/{layout.product_of(patch_id)}/{patch_id}/{patch_id}_"
    for band in layout.ALL_BANDS:
        path = f"{start}{band}.tif"
        try:
            pixels = first_pixels(path, layout.SIDE[band])
            digest.update(layout.read_band(Path(path), band).tobytes() if pixels is None else pixels)
        except FileNotFoundError:
            texts.append(faults.missing_band(Path(path)))
        except PermissionError:
            texts.append(faults.no_permission(Path(path)))
        except OSError as error:
            texts.append(faults.unreadable_band(Path(path), error.strerror))
        except DataError as error:
            texts.append(str(error))
    return Seen(texts, digest.hexdigest())


def decoded_patch(images: Path, patch_id: str) -> Seen:
    """A patch's twelve band files, each decoded as the reader does it."""
    texts, pixels = [], []
    for band in layout.ALL_BANDS:
        try:
            pixels.append(layout.read_band(layout.band_path(images, patch_id, band), band)[None])
        except DataError as error:
            texts.append(str(error))
    return Seen(texts) if texts else _pixels(pixels)


def _pixels(arrays: Iterable[np.ndarray]) -> Seen:
    return seen_pixels(arrays, lambda array: spans(array, _PLAIN))


def _judge_offset(report: Report, found: layout.Layout, store: PatchStore, ids: list[str]) -> None:
    """Warn where every band of some patches is so bright that newer products must have been cut up."""
    lows: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for name in ids:
        with report.refusals():
            for field, bands in store.decode(name).items():
                for place, pixels in enumerate(bands):
                    lows[field, place].append(pixels.ravel())
    lowest = min((float(np.percentile(np.concatenate(pixels), 1)) for pixels in lows.values()), default=0)
    if lowest >= OFFSET:
        report.add(
            "warning",
            f"{found.images}: in {len(ids)} patches the darkest hundredth of every band is {lowest:.0f} or more, as in "
            "products of 2022 and later, which add 1000; the patches of v2.0 do not; unpack the official archive",
        )
