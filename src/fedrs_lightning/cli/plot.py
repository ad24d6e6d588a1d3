"""`fedrs plot`: learning curves of one or more runs, their clients, and weights over rounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedrs_lightning.cli.options import Parser, writing
from fedrs_lightning.cli.table import parser_of_runs, runs_below

_DESCRIPTION = """Draw learning curves (mean and one deviation over seeds), every client in the last round, and, for
runs that log aggregation scores, weights and scores of one run a label.
Runs that are not complete are drawn where a label has no other."""
_EPILOG = """examples:
  fedrs plot runs/eurosat_small
  fedrs plot runs/eurosat_small --metric train/loss --out loss.png"""


def parser() -> Parser:
    """Options of `fedrs plot`."""
    options = parser_of_runs("fedrs plot", _DESCRIPTION, _EPILOG)
    which = "overall_accuracy (headline protocol) or, in full, personal_own/overall_accuracy"
    options.add_argument("--metric", metavar="NAME", help=which)
    curves = "picture of the curves, png, pdf or svg (default: curves.png in the folder of all runs)"
    options.add_argument("--out", type=Path, metavar="FILE", help=f"{curves}; the others lie beside it")
    return options


def main(argv: Sequence[str]) -> int:
    """Draw and name the pictures; returns 0."""
    options = parser().parse(argv)
    stores = runs_below(options.runs)

    from fedrs_lightning.results.plots import plot_clients, plot_curves, plot_weights, weighted_runs

    out = options.out or Path(os.path.commonpath([store.path for store in stores])) / "curves.png"
    pictures: list[tuple[str, Path | None]] = []
    with writing(out, "--out"):
        pictures.append(("curves", plot_curves(stores, out, options.metric)))
        clients = out.with_name(f"{out.stem}-clients{out.suffix}")
        pictures.append(("clients", plot_clients(stores, clients, options.metric)))
        for name, store in weighted_runs(stores):
            pictures.append(("weights", plot_weights(store, out.with_name(f"{out.stem}-weights-{name}{out.suffix}"))))
    for kind, path in pictures:
        if path is not None:
            print(f"{kind}: {path}")
    return 0
