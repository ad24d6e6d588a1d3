"""`data.json`: everything about the data that decides a number, with counts and hashes of every split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrs_lightning.data.archives.archive import ImageArchive, ImageListing
from fedrs_lightning.data.clients.assignment import Assignment
from fedrs_lightning.data.clients.domain import DomainSamples
from fedrs_lightning.data.clients.normalisation import Statistics
from fedrs_lightning.data.packs.pack import Pack, hash_ids
from fedrs_lightning.data.packs.source import PackedSource

if TYPE_CHECKING:
    from fedrs_lightning.data.clients.dataset import FederatedDataset

MANY = 2000  # samples that are listed one by one


def manifest_of(
    data: FederatedDataset,
    samples: list[DomainSamples],
    found: Assignment,
    source: PackedSource,
    normal: Statistics,
    seed: int,
) -> dict[str, Any]:
    """Plain JSON values from options, samples of each domain, who has what, all samples, their statistics, the seed."""

    def describe(indices: np.ndarray) -> dict[str, Any]:
        counts = _class_counts(source, indices, data.num_classes)
        ids = hash_ids([source.sample_ids[index] for index in indices])
        return {"num_samples": len(indices), **counts, "sha256": ids}

    space = None if data.label_space is None else {"rule": data.label_space}
    if space is not None:
        named = zip(samples, data.space.dropped, strict=True)
        space["dropped"] = {own.domain.name: list(gone) for own, gone in named}
    resized = "bilinear on float32, antialiased when it shrinks, align_corners=False"
    clients = []
    for client in found.clients:
        splits = {"train": describe(client.train)} | ({} if client.test is None else {"test": describe(client.test)})
        owner = {"domain": client.domain} if client.domain else {}
        clients.append({"id": client.id, "name": client.name} | owner | splits)
    about: dict[str, Any] = {
        "dataset": "+".join(domain.name or type(domain.archive).__name__ for domain in data.domains),
        "label": data.label,
        "synthetic": next((made for own in samples if (made := own.listing.facts.get("synthetic"))), None),
        "seed": seed,
        "archives": [_archive(data, number, own, found, source) for number, own in enumerate(samples)],
        "class_names": list(data.class_names),
        "unscored_classes": [data.class_names[number] for number in data.unscored],
        "label_space": space,
        "own_test": "common test set cut by the clients' class proportions (our rule)" if data.rule.own_test else None,
        "client_size": data.rule.client_size,
        "ground": data.rule.ground if found.terrains else None,
        "normalisation": normal.described,
        "augmentation": "flips and quarter turns" if data.augment else None,
        "protocols": list(data.protocols),
        "storage": data.storage,
        "num_samples": len(source),
        "labels_sha256": None if data.tiled else hash_ids(_labelled(source)),
        "clients": clients,
        "test": describe(found.test),
        "validation": describe(found.validation),
    }
    if not data.tiled:
        return about | {"image_size": data.image_size, "resize": None if data.image_size is None else resized}
    size, window = data.crops.size, data.crops.window
    crops = {
        "size": size,
        "train": f"random, one an epoch from each window of {window}" if window > size else "regular grid",
        "test_overlap": data.crops.test_overlap,
        "test_rule": "each pixel counts once, in the crop with the nearest centre",
    }
    return about | {"crops": crops, "ignore_index": 255}


def _archive(
    data: FederatedDataset, number: int, own: DomainSamples, found: Assignment, source: PackedSource
) -> dict[str, Any]:
    domain, first = own.domain, number * len(own.packs)  # every domain has as many packs
    packs = [part.pack for part in source.parts[first : first + len(own.packs)]]
    partition, surplus = domain.partition, found.surplus[number]
    ids = [source.sample_ids[sample] for sample in surplus]
    archive, listing, fingerprint = domain.archive, own.listing, None
    if data.storage == "files" and isinstance(archive, ImageArchive) and isinstance(listing, ImageListing):
        fingerprint = archive.fingerprint(listing)
    rule = "as the archive says" if partition is None else {"class": type(partition).__name__, **vars(partition)}
    about: dict[str, Any] = {
        "name": domain.name or None,
        "class": type(archive).__name__,
        "root": str(Path(archive.root).expanduser().resolve()),
        "folder": str(listing.folder.resolve()),
        "settings": archive.settings(),
        "facts": listing.facts,
        "split": own.rule,
        "partition": rule,
        "classes": [name for name, known in zip(data.class_names, data.known_classes()[number], strict=True) if known],
        "samples_sha256": [pack.digest for pack in packs],
        "source_sha256": fingerprint,
        "surplus": {"num_samples": len(ids), "sha256": hash_ids(ids)},
    }
    if data.tiled:
        about |= {"tiles_train": found.ground[number], "tiles_test": [], "unknown_pixels": {}}
        for pack in packs:
            assert isinstance(pack, Pack)
            assert pack.crops is not None
            about["tiles_test"] = list(pack.crops.tiles)  # of the last pack
            unknown = pack.tables["unknown"]
            names = ((pack.crops.tiles[pack.crops.tile[crop]], int(unknown[crop])) for crop in np.flatnonzero(unknown))
            about["unknown_pixels"] |= dict(names)
        about["surplus"] |= {"ids": ids if len(ids) <= MANY else source.tiles(surplus)}
    return about


def _labelled(source: PackedSource) -> list[str]:
    """One line a sample, with its label."""
    labels = source.extras["label"].numpy().astype(int)
    texts = labels.astype(str).tolist() if labels.ndim == 1 else ["".join(map(str, row)) for row in labels.tolist()]
    return [f"{name}: {text}" for name, text in zip(source.sample_ids, texts, strict=True)]


def _class_counts(source: PackedSource, indices: np.ndarray, num_classes: int) -> dict[str, Any]:
    """`class_counts` of samples with labels, each of which counts for all its classes, or `class_pixels` of masks."""
    if "label" not in source.extras:
        pixels = source.class_pixels(indices, num_classes).tolist()
        return {"class_pixels": pixels[:-1], "ignored_pixels": pixels[-1], "num_tiles": len(source.tiles(indices))}
    own = source.extras["label"].numpy()[indices]
    counts = np.bincount(own, minlength=num_classes) if own.ndim == 1 else own.sum(axis=0, dtype=np.int64)
    return {"class_counts": [int(count) for count in counts]}
