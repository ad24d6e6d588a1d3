"""`fedrs data inspect`: what every client of a federation holds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrs_lightning.cli.options import above, writing

if TYPE_CHECKING:
    from fedrs_lightning.data import FederatedDataset, Federation
    from fedrs_lightning.data.clients.inspection import Inspection

DESCRIPTION = """Show what every client of a federation holds: samples, classes, label sets, bands, days. The data are
packed first, as fedrs fit does."""


def main(argv: Sequence[str]) -> int:
    """Look at the data of a config, show and write what was found; returns the exit code."""
    from fedrs_lightning.cli.data.config import config_parser, dataset_of, parsed

    parser = config_parser("fedrs data inspect", DESCRIPTION)
    whose = "of the federation and of the random parts (default: that of the config, or 0)"
    parser.add_argument("--seed", type=int, metavar="N", help=whose)
    parser.add_argument("--out", type=Path, metavar="DIR", help="also draw pictures into this folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")
    some = "extremes and histograms are of N random samples of each client and split (default 256), or of all"
    parser.add_argument("--sample", type=_sample, default=256, metavar="N", help=some)
    sheet = "samples on each client's contact sheet (default 6)"
    parser.add_argument("--examples", type=above(1), default=6, metavar="N", help=sheet)
    options, overrides = parsed(parser, argv)
    dataset, seed = dataset_of(options.config, overrides, options.seed)
    return _inspect(dataset, seed, options)


def _inspect(dataset: FederatedDataset, seed: int, options: argparse.Namespace) -> int:
    from fedrs_lightning.cli.data.inspect_tables import show
    from fedrs_lightning.data.clients.inspection import inspect_data
    from fedrs_lightning.files import write_json

    if dataset.give_to_one_client():
        print("no partition is given, so all training samples are those of one client; see --data.partition\n")
    dataset.prepare()
    federation = dataset.federation(seed)
    found = inspect_data(dataset, federation, seed, options.sample, options.examples)
    show(found.facts)
    drawn: list[Path] = []
    if options.out:
        with writing(options.out, "--out"):
            drawn = _draw(found, dataset, federation, options.out)
    if options.json:
        with writing(options.json, "--json"):
            write_json(options.json, found.facts)
    if drawn:
        print(f"{len(drawn)} pictures: {drawn[0]}, bands.png, and samples-*.png of each client")
    if options.json:
        print(f"everything: {options.json}")
    return 0


def _draw(found: Inspection, dataset: FederatedDataset, federation: Federation, folder: Path) -> list[Path]:
    import re

    import numpy as np

    from fedrs_lightning.cli.data.inspect_tables import named
    from fedrs_lightning.cli.pictures import palette
    from fedrs_lightning.data.clients.inspection import examples_of
    from fedrs_lightning.results.data_pictures import Sheet, plot_band_histograms, plot_class_heat_map, plot_samples

    facts, classes = found.facts, list(dataset.class_names)
    synthetic = " (synthetic data)" if facts["synthetic"] else ""
    names = [named(client) for client in facts["clients"]]
    counts = np.array([client["train"]["class_counts"] for client in facts["clients"]])
    sizes = np.array([client["train"]["num_samples"] for client in facts["clients"]])
    whole = sizes if facts["kind"] == "multi-label" else counts.sum(axis=1)
    title = f"{facts['dataset']}{synthetic}: training {facts['counted']} by client and class"
    shares = counts / np.maximum(whole, 1)[:, None]
    drawn = [plot_class_heat_map(shares, counts, names, classes, folder / "classes.png", title)]
    histograms: dict[str, list[np.ndarray | None]] = {}
    widths: dict[str, int] = {}
    for place, client in enumerate(facts["clients"]):
        rows = [row for field in found.histograms[client["id"]].values() for row in field]
        for band, row in zip(client["train"]["bands"], rows, strict=True):
            histograms.setdefault(band["band"], [None] * len(names))[place] = row
            widths[band["band"]] = found.bin_width[band["field"]]
    title = f"{facts['dataset']}{synthetic}: training pixels by value (height: square root), of {facts['pixels_of']}"
    drawn.append(plot_band_histograms(histograms, widths, names, folder / "bands.png", title))
    segmentation = facts["kind"] == "segmentation"
    named_classes, colours = (classes, palette(classes)) if segmentation else ((), None)
    for client, name in zip(federation.clients, names, strict=True):
        shown = found.examples[client.id]
        if not len(shown):
            continue
        samples = examples_of(federation, shown, client, dataset)
        ids = [federation.sample_ids[index] for index in shown]
        texts = [_text(name, samples.label, place, classes) for place, name in enumerate(ids)]
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", client.name).strip("-.") or "client"
        whose = name if name.startswith("client") else f"client {name}"
        title = f"{facts['dataset']}{synthetic}, {whose}: {len(shown)} of {len(client.train)} training samples"
        path = folder / f"samples-{client.id:0{len(str(federation.clients[-1].id))}d}-{slug}.png"
        drawn.append(plot_samples(Sheet(samples.bands, texts, samples.mask, named_classes, colours), path, title))
    return drawn


def _text(sample_id: str, label: Any, place: int, classes: Sequence[str]) -> str:
    """What stands below a sample: its classes, or the end of its id where it has a mask."""
    from fedrs_lightning.results.short_text import short_name

    if label is None:
        return "\n".join(short_name(part, 22) for part in sample_id.rsplit("/", 2)[-2:])
    if label.ndim == 1:
        return short_name(classes[int(label[place])], 24)
    names = [short_name(name, 26) for name, value in zip(classes, label[place], strict=True) if value > 0.5]
    return "\n".join(names if len(names) <= 5 else [*names[:4], f"and {len(names) - 4} more"]) or "no class"


def _sample(text: str) -> int | None:
    return None if text == "all" else int(above(1)(text))
