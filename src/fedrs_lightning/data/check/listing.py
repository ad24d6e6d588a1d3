"""What a folder of images and labels holds, as `fedrs data check` wants it listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrs_lightning.data.check.rasters import Look
from fedrs_lightning.data.check.report import Report, Severity
from fedrs_lightning.data.rasters.class_tables import ClassTable

HINT = "this is a photo, not a label, or a label blended over one; are image and label interchanged?"


@dataclass(frozen=True)
class Job:
    """Files of one tile that belong together.

    Attributes:
        id: of the tile.
        part: row of the summary table, such as `train`.
        images: name of a view to file and number of channels.
        labels: name of a label set to file, table and remedy for unknown pixels.
    """

    id: str
    part: str
    images: Mapping[str, tuple[Path, int]]
    labels: Mapping[str, tuple[Path, ClassTable, str]]


@dataclass
class Listing:
    """What a folder holds.

    Attributes:
        folder: where it was found.
        jobs: tiles.
        classes: names.
        usual: (height, width) of official tiles; None where they vary.
        findings: about names and pairs, as (severity, message).
        views: columns of the summary table.
        after: a look at all tiles together: gets the report and, for each job, what was seen in its files by name.
    """

    folder: Path
    jobs: list[Job]
    classes: tuple[str, ...]
    usual: tuple[int, int] | None
    findings: list[tuple[Severity, str]] = field(default_factory=list)
    views: tuple[str, ...] = ()
    after: Callable[[Report, Sequence[tuple[Job, dict[str, Look]]], bool], None] | None = None
