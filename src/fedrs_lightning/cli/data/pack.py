"""`fedrs data pack`: decode a data set once into memory-mapped arrays, before a run does it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedrs_lightning.cli.options import above

if TYPE_CHECKING:
    from fedrs_lightning.data.packs.folders import Pack

DESCRIPTION = """Decode all images of a data set once into the cache, where every run finds them.
What was interrupted goes on where it stopped; what is packed already is left as it is."""


def main(argv: Sequence[str]) -> int:
    """Pack or check the packs of a config; returns the exit code, 2 where a pack is damaged or missing."""
    from fedrs_lightning.cli.data.config import config_parser, dataset_of, parsed

    parser = config_parser("fedrs data pack", DESCRIPTION)
    threads = "threads (default: one a core, at most 16; four for large tiles)"
    parser.add_argument("--jobs", type=above(1), metavar="N", help=threads)
    compare = "compare packs that are there with their hashes; make nothing"
    parser.add_argument("--verify", action="store_true", help=compare)
    options, overrides = parsed(parser, argv)
    dataset, _ = dataset_of(options.config, overrides)

    from fedrs_lightning.data.packs.folders import packing

    with packing(options.jobs, options.verify) as orders:
        dataset.give_to_one_client()  # who gets what does not matter here
        dataset.prepare()
    if not orders.packs:
        print("nothing to pack: with storage: files, images are read from their files")
    for pack in orders.packs:
        print(_checked(pack) if options.verify else _packed(pack))
    damaged = [(pack.folder, damage) for pack in orders.packs for damage in pack.damages]
    for folder, damage in damaged:
        print(f"{'damaged' if folder.is_dir() else 'missing'}: {folder}: {damage}", file=sys.stderr)
    if any(folder.is_dir() for folder, _ in damaged):
        print("delete the damaged folders; fedrs data pack makes them again", file=sys.stderr)
    return 2 if damaged else 0


def _packed(pack: Pack) -> str:
    from fedrs_lightning.progress import rate

    each = pack.nbytes / max(pack.samples, 1)
    if not pack.made:
        return f"there already: {_described(pack)}"
    part = f"{pack.made:,} of them now, " if pack.made < pack.samples else ""
    speed = rate(pack.made / max(pack.seconds, 1e-9), each)
    return f"packed: {_described(pack)}, {part}in {pack.seconds:.1f} s: {speed}"


def _checked(pack: Pack) -> str:
    state = "whole" if not pack.damages else "damaged" if pack.folder.is_dir() else "missing"
    return f"{state}: {_described(pack)}"


def _described(pack: Pack) -> str:
    from fedrs_lightning.data.packs.folders import size

    return f"{pack.folder}: {pack.samples:,} samples, {size(pack.nbytes)}"
