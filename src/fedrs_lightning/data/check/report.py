"""What a check finds, and what all checks share: threads, random parts, and samples of equal content."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from fedrs_lightning.errors import ConfigError, FedrsError
from fedrs_lightning.files import read_json
from fedrs_lightning.progress import tracked
from fedrs_lightning.seeding import stream_seed

THREADS = 16  # a network file system answers many questions at a time
CHUNK = 32  # samples that a thread looks at together, where there are many

Severity = Literal["error", "warning", "note"]
Column = np.ndarray | None
Strings = Sequence[str]
T = TypeVar("T")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Finding:
    """Something to know about a data folder.

    Attributes:
        severity: `error` (the reader refuses it, or results would be wrong), `warning`, or `note`.
        message: names the file, what is wrong and what to do.
    """

    severity: Severity
    message: str


@dataclass(frozen=True)
class Item:
    """A sample whose files are looked into.

    Attributes:
        key: what the look is given, such as a path.
        where: for messages, such as the file.
        part: of the data, such as `train`; empty for none.
        label: its class; None where samples have several.
    """

    key: Any
    where: str
    part: str = ""
    label: int | None = None


@dataclass(frozen=True)
class Seen:
    """What was seen in the files of a sample.

    Attributes:
        faults: each with file and remedy.
        content: hash of the pixels or bytes, as far as they were looked at; empty where nothing is to be compared.
        plain: whether the image shows nothing, so that another one may well be equal.
        pixels: of each class in its mask, int64; None where there is none.
        remark: what is worth a warning, with file; empty for nothing.
        gaps: share of the pixels that were looked at and are declared as no data.
    """

    faults: Sequence[str] = ()
    content: str = ""
    plain: bool = False
    pixels: np.ndarray | None = None
    remark: str = ""
    gaps: float = 0.0


@dataclass
class Report:
    """Outcome of a check.

    Attributes:
        dataset: name of the archive's class, or `clients`.
        root: folder that was checked.
        mode: `header`, or `deep` when everything was decoded.
        unit: of `counts`.
        folder: where the data were found; empty if nowhere.
        checked: number of files looked into.
        total: number of samples.
        counts: samples, or pixels, of each class.
        files: for each part of the data, how many tiles and files of each kind there are.
        clients: samples of each class by client, or by published owner and split.
        samples: number of samples in each row of `clients`.
        synthetic: whether the data are synthetic.
        findings: in the order found.
    """

    dataset: str
    root: str
    mode: Literal["header", "deep"] = "header"
    unit: str = "images"
    folder: str = ""
    checked: int = 0
    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    clients: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    synthetic: bool = False
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, *messages: str) -> None:
        """Record findings."""
        self.findings += [Finding(severity, message) for message in messages]

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Record the error with which a reader refuses the data in the body, unless it is known already."""
        try:
            yield
        except FedrsError as error:
            if Finding("error", str(error)) not in self.findings:
                self.add("error", str(error))

    def found(self, folder: Path, levels: int = 3) -> None:
        """Record where the data are, and whether a marker there or up to `levels` above says they are synthetic."""
        self.folder, marker = str(folder), synthetic_marker(folder, levels)
        if marker is not None:
            self.synthetic = True
            generator = read_json(marker).get("generator", "an unknown generator")
            self.add("note", f"{marker}: synthetic data, made by {generator}")

    def add_row(self, name: str, labels: np.ndarray, num_classes: int) -> None:
        """Count samples in a row of `clients`; labels are [N] or multi-hot [N, C]."""
        self.samples[name], self.clients[name] = len(labels), class_counts(labels, num_classes)

    def count(
        self, names: Strings, labels: np.ndarray, splits: Column = None, owners: Column = None, order: Strings = ()
    ) -> None:
        """Count samples by class, and by published owner and split where there are such; no order sorts the owners.

        Labels are int [N], or multi-hot [N, C]; splits and owners str [N].
        """
        self.total = len(labels)
        self.counts = dict(zip(names, class_counts(labels, len(names)), strict=True))
        if splits is None and owners is None:
            return
        parts = np.full(len(labels), "") if splits is None else splits
        whose = np.full(len(labels), "") if owners is None else owners
        for owner in order or np.unique(whose).tolist():
            for part in sorted(np.unique(parts).tolist(), key=("train", "validation", "test", "").index):
                rows = labels[(whose == owner) & (parts == part)]
                if len(rows):
                    self.add_row(f"{owner} {part}".strip() or "in no split", rows, len(names))

    def add_same(self, same: Sequence[Item], remedy: str) -> None:
        """Record samples of the same content."""
        parts = list(dict.fromkeys(item.part for item in same if item.part))
        both = f", in {' and '.join(parts)} data" if len(parts) > 1 else ""
        names = ", ".join(item.where for item in same[1:])
        self.add("error", f"{names}: the same content as {same[0].where}{both}; {remedy}")

    @property
    def deep(self) -> bool:
        """Whether every file is decoded."""
        return self.mode == "deep"

    @property
    def failed(self) -> bool:
        """Whether there are errors."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"failed": self.failed}


def class_counts(labels: np.ndarray, num_classes: int) -> list[int]:
    """Samples of each class; labels are int [N], or multi-hot [N, C]."""
    found = labels.sum(axis=0, dtype=np.int64) if labels.ndim == 2 else np.bincount(labels, minlength=num_classes)
    return [int(count) for count in found]


def synthetic_marker(folder: Path, levels: int = 3) -> Path | None:
    """`SYNTHETIC.json` in the folder or up to `levels` above it, if the sample is synthetic."""
    places = (place / "SYNTHETIC.json" for place in (folder, *list(folder.resolve().parents)[:levels]))
    return next((place for place in places if place.is_file()), None)


def drawn(items: Sequence[T], number: int | None, seed: int) -> list[T]:
    """A random part of the items, in their order; all of them where `number` is None or larger.

    Raises:
        ConfigError: the number is below 1.
    """
    if number is not None and number < 1:
        raise ConfigError(f"--sample must be at least 1, got {number}")
    if number is None or number >= len(items):
        return list(items)
    places = random.Random(stream_seed(seed, "check")).sample(range(len(items)), number)
    return [items[place] for place in sorted(places)]


def in_threads(look: Callable[[T], Result], items: Sequence[T]) -> Iterator[tuple[T, Result]]:
    """Each item with what was seen in it, in order."""
    size = max(1, min(CHUNK, len(items) // (8 * THREADS)))
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(THREADS) as pool:
        done = pool.map(lambda chunk: [(item, look(item)) for item in chunk], chunks)
        yield from tracked((pair for pairs in done for pair in pairs), "checking", len(items))


def look_into(
    report: Report,
    items: Sequence[Item],
    look: Callable[[Any], Seen],
    confirm: Callable[[Any], Seen] | None = None,
    remedy: str = "remove all but one, or training and test data overlap",
) -> list[Seen]:
    """Look into the files of all items; faults, and items of the same content, go into the report.

    Args:
        report: is added to.
        items: in their order.
        look: at the `key` of an item; what it raises of a broken file is a fault. Its results are returned.
        confirm: a closer look at items that seem to be the same; None trusts the first one.
        remedy: for items of the same content.
    """
    seen = _looked(report, items, look)
    report.add("warning", *(found.remark for found in seen if found.remark))
    holes = [(found.gaps, item.where) for item, found in zip(items, seen, strict=True) if found.gaps]
    if holes:
        share, where = max(holes)
        some = f"{len(holes)} of {len(items)} declare pixels as no data (here {100 * share:.1f} % of those looked at)"
        report.add("warning", f"{where}: {some}; they are not trained on and count in no statistics")
    groups = alike(zip(items, seen, strict=True))
    if confirm is not None:
        again = [item for same in groups for item, _ in same]
        groups = alike(zip(again, _looked(report, again, confirm), strict=True))
    for same in groups:
        found_in = [item for item, _ in same]
        if all(found.plain for _, found in same) and len({item.label for item in found_in}) == 1:
            also = f"the same plain pixels also in {', '.join(item.where for item in found_in[1:])}"
            report.add("note", f"{found_in[0].where}: {also}; harmless, open water and the like do look alike")
        else:
            report.add_same(found_in, remedy)
    return seen


def _looked(report: Report, items: Sequence[Item], look: Callable[[Any], Seen]) -> list[Seen]:
    def attempt(item: Item) -> Seen:
        try:
            return look(item.key)
        except FedrsError as error:
            return Seen([str(error)])
        except PermissionError:
            return Seen([f"{item.where}: no permission to read it; run chmod u+r on it"])
        except (OSError, SyntaxError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return Seen([f"{item.where}: cannot be read ({reason}); check the file, or replace it from the archive"])

    seen = [found for _, found in in_threads(attempt, items)]
    report.add("error", *(fault for found in seen for fault in found.faults))
    return seen


def alike(pairs: Iterable[tuple[Item, Seen]]) -> list[list[tuple[Item, Seen]]]:
    """Groups of items with the same content."""
    groups: dict[str, list[tuple[Item, Seen]]] = defaultdict(list)
    for item, found in pairs:
        if found.content and not found.faults:
            groups[found.content].append((item, found))
    return [same for same in groups.values() if len(same) > 1]


def seen_pixels(arrays: Iterable[np.ndarray], plain: Callable[[np.ndarray], bool]) -> Seen:
    """Content of decoded arrays [C, H, W]; `plain` says whether one shows nothing."""
    digest, all_plain, gaps = hashlib.sha256(), True, 0.0
    for array in arrays:
        gaps = max(gaps, float(np.ma.getmaskarray(array).mean()) if isinstance(array, np.ma.MaskedArray) else 0.0)
        array = np.asarray(array)
        digest.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
        all_plain = all_plain and plain(array)
    return Seen((), digest.hexdigest(), all_plain, gaps=gaps)
