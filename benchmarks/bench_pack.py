"""Packing BigEarthNet's many small files, and loading batches from the pack.

    python benchmarks/bench_pack.py [N] [--root ARCHIVE]

Makes an archive of about N patches in the official layout (default 2,000; 20,000 need 8 GB of disk and some minutes),
packs it, and compares, per patch: reading the ten band files with rasterio; a batch from the pack at native size, as
uint16; a plain gather of the same bytes from a mapped array. All three in processor time of one thread, for which other
work on the machine does not count. The bicubic resize, which a GPU does, is timed apart. A process of its own measures
how much memory an epoch takes within a stated budget. Files were just written or read, so they come from memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from common import finish, report, scratch
from fedrs_lightning.data import BigEarthNet, ClientLoader, FederatedDataset, Federation
from fedrs_lightning.data.archives.bigearthnet import files as layout
from fedrs_lightning.data.batches.loading import Loading
from fedrs_lightning.data.packs.fields import Field
from fedrs_lightning.data.packs.folders import packing
from fedrs_lightning.data.packs.images import ImagePack
from fedrs_lightning.data.packs.pack import Pack
from fedrs_lightning.data.packs.residence import GIB
from fedrs_lightning.data.packs.source import PackedSource, Part
from fedrs_lightning.synth.bigearthnet.sample import BigEarthNetSample
from fedrs_lightning.synth.sample import write_sample

BATCH, REPEATS, READ = 64, 5, 300


def write_archive(root: Path, count: int) -> None:
    """About `count` patches: those of a small sample over and over, each time of another minute of the day."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_sample(root, BigEarthNetSample(patches=10))
    table = pq.read_table(root / "metadata.parquet")
    names = table["patch_id"].to_pylist()
    copies = -(-count // len(names))

    def renamed(name: str, copy: int) -> str:
        parts = name.split("_")
        parts[2] = f"{parts[2][:9]}{copy // 3600 % 24:02d}{copy // 60 % 60:02d}{copy % 60:02d}"
        return "_".join(parts)

    tables = [table]
    for copy in range(1, copies):
        for name in names:
            new = renamed(name, copy)
            old, target = (root / "BigEarthNet-S2" / layout.product_of(patch) / patch for patch in (name, new))
            target.mkdir(parents=True)
            for path in old.iterdir():
                shutil.copyfile(path, target / path.name.replace(name, new))
        column = pa.array([renamed(name, copy) for name in names], table.schema.field("patch_id").type)
        tables.append(
            table.set_column(table.schema.get_field_index("patch_id"), table.schema.field("patch_id"), column)
        )
    pq.write_table(pa.concat_tables(tables), root / "metadata.parquet")


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def read_files(images: Path, names: list[str]) -> None:
    """Every band file with rasterio, without any check."""
    import rasterio

    for name in names:
        for band in layout.BANDS:
            with rasterio.open(layout.band_path(images, name, band)) as raster:
                raster.read(1)


def gather_epoch(source: PackedSource, order: np.ndarray) -> None:
    for start in range(0, len(order), BATCH):
        source.gather(order[start : start + BATCH])


def plain_gather(arrays: list[torch.Tensor], order: np.ndarray) -> list[torch.Tensor]:
    """A batch's arrays, together in memory as a batch has them."""
    wanted = torch.from_numpy(order)
    return [torch.index_select(array, 0, wanted) for array in arrays]


def load_epoch(loader: ClientLoader, epoch: int = 0) -> None:
    for client in loader.federation.clients:
        for _ in loader.epoch(client.id, 1, epoch):
            pass


def loading(source: PackedSource, images: Path) -> tuple[list[bool], float]:
    """Files once an epoch; pack and plain gather batch by batch in turns. All in processor time of this one thread."""
    pack = source.parts[0].pack
    assert isinstance(pack, Pack)
    plain = [
        torch.from_numpy(np.load(pack.folder / f"{name}.npy", mmap_mode="c").view(np.int16)) for name in pack.fields
    ]
    rng, files, packs, plains = np.random.default_rng(0), [], [], []
    for _ in range(REPEATS):
        order = rng.permutation(len(source))
        some = [source.sample_ids[index] for index in order[:READ]]
        files.append(seconds(lambda some=some: read_files(images, some), time.thread_time) / len(some))
        for start in range(0, len(order) - 2 * BATCH + 1, 2 * BATCH):
            one, other = order[start : start + BATCH], order[start + BATCH : start + 2 * BATCH]
            packs.append(seconds(lambda one=one: source.gather(one), time.thread_time) / BATCH)
            plains.append(seconds(lambda other=other: plain_gather(plain, other), time.thread_time) / BATCH)
    read, packed, direct = min(files), float(np.median(packs)), float(np.median(plains))
    size = sum(field.nbytes for field in pack.fields.values())
    print(
        f"one patch: files {1e3 * read:.2f} ms, pack {1e3 * packed:.4f} ms, plain gather {1e3 * direct:.4f} ms "
        f"({size:,} bytes)"
    )
    print(f"pack: {1 / packed:,.0f} patches/s, {size / packed / 1e9:.2f} GB/s")
    results = [report("packed loading against reading the band files", read / packed, 25, at_most=False, unit="x")]
    results.append(
        report("packed loading against a plain mapped gather", direct / packed, 0.6, at_most=False, unit="x")
    )
    return results, packed


def epochs(made: Federation, packed: float) -> None:
    """Time per epoch of the loader, with the device's step on this CPU, with and without a thread that loads ahead."""
    count = sum(len(client.train) for client in made.clients)
    batch = made.source.gather(made.clients[0].train[:BATCH])
    step = min(seconds(lambda: made.transform(dict(batch), None)) for _ in range(REPEATS)) / len(batch["label"])
    print(
        f"bicubic resize and normalisation (the device's step) on this CPU: {1e3 * step:.3f} ms a patch, "
        f"{step / packed:.1f}x the loading"
    )
    for ahead in (0, 2):
        loader = ClientLoader(made, BATCH, None, 0, "cpu", loading=Loading(prefetch=ahead))
        took = min(seconds(lambda loader=loader: load_epoch(loader)) for _ in range(2))
        print(
            f"epoch of {count:,} training patches, prefetch {ahead}, this CPU's step included: {took:.1f} s, "
            f"{count / took:,.0f} patches/s"
        )


def planned(place: Path, packed: float) -> None:
    """How far the loader alone gets on one core, against what a fast GPU may ask for."""
    rng = np.random.default_rng(0)
    count, ids = 20_000, [str(number) for number in range(20_000)]
    tiles = rng.integers(0, 256, (64, 3, 64, 64), dtype=np.uint8)
    spec = ImagePack(
        "tiles",
        ids,
        {"image": Field((3, 64, 64), "uint8")},
        {},
        lambda: "",
        lambda number: {"image": tiles[number % 64]},
    )
    source = PackedSource([Part(Pack(spec.pack(place / "tiles")))], {"label": torch.zeros(count, dtype=torch.int64)})
    took = min(seconds(lambda: gather_epoch(source, rng.permutation(count)), time.thread_time) for _ in range(REPEATS))
    print(
        f"loader alone, one core: {count / took:,.0f} patches/s at 64 x 64 x 3 (plan 20,000), {1 / packed:,.0f} at "
        "120 x 120 x 10 (8,000)"
    )


def peak(folder: Path, budget: float, pipe) -> None:
    """Bytes by which this process grows in an epoch over the whole pack."""
    source = PackedSource([Part(Pack(folder))], {"label": torch.zeros(1).expand(_count(folder))})
    source.shelf.settle("map", budget, torch.device("cpu"))
    order = np.random.default_rng(0).permutation(len(source))
    gather_epoch(source, order[:BATCH])
    source.shelf.release()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    took = seconds(lambda: gather_epoch(source, order))
    pipe.send((_status("VmHWM") - before, len(order) / took))


def _count(folder: Path) -> int:
    return len(np.load(folder / "image10.npy", mmap_mode="r"))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def memory(folder: Path) -> list[bool]:
    size = sum(path.stat().st_size for path in folder.glob("image??.npy"))
    budget = size / 8
    grown, rates = [], []
    for allowed in (budget, 10.0 * size):
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(target=peak, args=(folder, allowed, theirs))
        child.start()
        bytes_more, rate = ours.recv()
        child.join()
        grown.append(bytes_more)
        rates.append(rate)
    batch = BATCH * size / _count(folder)
    print(
        f"peak memory of an epoch over {size / GIB:.2f} GiB: {grown[0] / GIB:.3f} GiB with a budget of "
        f"{budget / GIB:.3f} GiB "
        f"(a batch is {batch / GIB:.3f}) at {rates[0]:,.0f} patches/s, {grown[1] / GIB:.3f} without at {rates[1]:,.0f}"
    )
    return [report("peak memory / (budget and two batches)", grown[0] / (budget + 2 * batch), 1.0, at_most=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "patches", type=int, nargs="?", default=2000, help="about how many the archive has (default 2,000)"
    )
    parser.add_argument("--root", type=Path, help="archive to read instead of making one")
    options = parser.parse_args()
    place = scratch()
    root = options.root or place / "archive"
    if not options.root:
        print(f"archive: {seconds(lambda: write_archive(root, options.patches)):.1f} s")
    dataset = FederatedDataset(BigEarthNet(str(root)), cache_dir=str(place / "cache"))
    with packing() as orders:
        dataset.prepare()
    (made,) = orders.packs
    print(f"packed {made.samples:,} patches in {made.seconds:.1f} s: {made.made / made.seconds:,.0f} patches/s")
    federation = dataset.federation(0)
    again = seconds(dataset.prepare)
    print(f"found packed again in {again:.2f} s (tables, folders, sizes and times of {10 * made.samples:,} files)")
    results, packed = loading(federation.source, layout.find_layout(root).images)
    epochs(federation, packed)
    planned(place, packed)
    results += memory(made.folder)
    shutil.rmtree(place)
    finish(results)


if __name__ == "__main__":
    main()
