"""What clients hold, in numbers: samples, classes, label sets, bands, days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrs_lightning.data.clients.federation import ClientSplit, FederatedDataset, Federation, SampleSource
from fedrs_lightning.data.packs.crop_source import CropSource
from fedrs_lightning.data.packs.fields import FieldSource, mean_std
from fedrs_lightning.errors import DataError
from fedrs_lightning.seeding import numpy_stream

FORMAT = 1
POINTS = (1, 50, 99)
CHUNK = 64  # samples looked at together
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
    """Look at every client and split.

    Samples, classes and days are of all samples, and so are mean and deviation where the source keeps sums. Extremes,
    percentiles and histograms are of a random part of each split.

    Args:
        dataset: knows names of classes and bands.
        federation: of `dataset`.
        seed: of the random parts.
        sample: size of a random part; None looks at every pixel.
        examples: training samples of each client that are named as examples.
    """
    return _Inspector(dataset, federation, seed, sample).run(examples)


class _Inspector:
    def __init__(self, dataset: FederatedDataset, federation: Federation, seed: int, sample: int | None) -> None:
        self.dataset, self.federation, self.seed, self.sample = dataset, federation, seed, sample
        self.source, self.num_classes = federation.source, dataset.num_classes
        first = next(client.train for client in federation.clients if len(client.train))[:1]
        probe = self.source.gather(first)
        self.fields = {name: str(values.numpy().dtype) for name, values in probe.items() if values.dim() == 4}
        for name, kind in self.fields.items():
            if kind not in LEVELS:
                raise DataError(f"the data set gives '{name}' as {kind}; pixels must be uint8 or uint16 to be counted")
        self.kind = (
            "segmentation" if "mask" in probe else "multi-label" if probe["label"].dim() == 2 else "single-label"
        )
        self.labels = None if self.kind == "segmentation" else _labels(self.source)
        self.seen: dict[bytes, dict[str, Any]] = {}

    def run(self, examples: int) -> Inspection:
        clients, total = self.federation.clients, sum(len(client.train) for client in self.federation.clients)
        found = Inspection({}, bin_width={name: max(1, LEVELS[kind] // BINS) for name, kind in self.fields.items()})
        described, pooled = [], _Pool()
        for client in clients:
            facts, counts = self._look(
                client.train, client.domain, numpy_stream(self.seed, "inspect", client.id, "train")
            )
            pooled.add(facts, counts)
            about: dict[str, Any] = {"id": client.id, "name": client.name, "domain": client.domain or None}
            about |= {
                "weight": len(client.train) / total,
                "classes_lacking": self._lacking(facts["class_counts"]),
                "train": facts,
            }
            if client.test is not None:
                about["test"] = self._test(
                    client.test, client.domain, numpy_stream(self.seed, "inspect", client.id, "test")
                )
            described.append(about)
            found.histograms[client.id] = {
                name: _binned(table, found.bin_width[name]) for name, table in counts.items()
            }
            shown = numpy_stream(self.seed, "inspect", "examples", client.id).permutation(client.train)[:examples]
            found.examples[client.id] = shown
        sizes = [len(client.train) for client in clients]
        found.facts = {
            "format": FORMAT,
            "dataset": self.federation.manifest.get("dataset", type(self.dataset).__name__),
            "synthetic": bool(self.federation.manifest.get("synthetic")),
            "kind": self.kind,
            "counted": "pixels" if self.kind == "segmentation" else "samples",
            "class_names": list(self.dataset.class_names),
            "seed": self.seed,
            "percentiles": "smallest stored value that q % of the pixels do not exceed",
            "pixels_of": "all samples"
            if self.sample is None
            else f"at most {self.sample} random samples of each client and split",
            "num_clients": len(clients),
            "largest_to_smallest": max(sizes) / min(sizes) if min(sizes) else None,
            "train": pooled.facts(self.num_classes) | {"bands": self._pooled_bands(pooled)},
            "clients": described,
            "test": self._common(self.federation.test, "test"),
            "validation": self._common(self.federation.validation, "validation"),
        }
        return found

    def _common(self, indices: np.ndarray, name: str) -> dict[str, Any]:
        domains = {client.domain for client in self.federation.clients}
        one = domains.pop() if len(domains) == 1 else None
        return self._test(indices, one, numpy_stream(self.seed, "inspect", "common", name))

    def _test(self, indices: np.ndarray, domain: str | None, rng: np.random.Generator) -> dict[str, Any]:
        """Facts of a split that clients may share, which is then looked at once."""
        key = indices.tobytes() + f"|{domain}".encode()
        if key not in self.seen:
            self.seen[key] = self._look(indices, domain, rng)[0]
        return self.seen[key]

    def _look(
        self, indices: np.ndarray, domain: str | None, rng: np.random.Generator
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        facts: dict[str, Any] = {"num_samples": len(indices)} | self._classes(indices)
        days = Counter(
            str(day)
            for index in indices
            if (day := self.dataset.acquired(self.federation.sample_ids[index])) is not None
        )
        if days:
            facts["days"] = dict(sorted(days.items()))
        if domain is None or not len(indices):  # bands of several domains have nothing in common but their number
            return facts | {"bands": []}, {}
        part = (
            indices
            if self.sample is None or len(indices) <= self.sample
            else np.sort(rng.choice(indices, self.sample, replace=False))
        )
        counts = self._count(part)
        bands = []
        for name, table in counts.items():
            for place, values in enumerate(self._moments(indices, part, name, table)):
                bands.append(
                    {"band": self._name(name, place, domain), "field": name} | values | _spread(table[place], len(part))
                )
        return facts | {"bands": bands}, counts

    def _classes(self, indices: np.ndarray) -> dict[str, Any]:
        if isinstance(self.source, CropSource):
            pixels = self.source.class_pixels(indices, self.num_classes).tolist()
            return {"class_counts": pixels[:-1], "ignored_pixels": pixels[-1]}
        if self.labels is None:
            total = np.zeros(256, np.int64)
            for batch in _chunks(self.source, indices):
                total += np.bincount(batch["mask"].reshape(-1), minlength=256)
            return {
                "class_counts": total[: self.num_classes].tolist(),
                "ignored_pixels": int(total[self.num_classes :].sum()),
            }
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
        counts: dict[str, np.ndarray] = {}
        for start in range(0, len(part), CHUNK):
            wanted = part[start : start + CHUNK]
            batch = self.source.gather(wanted)
            for name, kind in self.fields.items():
                pixels = batch[name].numpy()
                table = counts.setdefault(name, np.zeros((pixels.shape[1], LEVELS[kind]), np.int64))
                pieces = (
                    [pixels] if not isinstance(self.source, CropSource) else list(_inside(self.source, wanted, pixels))
                )
                for piece in pieces:
                    for band in range(piece.shape[1]):
                        table[band] += np.bincount(piece[:, band].reshape(-1), minlength=LEVELS[kind])
        return counts

    def _moments(self, indices: np.ndarray, part: np.ndarray, name: str, table: np.ndarray) -> Iterator[dict[str, Any]]:
        """Mean and deviation of each band, over all samples where the source keeps sums."""
        if isinstance(self.source, CropSource):
            count, sums = self.source.sums(indices)
        elif isinstance(self.source, FieldSource):
            count, sums = self.source.sums(indices, name)
        else:
            count, sums, indices = int(table[0].sum()), _sums(table), part
        for mean, deviation in zip(*mean_std(count, sums), strict=True):
            yield {"mean": mean, "deviation": deviation, "moments_of": len(indices)}

    def _pooled_bands(self, pooled: _Pool) -> list[dict[str, Any]]:
        """Bands of all training samples together, where all clients have the same bands."""
        named = {
            tuple(self._name(name, place, client.domain) for name, place in self._places(pooled))
            for client in self.federation.clients
        }
        if len(named) > 1:
            return []
        train = np.concatenate([client.train for client in self.federation.clients])
        bands = []
        for name, table in pooled.counts.items():
            for place, values in enumerate(self._moments(train, train, name, table)):
                values |= {} if isinstance(self.source, (CropSource, FieldSource)) else {"moments_of": pooled.looked_at}
                bands.append(
                    {"band": self._name(name, place, self.federation.clients[0].domain), "field": name} | values
                )
                bands[-1] |= _spread(table[place], pooled.looked_at)
        return bands

    def _places(self, pooled: _Pool) -> list[tuple[str, int]]:
        return [(name, place) for name, table in pooled.counts.items() for place in range(len(table))]

    def _name(self, name: str, place: int, domain: str) -> str:
        return band_names(self.dataset, name, domain, place + 1)[place]

    def _lacking(self, counts: list[int]) -> list[str]:
        return [name for name, count in zip(self.dataset.class_names, counts, strict=True) if not count]


class _Pool:
    """Training data of all clients together."""

    def __init__(self) -> None:
        self.samples = self.looked_at = self.ignored = 0
        self.classes: list[list[int]] = []
        self.counts: dict[str, np.ndarray] = {}

    def add(self, facts: Mapping[str, Any], counts: Mapping[str, np.ndarray]) -> None:
        self.samples += facts["num_samples"]
        self.ignored += facts.get("ignored_pixels", 0)
        self.looked_at += facts["bands"][0]["pixels_of"] if facts["bands"] else 0
        self.classes.append(facts["class_counts"])
        for name, table in counts.items():
            self.counts[name] = table + self.counts.get(name, 0)

    def facts(self, num_classes: int) -> dict[str, Any]:
        counts = [sum(row[place] for row in self.classes) for place in range(num_classes)]
        return {"num_samples": self.samples, "class_counts": counts} | (
            {"ignored_pixels": self.ignored} if self.ignored else {}
        )


def band_names(dataset: FederatedDataset, field: str, domain: str, number: int) -> tuple[str, ...]:
    """Names of the bands of a field, or their numbers where the data set does not name as many."""
    named = dataset.band_names(domain).get(field, ())
    return named if len(named) >= number else tuple(f"{field} {place}" for place in range(1, number + 1))


def examples_of(source: SampleSource, indices: np.ndarray, client: ClientSplit, dataset: FederatedDataset) -> Examples:
    """Pixels of some samples of a client, to be shown."""
    batch = {name: values.numpy() for name, values in source.gather(indices).items()}
    bands = {}
    for name, values in batch.items():
        if values.ndim == 4:
            for place, band in enumerate(band_names(dataset, name, client.domain, values.shape[1])[: values.shape[1]]):
                bands[band] = values[:, place]
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


def _labels(source: SampleSource) -> np.ndarray:
    if isinstance(source, FieldSource):
        return source.extras["label"].numpy()
    return np.concatenate([batch["label"] for batch in _chunks(source, np.arange(len(source)))])


def _chunks(source: SampleSource, indices: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(indices), CHUNK):
        yield {name: values.numpy() for name, values in source.gather(indices[start : start + CHUNK]).items()}


def _inside(source: CropSource, indices: np.ndarray, pixels: np.ndarray) -> Iterator[np.ndarray]:
    """The part of each crop that lies in its tile, [1, C, h, w]."""
    owner = np.searchsorted(source.offsets, indices, side="right") - 1
    for row, (number, crop) in enumerate(zip(owner, indices - source.offsets[owner], strict=True)):
        index = source.parts[number].pack.index
        tile = index.tile[crop]
        yield pixels[row : row + 1, :, : int(index.heights[tile]), : int(index.widths[tile])]


def _sums(table: np.ndarray) -> list[list[int]]:
    values = [int(value) for value in np.flatnonzero(table.any(axis=0))]
    rows = [[int(row[value]) for value in values] for row in table]
    return [
        [sum(count * value**power for count, value in zip(row, values, strict=True)) for row in rows]
        for power in (1, 2)
    ]


def _spread(counts: np.ndarray, samples: int) -> dict[str, Any]:
    """Extremes and percentiles of a histogram."""
    present, cumulated = np.flatnonzero(counts), np.cumsum(counts)
    points = np.searchsorted(cumulated, np.asarray(POINTS) / 100 * cumulated[-1])
    named = {f"p{point}": int(value) for point, value in zip(POINTS, points, strict=True)}
    return {"min": int(present[0])} | named | {"max": int(present[-1]), "pixels_of": samples}


def _binned(table: np.ndarray, width: int) -> np.ndarray:
    return table.reshape(len(table), -1, width).sum(axis=2)
