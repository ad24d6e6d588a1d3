"""The check of a federated data set: its archives, and who gets what, without decoding a sample for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrs_lightning.data.archives.archive import ImageListing, TileListing
from fedrs_lightning.data.check.report import Report
from fedrs_lightning.data.clients.assignment import assign
from fedrs_lightning.data.clients.domain import SPLITS, DomainSamples
from fedrs_lightning.data.packs.folders import cache_folder
from fedrs_lightning.errors import FedrsError

if TYPE_CHECKING:
    from fedrs_lightning.data.clients.dataset import FederatedDataset


def check_dataset(data: FederatedDataset, deep: bool = False, sample: int | None = None, seed: int = 0) -> list[Report]:
    """Check every archive as `Archive.check` does, then split and partition.

    Gives a report for each archive, and one on the clients where something says whose the samples are. The seed is also
    that of split and partition where `data` has none.
    """
    reports = []
    for domain in data.domains:
        report = domain.archive.check(deep, sample, seed)
        if domain.name:
            report.dataset = f"domain {domain.name}: {report.dataset}"
        reports.append(report)
    listings: list[ImageListing | TileListing] = []
    for domain, report in zip(data.domains, reports, strict=True):
        with warnings.catch_warnings(), suppress(FedrsError) if report.failed else report.refusals():
            warnings.simplefilter("ignore")  # the archive's check says the same
            domain.archive.prepare(cache_folder(data.cache_dir))
            listings.append(domain.archive.listing())
    if len(listings) < len(data.domains):
        return reports
    data.listings = listings
    published = isinstance(listings[0], ImageListing) and not listings[0].binding
    if data.alone and data.domains[0].partition is None and (published or data.lacks_partition):
        return reports
    report = _check_clients(data, seed if data.seed is None else data.seed)
    known = [finding for other in reports for finding in other.findings]
    report.findings = [finding for finding in report.findings if finding not in known]
    return [*reports, report]


def _check_clients(data: FederatedDataset, seed: int) -> Report:
    report = Report("clients", data.root, unit="crops" if data.tiled else "images")
    with report.refusals():
        samples = data.samples(seed)
        _compare_domains(report, samples)
        found = assign(samples, data.rule, data.alone, seed)
        extras = data.extras(samples, found)
        labels = extras["label"].numpy().astype(np.int64) if "label" in extras else None
        parts = {}
        for client in found.clients:
            parts[f"{client.id}: {client.name}"] = client.train
            if client.test is not None:
                parts[f"{client.id}: {client.name}, own test"] = client.test
        common = {"validation": found.validation, "test": found.test}
        parts |= {name: indices for name, indices in common.items() if len(indices)}
        for name, indices in parts.items():
            report.samples[name], report.clients[name] = len(indices), []
            if labels is not None and len(indices):
                report.add_row(name, labels[indices], data.num_classes)
        everything = np.concatenate([*(client.train for client in found.clients), found.validation, found.test])
        report.total = len(everything)
        if labels is not None:
            report.count(data.class_names, labels[everything])
    return report


def _compare_domains(report: Report, samples: Sequence[DomainSamples]) -> None:
    """A file that two domains read, or a tile, may not be trained on in one and tested on in the other."""
    owners: dict[tuple[object, ...], tuple[str, str]] = {}
    for own in samples if len(samples) > 1 else ():
        name = own.domain.name
        for role, key, path in _files(own):
            owner, first = owners.setdefault(key, (name, role))
            if first != role:
                both = f"in {role} data of domain {name}, and in {first} data of domain {owner}"
                report.add("error", f"{path}: is {both}; it may be in one of them only")


def _files(samples: DomainSamples) -> Iterator[tuple[str, tuple[object, ...], Path]]:
    """Part of the data, what tells it from others, and the first file, of each image or tile."""
    listing = samples.listing
    if isinstance(listing, TileListing):
        for role, tiles in (("train", listing.train), ("test", listing.test)):
            yield from ((role, (*(path.resolve() for path in tile.files), tile.id), tile.files[0]) for tile in tiles)
    elif len(listing.paths):
        for role, part in zip(SPLITS, (samples.train, samples.validation, samples.test), strict=True):
            for path in (listing.paths[number] for number in part):
                yield role, (path.resolve(),), path
