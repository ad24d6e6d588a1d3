"""`data.json`: everything about the data that decides a number, with counts and hashes of every split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrs_lightning.data.archives.archive import ImageArchive
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
    """Plain JSON values.

    Args:
        data: the options.
        samples: of each domain.
        found: who has what.
        source: all samples.
        normal: what normalises them.
        seed: that was used.
    """
    describe = _Describer(source, data.num_classes)
    synthetic = (own.listing.facts.get("synthetic") for own in samples)
    clients = []
    for client in found.clients:
        splits = {"train": describe(client.train)} | ({} if client.test is None else {"test": describe(client.test)})
        owner = {"domain": client.domain} if client.domain else {}
        clients.append({"id": client.id, "name": client.name} | owner | splits)
    return {
        "dataset": "+".join(domain.name or type(domain.archive).__name__ for domain in data.domains),
        "label": data.label,
        "synthetic": next((made for made in synthetic if made), None),
        "seed": seed,
        "archives": [_archive(data, number, own, found, source) for number, own in enumerate(samples)],
        "class_names": list(data.class_names),
        "unscored_classes": [data.class_names[number] for number in data.unscored],
        "label_space": None
        if data.label_space is None
        else {
            "rule": data.label_space,
            "dropped": {own.domain.name: list(gone) for own, gone in zip(samples, data.space.dropped, strict=True)},
        },
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
    } | (_crops(data) if data.tiled else _resize(data))


def _resize(data: FederatedDataset) -> dict[str, Any]:
    rule = "bilinear on float32, antialiased when it shrinks, align_corners=False"
    return {"image_size": data.image_size, "resize": None if data.image_size is None else rule}


def _crops(data: FederatedDataset) -> dict[str, Any]:
    size, window = data.crops.size, data.crops.window
    return {
        "crops": {
            "size": size,
            "train": f"random, one an epoch from each window of {window}" if window > size else "regular grid",
            "test_overlap": data.crops.test_overlap,
            "test_rule": "each pixel counts once, in the crop with the nearest centre",
        },
        "ignore_index": 255,
    }


def _archive(
    data: FederatedDataset, number: int, own: DomainSamples, found: Assignment, source: PackedSource
) -> dict[str, Any]:
    domain, first = own.domain, number * len(own.packs)  # every domain has as many packs
    packs = [part.pack for part in source.parts[first : first + len(own.packs)]]
    partition, surplus = domain.partition, found.surplus[number]
    ids = [source.sample_ids[sample] for sample in surplus]
    about = {
        "name": domain.name or None,
        "class": type(domain.archive).__name__,
        "root": str(Path(domain.archive.root).expanduser().resolve()),
        "folder": str(own.listing.folder.resolve()),
        "settings": domain.archive.settings(),
        "facts": own.listing.facts,
        "split": own.rule,
        "partition": "as the archive says"
        if partition is None
        else {"class": type(partition).__name__, **vars(partition)},
        "classes": [name for name, known in zip(data.class_names, data.known_classes()[number], strict=True) if known],
        "samples_sha256": [pack.digest for pack in packs],
        "source_sha256": domain.archive.fingerprint(own.listing)
        if isinstance(domain.archive, ImageArchive) and data.storage == "files"
        else None,
        "surplus": {"num_samples": len(ids), "sha256": hash_ids(ids)},
    }
    if data.tiled:
        crops = [pack for pack in packs if isinstance(pack, Pack)]
        about |= {
            "tiles_train": found.ground[number],
            "tiles_test": [] if crops[1].crops is None else list(crops[1].crops.tiles),
            "unknown_pixels": {name: count for pack in crops for name, count in _unknown(pack).items()},
        }
        about["surplus"] |= {"ids": ids if len(ids) <= MANY else source.tiles(surplus)}
    return about


def _unknown(pack: Pack) -> dict[str, int]:
    """Tile id to pixels whose colour or value was unknown, where there were any."""
    assert pack.crops is not None
    unknown = pack.tables["unknown"]
    return {pack.crops.tiles[pack.crops.tile[crop]]: int(unknown[crop]) for crop in np.flatnonzero(unknown)}


def _labelled(source: PackedSource) -> list[str]:
    """One line a sample, with its label."""
    labels = source.extras["label"].numpy().astype(int)
    texts = labels.astype(str).tolist() if labels.ndim == 1 else ["".join(map(str, row)) for row in labels.tolist()]
    return [f"{name}: {text}" for name, text in zip(source.sample_ids, texts, strict=True)]


class _Describer:
    """Number of samples, samples or pixels of each class, and the hash over the sorted ids."""

    def __init__(self, source: PackedSource, num_classes: int) -> None:
        self.source, self.num_classes = source, num_classes

    def __call__(self, indices: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {"num_samples": len(indices)} | class_counts(self.source, indices, self.num_classes)
        return found | {"sha256": hash_ids([self.source.sample_ids[index] for index in indices])}


def class_counts(source: PackedSource, indices: np.ndarray, num_classes: int) -> dict[str, Any]:
    """`class_counts` of samples with labels (a sample counts for each class that it has), or `class_pixels` of masks."""
    if "label" not in source.extras:
        pixels = source.class_pixels(indices, num_classes).tolist()
        return {"class_pixels": pixels[:-1], "ignored_pixels": pixels[-1], "num_tiles": len(source.tiles(indices))}
    own = source.extras["label"].numpy()[indices]
    counts = np.bincount(own, minlength=num_classes) if own.ndim == 1 else own.sum(axis=0, dtype=np.int64)
    return {"class_counts": [int(count) for count in counts]}
