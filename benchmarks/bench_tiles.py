"""Peak memory of a process that prepares a Potsdam tile of 6000 x 6000 pixels, or a large Vaihingen area at 5 cm."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from common import finish, report, scratch
from fedrs_lightning.data import FederatedDataset, Potsdam, Proportional, TileArchive, Vaihingen
from tile_files import write_tile


def in_child(work: Callable[[], None]) -> tuple[float, float]:
    """Peak resident MiB and seconds of a forked process."""
    reader, writer = os.pipe()
    child, start = os.fork(), time.perf_counter()
    if child == 0:
        work()
        os.write(writer, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return float(os.read(reader, 64)), time.perf_counter() - start


def potsdam(root: Path, count: int) -> None:
    for number in range(count):
        tile = f"2_{10 + number}" if number < 3 else "2_13"
        label = root / f"5_Labels_all_noBoundary/top_potsdam_{tile}_label_noBoundary.tif"
        write_tile(root / f"2_Ortho_RGB/top_potsdam_{tile}_RGB.tif", label, 6000, 6000, number)


def vaihingen(root: Path) -> None:
    for area in ("1", "2"):
        name = f"top_mosaic_09cm_area{area}"
        write_tile(root / f"top/{name}.tif", root / f"eroded/{name}_noBoundary.tif", 2566, 3816, int(area))


def prepare(archive: TileArchive, cache: Path) -> None:
    FederatedDataset(archive, Proportional(1), crop_size=512, cache_dir=str(cache)).prepare()


def main() -> None:
    place = scratch()
    in_child(lambda: potsdam(place / "potsdam", 4))
    in_child(lambda: vaihingen(place / "vaihingen"))
    idle, _ = in_child(lambda: None)
    print(f"a process that has imported everything: {idle:.0f} MiB")
    results = []
    for name, archive in (
        ("four Potsdam tiles of 6000 x 6000, several at a time", Potsdam(str(place / "potsdam"))),
        ("two Vaihingen areas of 2566 x 3816 resampled to 5 cm", Vaihingen(str(place / "vaihingen"))),
    ):
        peak, seconds = in_child(lambda archive=archive, name=name: prepare(archive, place / name))  # type: ignore[misc]
        print(f"{name}: {seconds:.1f} s")
        results.append(report(f"peak memory, {name}", peak / 1024, 1.0, at_most=True, unit=" GiB"))
    shutil.rmtree(place)
    finish(results)


if __name__ == "__main__":
    main()
