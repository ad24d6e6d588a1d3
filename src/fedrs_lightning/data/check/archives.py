"""The check of an archive that has none of its own: its listing, and its samples read as a run reads them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedrs_lightning.data.check.report import Item, Report, Seen, drawn, look_into, seen_pixels
from fedrs_lightning.data.rasters.class_tables import IGNORE
from fedrs_lightning.data.rasters.rows import PICTURE
from fedrs_lightning.errors import DataError

if TYPE_CHECKING:
    from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing, TileArchive
    from fedrs_lightning.data.rasters.tiles import Tile

_ROWS = 256  # of a tile that are read at a time
_STRIP = 64  # rows of a tile that are read without --deep


def check_images(report: Report, archive: ImageArchive, sample: int | None, seed: int) -> None:
    """Check an archive of images: what it lists, and all its files, see `Archive.check`."""
    listing = archive.listing()
    report.found(listing.folder)
    report.add("error", *_contradictions(archive, listing))
    if not report.failed:
        report.count(archive.class_names, listing.labels, listing.splits, listing.clients, listing.client_order or ())
        look_at_images(report, archive, listing, sample, seed)


def look_at_images(report: Report, archive: ImageArchive, listing: ImageListing, sample: int | None, seed: int) -> None:
    """Look into the files of listed images, as closely as the report's mode says."""
    wanted: dict[str, tuple[tuple[int, ...], str]] = {}
    with report.refusals():
        wanted = {name: (field.shape, field.dtype) for name, field in archive.fields(listing).items()}
        for name, bands in archive.stored_bands.items():
            shape, dtype = wanted.get(name, ((), "nothing"))
            if not shape or shape[0] != len(bands) or dtype != archive.dtype:
                said = f"its names say {len(bands)} bands and its dtype {archive.dtype}"
                got = f"decoding gives {dtype} {list(shape)} as '{name}'"
                raise DataError(f"{report.dataset}: {got}, but {said}; correct the class")

    def decode(number: int) -> Seen:
        arrays = archive.decode_sample(listing, number)
        found = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
        if wanted and found != wanted:
            kinds = [[f"{kind} {list(shape)}" for shape, kind in named.values()] for named in (found, wanted)]
            own, first = map(", ".join, kinds)
            raise DataError(f"{_where(listing, number)}: is {own}, but the first sample is {first}; make them equal")
        return seen_pixels(arrays.values(), archive.is_plain)

    def header(number: int) -> Seen:
        path = listing.paths[number]
        if not archive.check_header(path):
            return decode(number)
        with path.open("rb") as handle:
            return Seen((), hashlib.file_digest(handle, "sha256").hexdigest())

    splits = np.full(len(listing.ids), "") if listing.splits is None else listing.splits
    labels = listing.labels.tolist() if listing.labels.ndim == 1 else [None] * len(listing.ids)
    items = [Item(row, _where(listing, row), str(splits[row]), labels[row]) for row in range(len(splits))]
    items = drawn(items, sample, seed)
    look = header if not report.deep and len(listing.paths) else decode
    look_into(report, items, look, None if look is decode else decode)
    report.checked = len(items)


def _where(listing: ImageListing, number: int) -> str:
    return str(listing.paths[number] if len(listing.paths) else (listing.where or listing.ids)[number])


def _contradictions(archive: ImageArchive, listing: ImageListing) -> Iterator[str]:
    """What is wrong with a listing in itself, by a mistake in the archive's class."""
    count, classes, labels = len(listing.ids), len(archive.class_names), listing.labels
    if not count:
        yield f"{listing.folder}: the listing holds no sample"
    columns = {"paths": listing.paths, "splits": listing.splits, "clients": listing.clients, "where": listing.where}
    columns |= {f"attribute {name}": values for name, values in listing.attributes.items()} | {"labels": labels}
    for name, values in columns.items():
        if values is not None and len(values) not in ((0, count) if name in ("paths", "where") else (count,)):
            yield f"{listing.folder}: the listing has {count} ids, but {len(values)} {name}"
    whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if whole and count and not 0 <= labels.min() <= labels.max() < classes:
        yield f"{listing.folder}: labels must be 0 to {classes - 1}, found {labels.min()} to {labels.max()}"
    if not whole and labels.shape[1:] != (classes,):
        yield f"{listing.folder}: labels must be int [N] or 0 and 1 [N, {classes}], got {labels.dtype} {labels.shape}"
    unknown = set() if listing.splits is None else set(map(str, listing.splits)) - {"train", "validation", "test", ""}
    if unknown:
        yield f"{listing.folder}: splits must be train, validation, test or empty, got '{min(unknown)}'"
    twice = [name for name, times in Counter(listing.ids).items() if times > 1]
    if twice:
        yield f"{twice[0]}: is listed {Counter(listing.ids)[twice[0]]} times; an id may be there once only"


def check_tiles(report: Report, archive: TileArchive, sample: int | None, seed: int) -> None:
    """Check image and label rasters by reading them as a run would, see `Archive.check`."""
    report.unit = "pixels"
    listing = archive.listing()
    report.found(listing.folder)
    parts = {"train": listing.train, "test": listing.test}
    report.files = {part: {"tiles": len(tiles)} for part, tiles in parts.items()}
    items = [Item(tile, str(tile.files[0]), part) for part, tiles in parts.items() for tile in tiles]
    trained = {(tile.files, tile.id) for tile in listing.train}
    for tile in listing.test:
        if (tile.files, tile.id) in trained:
            report.add("error", f"{tile.files[0]}: is in training and test data; a tile may be in one of them only")
    items = drawn(items, sample, seed)
    seen = look_into(report, items, lambda tile: _read_tile(archive, tile, report.deep))
    report.checked = sum(len(item.key.files) for item in items)
    if report.deep:
        known, pixels = len(archive.class_names), np.zeros(256, np.int64)
        for found in seen:
            pixels += 0 if found.pixels is None else found.pixels
        counts = [*pixels[:known].tolist(), int(pixels[known:].sum())]
        report.counts = dict(zip((*archive.class_names, "none of them"), counts, strict=True))


def _read_tile(archive: TileArchive, tile: Tile, deep: bool) -> Seen:
    """Content of a tile's image unless a single value fills it, and pixels of each class id, int64 [256]."""
    counted, digest, plain = np.zeros(256, np.int64), hashlib.sha256(f"{tile.size}".encode()), True
    gone = looked = 0
    with tile.open() as opened:
        image, height = opened.image, opened.image.height
        if image.bands != len(archive.band_names) or image.dtype != archive.dtype:
            named = f"{type(archive).__name__} names {len(archive.band_names)} bands of {archive.dtype}"
            there = f"{tile.files[0]}: is read as {image.bands} bands of {image.dtype}"
            raise DataError(f"{there}, but {named}; correct the class")
        whole = deep or all(path.suffix.lower() in PICTURE for path in tile.files)  # those are decoded whole anyway
        first = 0 if whole else max(0, height // 2 - _STRIP // 2)
        last = height if whole else min(height, first + _STRIP)
        for start in range(first, last, _ROWS):
            stop = min(start + _ROWS, last)
            rows = image.rows(start, stop)
            digest.update(rows.tobytes())
            plain = plain and int(np.ptp(rows)) == 0
            ids = opened.ids.rows(start, stop)
            if opened.valid is not None:
                empty = opened.valid.rows(start, stop) == 0
                ids, gone = np.where(empty, np.uint8(IGNORE), ids), gone + int(np.count_nonzero(empty))
            looked += ids.size
            counted += np.bincount(ids.ravel(), minlength=256)
        unknown = opened.finish()
        remark = ""
        if unknown:
            have = f"{unknown} of {looked} pixels have colours or values outside the class table"
            remark = f"{tile.files[-1]}: {have}, such as {opened.example()}; they are ignored, or add them to classes"
    return Seen((), "" if plain else digest.hexdigest(), pixels=counted, remark=remark, gaps=gone / max(1, looked))
