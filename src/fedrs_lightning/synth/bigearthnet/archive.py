"""Writing a synthetic BigEarthNet archive in the official layout: band files and both tables."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from fedrs_lightning.data.datasets.bigearthnet_files import (
    ALL_BANDS,
    CLASSES,
    FLAGGED_METADATA,
    IMAGES,
    METADATA,
    band_path,
)
from fedrs_lightning.errors import RunError
from fedrs_lightning.synth.bigearthnet import defects
from fedrs_lightning.synth.bigearthnet.files import encode, write_table
from fedrs_lightning.synth.bigearthnet.patches import Patch
from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample, render
from fedrs_lightning.synth.sample import describe, publish

_CHUNK = 16  # patches that a process renders at a time
_ENOUGH = 400  # patches from which starting other processes pays


def write_sample(
    out: Path, sample: BigEarthNetSample, command: Sequence[str] = (), processes: int | None = None
) -> bool:
    """Write a whole archive with its `SYNTHETIC.json`.

    Args:
        out: folder to make; it may exist when it is empty or already holds this very sample.
        sample: what to write.
        command: recorded in `SYNTHETIC.json`.
        processes: that render; by default one each core, and only this one for small samples. The bytes do not depend
            on it.

    Returns:
        Whether anything was written; False when the same sample is there already.

    Raises:
        DataError: `out` holds something else, or cannot be written.
        RunError: a process died.
    """

    def build(folder: Path) -> None:
        patches, console = sample.all_patches(), Console(stderr=True)
        for name in sorted({patch.product.name for patch in patches}):
            (folder / IMAGES / name).mkdir(parents=True)
        chunks = [patches[start : start + _CHUNK] for start in range(0, len(patches), _CHUNK)]
        written = _write_all(folder / IMAGES, sample, chunks, processes)
        done = track(
            written, "painting patches", len(chunks), console=console, disable=not console.is_terminal, transient=True
        )
        labels = [row for rows in done for row in rows]
        write_tables(folder, patches, labels)
        defects.inject(folder, sample.defects)

    parameters = asdict(sample) | {"defects": list(sample.defects)}
    return publish(out, describe("BigEarthNet", parameters, command), build)


def _write_all(
    images: Path, sample: BigEarthNetSample, chunks: list[list[Patch]], processes: int | None
) -> Iterator[list[np.ndarray]]:
    if processes is None:
        processes = (os.cpu_count() or 1) if sum(map(len, chunks)) >= _ENOUGH else 1
    if processes == 1:
        yield from (write_patches(images, sample, chunk) for chunk in chunks)
        return
    # New processes instead of forked ones: a fork would copy the locks of whatever threads this process has. They leave
    # an interrupt to this process, which then drops what they have not begun.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        try:
            yield from pool.map(write_patches, [images] * len(chunks), [sample] * len(chunks), chunks)
        except BrokenProcessPool:
            raise RunError(
                f"{images}: a process that painted patches died (was memory short? does your script lack if __name__ "
                "== '__main__'?); "
                "run the command again"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def write_patches(images: Path, sample: BigEarthNetSample, patches: Sequence[Patch]) -> list[np.ndarray]:
    """Render and write patches; gives which classes each has, bool [19]."""
    found = []
    for patch in patches:
        bands, present = render(sample, patch)
        (images / patch.product.name / patch.id).mkdir()
        for band in ALL_BANDS:
            band_path(images, patch.id, band).write_bytes(encode(bands[band], patch.product.epsg, patch.corner))
        found.append(present)
    return found


def write_tables(folder: Path, patches: Sequence[Patch], labels: Sequence[np.ndarray]) -> None:
    """Write the table of clean patches and that of flagged ones, sorted by patch id.

    Args:
        folder: of the archive.
        patches: all.
        labels: classes of each, bool [19].
    """
    rows = sorted(
        (_row(patch, present) for patch, present in zip(patches, labels, strict=True)),
        key=lambda row: str(row["patch_id"]),
    )
    flagged = [row["contains_seasonal_snow"] or row["contains_cloud_or_shadow"] for row in rows]
    write_table(folder / METADATA, [row for row, flag in zip(rows, flagged, strict=True) if not flag])
    write_table(folder / FLAGGED_METADATA, [row for row, flag in zip(rows, flagged, strict=True) if flag])


def _row(patch: Patch, present: np.ndarray) -> dict[str, Any]:
    return {
        "patch_id": patch.id,
        "labels": sorted(name for name, there in zip(CLASSES, present, strict=True) if there),
        "split": patch.split,
        "country": patch.country,
        "s1_name": patch.s1_name,
        "s2v1_name": patch.s2v1_name,
        "contains_seasonal_snow": patch.kind == "snow",
        "contains_cloud_or_shadow": patch.kind == "cloud",
    }
