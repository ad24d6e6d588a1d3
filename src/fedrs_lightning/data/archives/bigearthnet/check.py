"""The check of BigEarthNet v2.0: tables, folders and band files."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.archives.bigearthnet.archive import BigEarthNet
from fedrs_lightning.data.archives.bigearthnet.store import PatchStore, open_store
from fedrs_lightning.data.archives.bigearthnet.tables import Rows, choose, country_table, read_tables
from fedrs_lightning.data.archives.folders import names_in
from fedrs_lightning.data.check.report import Item, Report, Seen, drawn, look_into, seen_pixels
from fedrs_lightning.data.rasters.plain_tiff import first_pixels
from fedrs_lightning.errors import DataError

OFFSET = 1000  # added to reflectance x 10000 in products of 2022 and later
_OFFSET_SAMPLE = 12  # patches that are decoded to see it


def check_bigearthnet(report: Report, archive: BigEarthNet, sample: int | None, seed: int) -> None:
    """Check a BigEarthNet v2.0 archive: the patches of its season and countries, see `Archive.check`.

    Flagged patches are looked at too wherever their table is there; it must be there only if the archive takes them.
    """
    report.unit = "patches"
    found = layout.find_layout(archive.root, archive.metadata, archive.flagged_metadata)
    report.found(found.images, 1)
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
    _look_at_patches(report, archive, found, store, ids)
    _judge_offset(report, found, store, drawn(ids, min(_OFFSET_SAMPLE, len(ids)) or None, seed))


def _chosen(report: Report, archive: BigEarthNet, found: layout.Layout) -> Rows:
    """The patches to look at, counted by country, split and class."""
    there = found.flagged.is_file()
    if archive.flagged and not there:
        report.add("error", faults.no_flagged_table(found.flagged))
    rows = read_tables(found, flagged=there)
    chosen = choose(rows, archive.season, archive.countries, found.metadata, f"season: {archive.season}")
    report.add("error", *chosen.faults)
    owners, splits = np.asarray(layout.COUNTRIES)[chosen.country], np.asarray(layout.SPLITS)[chosen.split]
    for country, *counts in country_table(chosen, "all"):
        flagged = int((owners[chosen.flagged] == country).sum())
        report.files[country] = dict(zip((*layout.SPLITS, "days"), counts, strict=True)) | {"flagged": flagged}
    report.count(layout.CLASSES, chosen.labels, splits, owners, layout.COUNTRIES)
    return chosen


def _find_untrained(report: Report, archive: BigEarthNet, rows: Rows) -> None:
    """Countries that would be clients without training patches: an error where they are asked for."""
    used = rows if archive.flagged else rows.take(~rows.flagged)
    without = set(used.country.tolist()) - set(used.country[used.split == layout.SPLITS.index("train")].tolist())
    for number in sorted(without):
        what = f"country {layout.COUNTRIES[number]} has no training patches (season: {archive.season})"
        remedy = "so that a run refuses it as a client; name the others in countries"
        report.add("error" if archive.countries else "warning", f"{what}, {remedy}")


def _find_unlisted(report: Report, found: layout.Layout) -> None:
    """Patches that no table names, and what does not belong among the patches."""
    text = layout.v1_fault(found.images)
    if text:
        report.add("error", text)
    known = _ids(found.metadata) | (_ids(found.flagged) if found.flagged.is_file() else set())
    strangers, unlisted = list[Path](), list[Path]()
    for product in names_in(found.images):
        folder = found.images / product
        if re.fullmatch(layout.PRODUCT, product):
            patches = names_in(folder)
            strangers += [folder / patch for patch in patches if not re.fullmatch(layout.PATCH, patch)]
            unlisted += [folder / name for name in patches if name not in known and re.fullmatch(layout.PATCH, name)]
        elif product not in (layout.METADATA, layout.FLAGGED_METADATA, layout.SYNTHETIC) and not text:
            strangers.append(folder)
    for path in strangers:
        report.add("warning", f"{path}: is no part of BigEarthNet v2.0 and is not read; move it out of the folder")
    if unlisted and found.flagged.is_file():
        more = faults.more(len(unlisted) - 1)
        remedy = "remove the folder or restore the tables from the archive"
        report.add("error", f"{unlisted[0]}: this patch{more} is in no metadata table; {remedy}")
    elif unlisted:
        what = f"this and {len(unlisted) - 1} more patches are not in {found.metadata.name}"
        why = f"{layout.FLAGGED_METADATA}, which lists those with snow, cloud or shadow, is not there to tell"
        report.add("note", f"{unlisted[0]}: {what}; {why}")


def _ids(table: Path) -> set[str]:
    """All patch ids of a table, also of rows that have a fault."""
    from pyarrow import parquet

    return set(parquet.read_table(table, columns=["patch_id"])["patch_id"].to_pylist())


def _look_at_patches(
    report: Report, archive: BigEarthNet, found: layout.Layout, store: PatchStore, ids: list[str]
) -> None:
    files = found.kind == "files"
    report.checked = len(ids) * (len(layout.ALL_BANDS) if files else 1)
    if not files and not report.deep:
        return  # a database has no headers, and which patches it holds is known already
    items = [Item(name, str(found.images / layout.product_of(name) / name)) for name in ids]

    def decode(name: str) -> Seen:
        texts, arrays = [], []
        if not files:
            return seen_pixels(store.decode(name).values(), archive.is_plain)
        for band in layout.ALL_BANDS:
            try:
                arrays.append(layout.read_band(layout.band_path(found.images, name, band), band)[None])
            except DataError as error:
                texts.append(str(error))
        return Seen(texts) if texts else seen_pixels(arrays, archive.is_plain)

    remedy = "unpack the archive again, or training and test data overlap"
    # Patches whose first pixels are alike are decoded, which tells whether all are.
    look, confirm = (decode, None) if report.deep else (partial(patch_headers, found.images), decode)
    look_into(report, items, look, confirm, remedy)


def patch_headers(images: Path, patch_id: str) -> Seen:
    """What the first bytes and sizes of a patch's twelve band files show, and the hash of these bytes' pixels."""
    texts, digest = [], hashlib.sha256()
    start = f"{images}/{layout.product_of(patch_id)}/{patch_id}/{patch_id}_"
    for band in layout.ALL_BANDS:
        path = f"{start}{band}.tif"
        try:
            pixels = first_pixels(path, layout.SIDE[band])
            digest.update(layout.read_band(Path(path), band).tobytes() if pixels is None else pixels)
        except OSError as error:
            texts.append(layout.unreadable(Path(path), error))
        except DataError as error:
            texts.append(str(error))
    return Seen(texts, digest.hexdigest())


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
        what = f"in {len(ids)} patches the darkest hundredth of every band is {lowest:.0f} or more"
        why = "as in products of 2022 and later, which add 1000; the patches of v2.0 do not"
        report.add("warning", f"{found.images}: {what}, {why}; unpack the official archive")
