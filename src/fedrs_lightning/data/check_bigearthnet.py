"""`fedrs data check` for BigEarthNet v2.0: tables, folders and band files."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedrs_lightning.data.check_report import Report, drawn
from fedrs_lightning.data.datasets import bigearthnet_faults as faults
from fedrs_lightning.data.datasets import bigearthnet_files as layout
from fedrs_lightning.data.datasets.bigearthnet_store import PatchStore, open_store
from fedrs_lightning.data.datasets.bigearthnet_tables import (
    Rows,
    Season,
    country_table,
    in_season,
    months_of,
    read_tables,
)
from fedrs_lightning.data.plain_tiff import first_pixels
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.progress import tracked

OFFSET = 1000  # added to reflectance x 10000 in products of 2022 and later
_OFFSET_SAMPLE = 12  # patches that are decoded to see it
_CHUNK = 32  # patches that a thread looks at a time
_THREADS = 16  # a network file system answers many questions at a time
_PLAIN = 60  # reflectance x 10000: patches of open water may span less in every band, and then equal ones may occur

Look = tuple[list[str], str, bool]
"""Of a patch: faults, hash of its pixels as far as they were looked at (empty where there are faults), and whether they
are plain.
"""


def check_bigearthnet(
    root: str,
    metadata: str | None = None,
    flagged_metadata: str | None = None,
    season: Season = "all",
    countries: Sequence[str] | None = None,
    flagged: bool = False,
    deep: bool = False,
    sample: int | None = None,
    seed: int = 0,
    missing: Literal["error", "leave_out"] = "error",
) -> Report:
    """Check a BigEarthNet v2.0 archive.

    Args:
        root: as for the reader.
        metadata: as for the reader.
        flagged_metadata: as for the reader.
        season: look at patches of these months only.
        countries: look at patches of these countries only, each of which must have some.
        flagged: the table of flagged patches must be there. Where it is, its patches are looked at anyway.
        deep: decode every band file instead of reading its header and a few pixels.
        sample: look into the files of this many patches, drawn at random, instead of all.
        seed: of the sample.
        missing: whether patches of the tables that are not on disk are an error, or only noted.
    """
    months_of(season)
    for name in countries or ():
        if name not in layout.COUNTRIES:
            raise ConfigError(f"'{name}' is not one of the countries {', '.join(layout.COUNTRIES)}")
    report = Report("BigEarthNet v2.0", str(root), mode="deep" if deep else "header", unit="patches")
    try:
        found = layout.find_layout(root, metadata, flagged_metadata)
        report.folder = str(found.images)
        report.note_synthetic(layout.synthetic_marker(found))
        rows = _read(report, found, flagged)
        chosen = _filter(report, found, rows, season, countries)
        store = open_store(found)
        present = store.present(chosen.patch_ids.tolist())
        absent = chosen.patch_ids[~present].tolist()
        if absent:
            report.add("error" if missing == "error" else "note", faults.not_on_disk(found.images, absent, len(chosen)))
        _untrained(report, chosen.take(present) if missing == "leave_out" else chosen, season, countries, flagged)
        if found.kind == "files":
            _strangers(report, found)
        _check_patches(report, found, store, drawn(chosen.patch_ids[present].tolist(), sample, seed), deep, seed)
    except DataError as error:
        report.add("error", str(error))
    return report


def _read(report: Report, found: layout.Layout, flagged: bool) -> Rows:
    there = found.flagged.is_file()
    if flagged and not there:
        report.add("error", faults.no_flagged_table(found.flagged))
    rows = read_tables(found, flagged=there)
    for text in rows.faults:
        report.add("error", text)
    return rows


def _filter(report: Report, found: layout.Layout, rows: Rows, season: Season, countries: Sequence[str] | None) -> Rows:
    """The patches to look at, counted by country, split and class."""
    chosen = rows.take(in_season(rows, season))
    rule = f"season: {season}"
    there = [name for number, name in enumerate(layout.COUNTRIES) if (chosen.country == number).any()]
    for name in countries or ():
        if name not in there:
            report.add("error", faults.no_patches_of(name, rule, there))
    if countries:
        chosen = chosen.take(np.isin(chosen.country, [layout.COUNTRIES.index(name) for name in countries]))
    if not len(chosen) and not countries:
        report.add("error", faults.nothing_left(found.metadata, rule))
    marked = np.bincount(chosen.country[chosen.flagged], minlength=len(layout.COUNTRIES))
    for line in country_table(chosen, "all"):
        counts = {split: int(getattr(line, split)) for split in layout.SPLITS}
        report.files[line.country] = counts | {
            "days": line.days,
            "flagged": int(marked[layout.COUNTRIES.index(line.country)]),
        }
    for number, name in enumerate(layout.COUNTRIES):
        for place, split in enumerate(layout.SPLITS):
            part = chosen.labels[(chosen.country == number) & (chosen.split == place)]
            if len(part):
                report.samples[f"{name} {split}"] = len(part)
                report.clients[f"{name} {split}"] = part.sum(axis=0, dtype=np.int64).tolist()
    report.counts = dict(zip(layout.CLASSES, chosen.labels.sum(axis=0, dtype=np.int64).tolist(), strict=True))
    return chosen


def _untrained(report: Report, rows: Rows, season: Season, countries: Sequence[str] | None, flagged: bool) -> None:
    """Countries that would be clients without training patches: an error where they are asked for."""
    used = rows if flagged else rows.take(~rows.flagged)
    without = set(used.country.tolist()) - set(used.country[used.split == layout.SPLITS.index("train")].tolist())
    for number in sorted(without):
        report.add(
            "error" if countries else "warning",
            faults.no_training_patches(layout.COUNTRIES[number], f"season: {season}"),
        )


def _strangers(report: Report, found: layout.Layout) -> None:
    """Folders that no table names, and what does not belong among the patches."""
    text = layout.v1_fault(found.images)
    if text:
        report.add("error", text)
    known = _ids(found.metadata) | (_ids(found.flagged) if found.flagged.is_file() else set())
    orphans: list[Path] = []
    for product in _names(found.images):
        if not re.fullmatch(layout.PRODUCT, product):
            if product not in (layout.METADATA, layout.FLAGGED_METADATA, layout.SYNTHETIC) and not text:
                report.add(
                    "warning",
                    f"{found.images / product}: is not part of BigEarthNet and is not read; move it out of the folder",
                )
            continue
        folder = found.images / product
        for patch in _names(folder):
            if not re.fullmatch(layout.PATCH, patch):
                report.add(
                    "warning",
                    f"{folder / patch}: is no patch of BigEarthNet v2.0 and is not read; move it out of the folder",
                )
            elif patch not in known:
                orphans.append(folder / patch)
    if orphans and found.flagged.is_file():
        report.add("error", faults.not_in_table(orphans[0], len(orphans) - 1))
    elif orphans:
        report.add(
            "note",
            f"{orphans[0]}: this and {len(orphans) - 1} more patches are not in {found.metadata.name}; "
            f"{layout.FLAGGED_METADATA}, which "
            "lists those with snow, cloud or shadow, is not there to tell",
        )


def _ids(table: Path) -> set[str]:
    """All patch ids of a table, also of rows that have a fault."""
    from pyarrow import parquet

    return set(parquet.read_table(table, columns=["patch_id"])["patch_id"].to_pylist())


def _names(folder: Path) -> list[str]:
    """Names in a folder without junk, sorted: a hundred thousand paths would take longer to make than the folders to
    list.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not layout.junk(entry.name))
    except NotADirectoryError:
        return []
    except PermissionError:
        raise DataError(faults.no_permission(folder)) from None


def _check_patches(
    report: Report, found: layout.Layout, store: PatchStore, ids: list[str], deep: bool, seed: int
) -> None:
    texts, groups, plain = _sorted_out(ids, tracked(_looks(found, store, ids, deep), "checking", len(ids)))
    report.checked = len(ids) * (len(layout.ALL_BANDS) if found.kind == "files" else 1)
    alike = [name for same in groups.values() if len(same) > 1 for name in same]
    if alike and not deep:  # their first pixels are, and decoding tells whether all are
        more, groups, plain = _sorted_out(alike, _looks(found, store, alike, deep=True))
        texts += [text for text in more if text not in texts]
    for text in texts:
        report.add("error", text)
    for content, same in groups.items():
        if len(same) > 1:
            _report_duplicates(
                report, [found.images / layout.product_of(name) / name for name in same], content in plain
            )
    _check_offset(report, found, store, drawn(ids, min(_OFFSET_SAMPLE, len(ids)) or None, seed), texts)


def _sorted_out(ids: Sequence[str], looks: Iterable[Look]) -> tuple[list[str], dict[str, list[str]], set[str]]:
    """All faults, the patches of each content, and the contents that are plain."""
    texts: list[str] = []
    groups: dict[str, list[str]] = defaultdict(list)
    plain: set[str] = set()
    for name, (faulty, content, dull) in zip(ids, looks, strict=True):
        texts += faulty
        if content:
            groups[content].append(name)
        if content and dull:
            plain.add(content)
    return texts, groups, plain


def _looks(found: layout.Layout, store: PatchStore, ids: list[str], deep: bool) -> Iterator[Look]:
    if found.kind == "files":
        look = partial(look_deeply if deep else look_at_headers, found.images)
    elif deep:
        look = partial(_look_into_store, store)
    else:  # a database has no headers, and which patches it holds is known already
        yield from (([], "", False) for _ in ids)
        return
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for looks in pool.map(lambda chunk: [look(name) for name in chunk], chunks):
            yield from looks


def look_at_headers(images: Path, patch_id: str) -> Look:
    """Faults of a patch's twelve band files as far as their first bytes and sizes show them, and the hash of these
    bytes' pixels.
    """
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
    return texts, "" if texts else digest.hexdigest(), False


def look_deeply(images: Path, patch_id: str) -> Look:
    """Faults of a patch's twelve band files, each decoded as the reader does it, and the hash of their pixels."""
    texts, pixels = [], []
    for band in layout.ALL_BANDS:
        try:
            pixels.append(layout.read_band(layout.band_path(images, patch_id, band), band))
        except DataError as error:
            texts.append(str(error))
    return texts, "" if texts else _digest(pixels), _is_dull(pixels)


def _look_into_store(store: PatchStore, patch_id: str) -> Look:
    try:
        pixels = [band for field in store.decode(patch_id).values() for band in field]
    except DataError as error:
        return [str(error)], "", False
    return [], _digest(pixels), _is_dull(pixels)


def _digest(pixels: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for band in pixels:
        digest.update(band.tobytes())
    return digest.hexdigest()


def _is_dull(pixels: Sequence[np.ndarray]) -> bool:
    return all(np.ptp(band) <= _PLAIN for band in pixels)


def _report_duplicates(report: Report, same: Sequence[Path], dull: bool) -> None:
    names = ", ".join(map(str, same[1:]))
    if dull:
        report.add("note", f"{same[0]}: the same plain pixels also in {names}; harmless, open water does look alike")
    else:
        report.add(
            "error",
            f"{names}: the same content as {same[0]}; unpack the archive again, or training and test data overlap",
        )


def _check_offset(report: Report, found: layout.Layout, store: PatchStore, ids: list[str], told: Sequence[str]) -> None:
    """Warn where every band of some patches is so bright that newer products must have been cut up."""
    lows: dict[str, list[np.ndarray]] = defaultdict(list)
    for name in ids:
        try:
            fields = store.decode(name)
        except DataError as error:
            if str(error) not in told:
                report.add("error", str(error))
            continue
        for band, pixels in zip(
            layout.BANDS_10M + layout.BANDS_20M, (*fields["image10"], *fields["image20"]), strict=True
        ):
            lows[band].append(pixels.ravel())
    percentiles = [float(np.percentile(np.concatenate(values), 1)) for values in lows.values()]
    if percentiles and min(percentiles) >= OFFSET:
        report.add(
            "warning",
            f"{found.images}: in {len(ids)} patches the darkest hundredth of every band is {min(percentiles):.0f} or "
            "more, as in products "
            "of 2022 and later, which add 1000; the patches of v2.0 do not; unpack the official archive",
        )
