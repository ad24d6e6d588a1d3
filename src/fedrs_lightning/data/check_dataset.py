"""`fedrs data check` for the data set of a config: each part of it by its own check, your own files through their
reader.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedrs_lightning.data.check import check_eurosat
from fedrs_lightning.data.check_bigearthnet import check_bigearthnet
from fedrs_lightning.data.check_report import Report, drawn
from fedrs_lightning.data.check_segmentation import check_segmentation
from fedrs_lightning.data.datasets.bigearthnet import BigEarthNet
from fedrs_lightning.data.datasets.classification_files import scan_folders, scan_table
from fedrs_lightning.data.datasets.classification_images import ImageFormat
from fedrs_lightning.data.datasets.eurosat import EuroSAT
from fedrs_lightning.data.datasets.folder_classification import FolderClassification
from fedrs_lightning.data.datasets.loveda import LoveDA
from fedrs_lightning.data.datasets.potsdam import Potsdam
from fedrs_lightning.data.datasets.vaihingen import Vaihingen
from fedrs_lightning.data.domains import Domain, Domains
from fedrs_lightning.data.federated import FederatedDataset
from fedrs_lightning.data.rasters import open_rows
from fedrs_lightning.data.tiles import Tile, TileDataset, synthetic_marker
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.progress import tracked

_ROWS = 256  # of a tile that are read at a time
_STRIP = 64  # rows of a tile that are read without --deep


def check_dataset(
    dataset: FederatedDataset, deep: bool = False, sample: int | None = None, seed: int = 0
) -> list[Report]:
    """Check the data set of a config; one report for each folder of it.

    Args:
        dataset: of the config.
        deep: decode every file.
        sample: look into the files of this many samples of each folder, drawn at random, instead of all.
        seed: of the sample and of the clients.

    Raises:
        ConfigError: there is no check for this class.
    """
    if isinstance(dataset, EuroSAT):
        return [check_eurosat(dataset.root, dataset.bands, deep, sample, seed, dataset)]
    if isinstance(dataset, BigEarthNet):
        places = (dataset.root, dataset.metadata, dataset.flagged_metadata)
        return [
            check_bigearthnet(
                *places, dataset.season, dataset.countries, dataset.flagged, deep, sample, seed, dataset.missing
            )
        ]
    if isinstance(dataset, FolderClassification):
        return [check_own_images(dataset, deep, sample, seed)]
    if isinstance(dataset, Domains):
        reports = [_check_domain(domain, deep, sample, seed) for domain in dataset.domains]
        _compare_domains(dataset.domains, reports)
        return reports
    raise ConfigError(
        f"{type(dataset).__name__} has no check of its own; fedrs data pack --config FILE decodes every sample of it"
    )


def _check_domain(domain: Domain, deep: bool, sample: int | None, seed: int) -> Report:
    own = domain.dataset
    if isinstance(own, Potsdam):
        report = check_segmentation("potsdam", own.root, deep, sample, seed, own.skip_tiles)
    elif isinstance(own, Vaihingen):
        report = check_segmentation("vaihingen", own.root, deep, sample, seed, own.skip_tiles)
    elif isinstance(own, LoveDA):
        report = check_segmentation("loveda", own.root, deep, sample, seed)
    else:
        report = check_tiles(own, deep, sample, seed)
    report.dataset = f"domain {domain.name}: {report.dataset}"
    return report


def _compare_domains(domains: Sequence[Domain], reports: Sequence[Report]) -> None:
    """The reader of each domain must find its tiles, and no tile may be for training and for testing."""
    owners: dict[tuple[tuple[Path, ...], str], tuple[str, str]] = {}
    for domain, report in zip(domains, reports, strict=True):
        if report.failed:
            continue
        try:
            survey = domain.dataset.survey()
        except DataError as error:
            report.add("error", str(error))
            continue
        for role, tiles in (("training", survey.train), ("test", survey.test)):
            for tile in tiles:
                key = tuple(path.resolve() for path in tile.files), tile.id
                owner, first = owners.setdefault(key, (domain.name, role))
                if first != role:
                    whose = (
                        f"in {first} and {role} data"
                        if owner == domain.name
                        else f"in {role} data, and in {first} data of domain {owner}"
                    )
                    report.add("error", f"{tile.files[0]}: is {whose}; a tile may be in one of them only")


def check_tiles(dataset: TileDataset, deep: bool = False, sample: int | None = None, seed: int = 0) -> Report:
    """Check image and label rasters by reading them as a run would.

    Args:
        dataset: whose tiles.
        deep: read all rows and count the pixels of each class, instead of a strip of rows.
        sample: look into this many tiles, drawn at random, instead of all.
        seed: of the sample.
    """
    report = Report(type(dataset).__name__, dataset.root, mode="deep" if deep else "header", unit="pixels")
    try:
        survey = dataset.survey()
    except DataError as error:
        report.add("error", str(error))
        return report
    report.folder = str(survey.folder)
    report.files = {"train": {"tiles": len(survey.train)}, "test": {"tiles": len(survey.test)}}
    report.note_synthetic(synthetic_marker(survey.folder))
    tiles = drawn(
        [*(("train", tile) for tile in survey.train), *(("test", tile) for tile in survey.test)], sample, seed
    )
    pixels = np.zeros(256, dtype=np.int64)
    same: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    with ThreadPoolExecutor() as pool:
        looks = pool.map(lambda job: _read_tile(job[1], deep), tiles)
        for (role, tile), (fault, content, counted) in tracked(zip(tiles, looks, strict=True), "checking", len(tiles)):
            report.checked += len(tile.files)
            pixels += counted
            if fault:
                report.add("error", fault)
            elif content:
                same[content].append((role, tile.files[0]))
    if deep:
        names = (*dataset.class_names, "none of them")
        counts = [*pixels[: len(dataset.class_names)].tolist(), int(pixels[len(dataset.class_names) :].sum())]
        report.counts = dict(zip(names, counts, strict=True))
    for group in same.values():
        _report_same(report, group)
    return report


def _read_tile(tile: Tile, deep: bool) -> tuple[str, str, np.ndarray]:
    """Fault, hash of the image's pixels (empty where they are all the same), and pixels of each class id, int64 [256]."""
    counted, digest, plain = np.zeros(256, dtype=np.int64), hashlib.sha256(), True
    try:
        with tile.open() as opened:
            height = opened.image.height
            first = 0 if deep else max(0, height // 2 - _STRIP // 2)
            last = height if deep else min(height, first + _STRIP)
            for start in range(first, last, _ROWS):
                stop = min(start + _ROWS, last)
                rows = opened.image.rows(start, stop)
                digest.update(rows.tobytes())
                plain = plain and int(np.ptp(rows)) == 0
                counted += np.bincount(opened.ids.rows(start, stop).ravel(), minlength=256)
            opened.finish()
    except DataError as error:
        return str(error), "", counted
    return "", "" if plain else f"{digest.hexdigest()} {tile.size}", counted


def check_own_images(
    dataset: FolderClassification, deep: bool = False, sample: int | None = None, seed: int = 0
) -> Report:
    """Check your own labelled images.

    Args:
        dataset: whose images.
        deep: decode every image and compare pixels for duplicates, instead of headers and whole files.
        sample: look into this many images, drawn at random, instead of all.
        seed: of the sample and of the clients.
    """
    report = Report("FolderClassification", dataset.root, mode="deep" if deep else "header")
    form = ImageFormat(dataset.in_channels, dataset.bands, dataset.pixel_type, dataset.image_size)
    try:
        if dataset.table is None:
            samples = scan_folders(dataset.root, dataset.class_names)
        else:
            samples = scan_table(
                dataset.root, dataset.table, dataset.class_names, dataset.multi_label, dataset.separator
            )
        size = form.size(samples.paths[0], dataset.augment)
    except DataError as error:
        report.add("error", str(error))
        return report
    report.folder = dataset.root
    labels = samples.labels
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=dataset.num_classes)
    report.counts = dict(zip(dataset.class_names, counts.astype(np.int64).tolist(), strict=True))
    report.samples = {"all": len(samples.ids)} if labels.ndim == 2 else {}
    report.note_synthetic(synthetic_marker(Path(dataset.root).expanduser()))
    try:
        dataset.check_deal(samples, seed)
    except (ConfigError, DataError) as error:
        report.add("error", str(error))
    splits = ["all"] * len(samples.ids) if samples.splits is None else samples.splits.tolist()
    jobs = drawn(list(zip(splits, samples.paths, strict=True)), sample, seed)
    same: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    look: Callable[[Path], str] = (
        (lambda path: _pixels(form, path, size)) if deep else (lambda path: _header(form, path, size))
    )
    with ThreadPoolExecutor() as pool:
        looks = pool.map(lambda job: _attempt(look, job[1]), jobs)
        for (split, path), (fault, content) in tracked(zip(jobs, looks, strict=True), "checking", len(jobs)):
            if fault:
                report.add("error", fault)
            else:
                same[content].append((split, path))
    report.checked = len(jobs)
    for group in same.values():
        if len(group) > 1 and int(np.ptp(form.decode(group[0][1], size))) > 0:  # plain images may well be equal
            _report_same(report, group)
    return report


def _attempt(look: Callable[[Path], str], path: Path) -> tuple[str, str]:
    """Fault, or the hash of the content."""
    try:
        return "", look(path)
    except DataError as error:
        return str(error), ""
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror}); check the file and its permissions", ""


def _pixels(form: ImageFormat, path: Path, size: tuple[int, int]) -> str:
    return hashlib.sha256(form.decode(path, size).tobytes()).hexdigest()


def _header(form: ImageFormat, path: Path, size: tuple[int, int]) -> str:
    with open_rows(path) as raster:
        form.judge(raster, path, size)
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _report_same(report: Report, same: Sequence[tuple[str, Path]]) -> None:
    """Report files of the same content, each with its split."""
    if len(same) > 1:
        names = ", ".join(str(path) for _, path in same[1:])
        roles = list(dict.fromkeys(role for role, _ in same))
        both = f", in {' and '.join(roles)} data" if len(roles) > 1 else ""
        report.add(
            "error",
            f"{names}: the same content as {same[0][1]}{both}; remove all but one, or training and test data overlap",
        )
