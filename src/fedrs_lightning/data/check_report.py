"""What a check of a data folder finds, and what all checks share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedrs_lightning.errors import ConfigError
from fedrs_lightning.files import read_json
from fedrs_lightning.seeding import stream_seed

Severity = Literal["error", "warning", "note"]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Something to know about a data folder.

    Attributes:
        severity: `error` (the reader refuses it, or results would be wrong), `warning`, or `note`.
        message: names the file, what is wrong and what to do.
    """

    severity: Severity
    message: str


@dataclass
class Report:
    """Outcome of a check.

    Attributes:
        dataset: name.
        root: folder that was checked.
        folder: where the class folders were found; empty if nowhere.
        mode: `header`, or `deep` when everything was decoded.
        checked: number of files looked into.
        unit: of `counts`.
        counts: samples, or pixels, of each class.
        files: for each part of the data, how many tiles and files of each kind there are.
        clients: samples of each class by client name, where clients were asked for.
        samples: samples of each of `clients`, where one may be of several classes.
        synthetic: whether the data are synthetic.
        findings: in the order found.
    """

    dataset: str
    root: str
    folder: str = ""
    mode: Literal["header", "deep"] = "header"
    checked: int = 0
    unit: Literal["tiles", "patches", "pixels"] = "tiles"
    counts: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    clients: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    synthetic: bool = False
    findings: list[Finding] = field(default_factory=list)

    def add(self, severity: Severity, message: str) -> None:
        """Record a finding."""
        self.findings.append(Finding(severity, message))

    def note_synthetic(self, marker: Path | None) -> None:
        """Record that the data are synthetic, where the marker file is there."""
        if marker is not None:
            self.synthetic = True
            self.add(
                "note",
                f"{marker}: synthetic data, made by {read_json(marker).get('generator', 'an unknown generator')}",
            )

    @property
    def failed(self) -> bool:
        """Whether there are errors."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"failed": self.failed}


def drawn(items: Sequence[T], number: int | None, seed: int) -> list[T]:
    """A random part of the items, in their order; all of them where `number` is None or larger.

    Raises:
        ConfigError: the number is below 1.
    """
    if number is not None and number < 1:
        raise ConfigError(f"--sample must be at least 1, got {number}")
    if number is None or number >= len(items):
        return list(items)
    return [
        items[place] for place in sorted(random.Random(stream_seed(seed, "check")).sample(range(len(items)), number))
    ]
