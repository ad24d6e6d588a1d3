"""What clients hold, in numbers: samples, classes, label sets, bands, days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrs_lightning.data.clients.federation import ClientSplit, Federation
from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.data.packs.source import PackedSource
from fedrs_lightning.seeding import numpy_stream

if TYPE_CHECKING:
    from fedrs_lightning.data.clients.dataset import FederatedDataset

FORMAT = 1
POINTS = (1, 50, 99)
CHUNK = 64  # samples read together
BINS = 16384  # of a histogram that is kept
FREQUENT = 5  # label sets that are listed
LEVELS = {"uint8": 256, "uint16": 65536}


@dataclass
class Inspection:
    """What was found.

    Attributes:
        facts: plain JSON values, see docs/data.md.
        histograms: by client, then field: pixels of its training samples by value, int64 [C, bins].
        bin_width: values of one bin of each field.
        examples: by client: a few of its training samples, int64.
    """

    facts: dict[str, Any]
    histograms: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    bin_width: dict[str, int] = field(default_factory=dict)
    examples: dict[int, np.ndarray] = field(default_factory=dict)


def inspect_data(
    dataset: FederatedDataset, federation: Federation, seed: int, sample: int | None = 256, examples: int = 6
) -> Inspection:
    """Describe every client and split.

    Samples, classes, days, mean and deviation are of all samples; extremes, percentiles and histograms of `sample`
    random samples of each split, or of all. Of each client `examples` training samples are named as examples.
    """
    return _Inspector(dataset, federation, seed, sample).run(examples)


class _Inspector:
    def __init__(self, dataset: FederatedDataset, federation: Federation, seed: int, sample: int | None) -> None:
        self.dataset, self.federation, self.seed, self.sample = dataset, federation, seed, sample
        assert isinstance(federation.source, PackedSource)
        self.source, self.num_classes = federation.source, dataset.num_classes
        fields = self.source.parts[0].pack.fields
        self.fields = {name: fields[name] for name in dataset.band_names()}
        label = self.source.extras.get("label")
        self.labels = None if label is None else label.numpy()
        kinds = {0: "segmentation", 1: "single-label", 2: "multi-label"}
        self.kind = kinds[0 if self.labels is None else self.labels.ndim]
        self.known: dict[bytes, dict[str, Any]] = {}

    def run(self, examples: int) -> Inspection:
        clients, total = self.federation.clients, sum(len(client.train) for client in self.federation.clients)
        found = Inspection({}, bin_width={name: max(1, LEVELS[own.dtype] // BINS) for name, own in self.fields.items()})
        described, trained, pooled = [], [], dict[str, np.ndarray]()
        for client in clients:
            facts, counts = self._describe(client.train, client.domain, client.id, "train")
            trained.append(facts)
            pooled |= {name: table + pooled.get(name, 0) for name, table in counts.items()}
            counted = zip(self.dataset.class_names, facts["class_counts"], strict=True)
            lacking = [name for name, count in counted if not count]
            about: dict[str, Any] = {"id": client.id, "name": client.name, "domain": client.domain or None}
            about |= {"weight": len(client.train) / total, "classes_lacking": lacking, "train": facts}
            if client.test is not None:
                about["test"] = self._test(client.test, client.domain, client.id, "test")
            described.append(about)
            binned = {name: table.reshape(len(table), -1, found.bin_width[name]) for name, table in counts.items()}
            found.histograms[client.id] = {name: table.sum(axis=2) for name, table in binned.items()}
            shown = numpy_stream(self.seed, "inspect", "examples", client.id).permutation(client.train)[:examples]
            found.examples[client.id] = shown
        sizes = [len(client.train) for client in clients]
        ignored = sum(each.get("ignored_pixels", 0) for each in trained)
        classes = np.sum([each["class_counts"] for each in trained], axis=0).tolist()
        together = {"num_samples": sum(sizes), "class_counts": classes}
        together |= {"ignored_pixels": ignored} if ignored else {}
        most = self.sample
        some = "all samples" if most is None else f"at most {most} random samples of each client and split"
        found.facts = {
            "format": FORMAT,
            "dataset": self.federation.manifest.get("dataset", type(self.dataset).__name__),
            "synthetic": bool(self.federation.manifest.get("synthetic")),
            "kind": self.kind,
            "counted": "pixels" if self.kind == "segmentation" else "samples",
            "class_names": list(self.dataset.class_names),
            "seed": self.seed,
            "percentiles": "smallest stored value that q % of the pixels do not exceed",
            "pixels_of": some,
            "num_clients": len(clients),
            "largest_to_smallest": max(sizes) / min(sizes) if min(sizes) else None,
            "train": together | {"bands": self._pooled_bands(trained, pooled)},
            "clients": described,
            "test": self._common(self.federation.test, "test"),
            "validation": self._common(self.federation.validation, "validation"),
        }
        return found

    def _common(self, indices: np.ndarray, name: str) -> dict[str, Any]:
        domains = {client.domain for client in self.federation.clients}
        return self._test(indices, domains.pop() if len(domains) == 1 else None, "common", name)

    def _test(self, indices: np.ndarray, domain: str | None, *words: int | str) -> dict[str, Any]:
        """Facts of a split that clients may share, which is then described once."""
        key = indices.tobytes() + f"|{domain}".encode()
        if key not in self.known:
            self.known[key] = self._describe(indices, domain, *words)[0]
        return self.known[key]

    def _describe(
        self, indices: np.ndarray, domain: str | None, *words: int | str
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Facts of samples, and pixels by value of a random part of them, drawn from the stream of the words."""
        facts: dict[str, Any] = {"num_samples": len(indices)} | self._classes(indices)
        days = (self.dataset.acquired(self.federation.sample_ids[index]) for index in indices)
        if counted := Counter(str(day) for day in days if day is not None):
            facts["days"] = dict(sorted(counted.items()))
        if domain is None or not len(indices):  # bands of several domains have nothing in common but their number
            return facts | {"bands": []}, {}
        part = indices
        if self.sample is not None and len(indices) > self.sample:
            part = np.sort(numpy_stream(self.seed, "inspect", *words).choice(indices, self.sample, replace=False))
        counts = self._count(part)
        return facts | {"bands": self._bands(indices, domain, counts, len(part))}, counts

    def _bands(
        self, indices: np.ndarray, domain: str, counts: Mapping[str, np.ndarray], looked_at: int
    ) -> list[dict[str, Any]]:
        """Mean and deviation of each band over all samples, extremes and percentiles of a histogram of some."""
        bands = []
        for name, names in self.dataset.band_names(domain).items():
            rows = zip(names, *mean_std(*self.source.sums(indices, name)), counts[name], strict=True)
            for band, mean, deviation, row in rows:
                moments = {"mean": mean, "deviation": deviation, "moments_of": len(indices)}
                bands.append({"band": band, "field": name} | moments | _spread(row, looked_at))
        return bands

    def _classes(self, indices: np.ndarray) -> dict[str, Any]:
        if self.labels is None:
            pixels = self.source.class_pixels(indices, self.num_classes).tolist()
            return {"class_counts": pixels[:-1], "ignored_pixels": pixels[-1]}
        own = self.labels[indices]
        if self.kind == "single-label":
            return {"class_counts": np.bincount(own, minlength=self.num_classes).tolist()}
        sets, counts = np.unique(own > 0.5, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:FREQUENT]
        names = np.asarray(self.dataset.class_names)
        frequent = [{"classes": names[sets[place]].tolist(), "num_samples": int(counts[place])} for place in order]
        facts = {"distinct": len(sets), "most_frequent": frequent}
        return {"class_counts": (own > 0.5).sum(axis=0).tolist(), "label_sets": facts}

    def _count(self, part: np.ndarray) -> dict[str, np.ndarray]:
        """Pixels by value of each field and band, int64 [C, levels]; those beyond a tile's edge are left out."""
        counts = {name: np.zeros((own.shape[0], LEVELS[own.dtype]), np.int64) for name, own in self.fields.items()}
        for start in range(0, len(part), CHUNK):
            wanted = part[start : start + CHUNK]
            batch = self.source.gather(wanted)
            for name, table in counts.items():
                pixels = batch[name].numpy()
                pieces = [pixels]
                if self.labels is None:
                    inside = zip(pixels, self.source.inside(wanted), strict=True)
                    pieces = [crop[None, :, :height, :width] for crop, (height, width) in inside]
                for piece in pieces:
                    for band, row in enumerate(table):
                        row += np.bincount(piece[:, band].reshape(-1), minlength=len(row))
        return counts

    def _pooled_bands(self, trained: list[dict[str, Any]], pooled: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Bands of all training samples together, where all clients have the same bands."""
        clients = self.federation.clients
        if len({tuple(self.dataset.band_names(client.domain).items()) for client in clients}) > 1 or not pooled:
            return []
        train = np.concatenate([client.train for client in clients])
        looked_at = sum(facts["bands"][0]["pixels_of"] for facts in trained if facts["bands"])
        return self._bands(train, clients[0].domain, pooled, looked_at)


def examples_of(federation: Federation, indices: np.ndarray, client: ClientSplit, data: FederatedDataset) -> Examples:
    """Pixels of some samples of a client, to be shown."""
    batch = {name: values.numpy() for name, values in federation.source.gather(indices).items()}
    names = data.band_names(client.domain).items()
    bands = {band: batch[field][:, place] for field, own in names for place, band in enumerate(own)}
    return Examples(bands, batch.get("mask"), batch.get("label"))


@dataclass(frozen=True)
class Examples:
    """Some samples.

    Attributes:
        bands: stored pixels of each band by its name, [B, h, w]; sizes of bands may differ.
        mask: class ids, [B, h, w], 255 = ignore; None where samples have labels.
        label: class of each, int64 [B], or 1 for each class it has, float32 [B, C].
    """

    bands: dict[str, np.ndarray]
    mask: np.ndarray | None
    label: np.ndarray | None


def _spread(counts: np.ndarray, samples: int) -> dict[str, Any]:
    """Extremes and percentiles of a histogram."""
    present, cumulated = np.flatnonzero(counts), np.cumsum(counts)
    points = np.searchsorted(cumulated, np.asarray(POINTS) / 100 * cumulated[-1])
    named = {f"p{point}": int(value) for point, value in zip(POINTS, points, strict=True)}
    return {"min": int(present[0])} | named | {"max": int(present[-1]), "pixels_of": samples}
