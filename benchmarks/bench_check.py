"""Time of `fedrs data check bigearthnet` by headers against a full read of the same files, on N synthetic patches.

    python benchmarks/bench_check.py [N] [--root ARCHIVE]

The files were just written or read, so they come from memory for both; from a disk the full read, which asks for all of
the bytes, loses more. With --root an archive that is there already is read instead.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from common import finish, report, scratch
from fedrs_lightning.data import BigEarthNet
from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
from fedrs_lightning.synth.sample import write_sample

REPEATS = 3


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_all(root: Path) -> None:
    """Every band file with rasterio, one after the other."""
    import rasterio

    for path in sorted((root / "BigEarthNet-S2").glob("*/*/*.tif")):
        with rasterio.open(path) as raster:
            raster.read(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patches", type=int, nargs="?", default=800, help="about how many (default 800)")
    parser.add_argument("--root", type=Path, help="archive to read instead of making one")
    options = parser.parse_args()
    place = scratch()
    root = options.root or place / "archive"
    if options.root is None:
        sample = BigEarthNetSample(patches=max(1, options.patches // 8))
        made = seconds(lambda: write_sample(root, sample))
        print(f"{len(sample.all_patches())} patches made: {made / len(sample.all_patches()) * 1000:.1f} ms each")
    repeats = REPEATS if options.patches <= 2000 else 1
    BigEarthNet(str(root)).check(deep=True)  # brings the files into memory, where they fit
    # Turn by turn, so that other work on the machine meets all alike.
    ways = (
        lambda: BigEarthNet(str(root)).check(),
        lambda: BigEarthNet(str(root)).check(deep=True),
        lambda: read_all(root),
    )
    headers, deep, whole = (
        min(times) for times in zip(*([seconds(way) for way in ways] for _ in range(repeats)), strict=True)
    )
    total = sum(BigEarthNet(str(root)).check(sample=1).samples.values())
    print(f"{total} patches: headers {headers:.2f} s, full read {whole:.2f} s, check --deep {deep:.2f} s")
    print(
        f"check by headers / check --deep, which reads plain files without GDAL: {headers / deep:.2f}, with all files "
        "in memory"
    )
    results = [report("check by headers / full read with rasterio", headers / whole, 0.25, at_most=True)]
    shutil.rmtree(place)
    finish(results)


if __name__ == "__main__":
    main()
