"""Loading packed 512 x 512 crops against decoding them from the tile files.

The comparison favours the files: a tile is decoded once for all of its 144 crops, as no random access to crops could
do.
"""

from __future__ import annotations

import shutil
import time

import numpy as np

from common import finish, report, scratch
from fedrs_lightning.data import FederatedDataset, Potsdam, Proportional
from fedrs_lightning.data.packs.crops import crop_index
from fedrs_lightning.data.rasters.rows import Buffered
from tile_files import write_tile

BATCH, REPEATS = 16, 5


def decode(archive: Potsdam) -> float:
    """Seconds a crop: read the tile and its label, decode colours, cut."""
    tile = archive.listing().train[0]
    start = time.perf_counter()
    index = crop_index([("tile", *tile.size)], 512)
    with tile.open() as opened:
        image, ids = Buffered(opened.image), Buffered(opened.ids)
        for row, column in zip(index.row.tolist(), index.column.tolist(), strict=True):
            np.ascontiguousarray(image.rows(row, row + 512)[:, :, column : column + 512])
            np.ascontiguousarray(ids.rows(row, row + 512)[0, :, column : column + 512])
    return (time.perf_counter() - start) / len(index)


def single(archive: Potsdam, count: int = 12) -> float:
    """Seconds a crop: the same with random access, one crop at a time."""
    tile = archive.listing().train[0]
    places = np.random.default_rng(0).integers(0, 6000 - 512, (count, 2))
    start = time.perf_counter()
    for row, column in places.tolist():
        with tile.open() as opened:
            np.ascontiguousarray(opened.image.rows(row, row + 512)[:, :, column : column + 512])
            np.ascontiguousarray(opened.ids.rows(row, row + 512)[0, :, column : column + 512])
    return (time.perf_counter() - start) / count


def main() -> None:
    place = scratch()
    for tile in ("2_10", "2_13"):
        label = place / f"potsdam/5_Labels_all_noBoundary/top_potsdam_{tile}_label_noBoundary.tif"
        write_tile(place / f"potsdam/2_Ortho_RGB/top_potsdam_{tile}_RGB.tif", label, 6000, 6000, 0)
    archive = Potsdam(str(place / "potsdam"))
    dataset = FederatedDataset(archive, Proportional(1), crop_size=512, cache_dir=str(place / "cache"))
    dataset.prepare()
    federation = dataset.federation(0)
    source, train = federation.source, federation.clients[0].train
    gather = float("inf")
    for repeat in range(REPEATS):
        order = np.random.default_rng(repeat).permutation(train)
        start = time.perf_counter()
        for first in range(0, len(order), BATCH):
            source.gather(order[first : first + BATCH])
        gather = min(gather, (time.perf_counter() - start) / len(order))
    whole, alone = min(decode(archive) for _ in range(2)), single(archive)
    print(
        f"packed {1e3 * gather:.2f} ms a crop, tile decoded once {1e3 * whole:.2f} ms, crop by crop {1e3 * alone:.1f} "
        "ms"
    )
    results = [report("packed crops against decoding each tile once", whole / gather, 20, at_most=False, unit="x")]
    results.append(
        report("packed crops against reading single crops from the files", alone / gather, 20, at_most=False, unit="x")
    )
    shutil.rmtree(place)
    finish(results)


if __name__ == "__main__":
    main()
