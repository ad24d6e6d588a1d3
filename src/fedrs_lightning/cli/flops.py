"""`fedrs flops`: operations, parameters and bytes of an experiment, without its data."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fedrs_lightning.cli.config.command_line import build, configure
from fedrs_lightning.cli.options import Parser, above
from fedrs_lightning.cli.process import run_settings
from fedrs_lightning.errors import ConfigError

HELP = "operations, parameters and bytes of an experiment, without its data"
DEFAULT_SIDE = 64
FEW = 4


def parser() -> Parser:
    """Options of `fedrs flops`; everything else goes to the parser of `fedrs fit`."""
    options = Parser(
        prog="fedrs flops",
        usage="fedrs flops --config FILE [--side N] [--round N] [--images N] [--compare METHODS] [--json] [any option "
        "of fedrs fit]",
        description="Count the floating-point operations of a sample and of a local step, the parameters, and the "
        "bytes of a client "
        "and round.\nThe method's own step runs on a few random images; the data need not be there.",
        epilog="examples:\n  fedrs flops --config experiments/eurosat_small.yaml\n"
        "  fedrs flops --config experiments/eurosat_small.yaml --compare FedAvg,FedBN,FedMAD,FedProto --json\n"
        "  fedrs flops --config experiments/feddap/compound.yaml --compare FedAvg,experiments/feddap/fedseg.yaml "
        "--side 256",
    )
    options.add_argument(
        "--side",
        type=above(1),
        metavar="N",
        help="side of the images in pixels; without it that of the data set's image_size or crop_size, or of its "
        "stored images, "
        f"else {DEFAULT_SIDE}",
    )
    options.add_argument(
        "--round",
        type=above(1),
        default=2,
        metavar="N",
        help="round that is counted: in the first many methods do less (default 2)",
    )
    options.add_argument(
        "--compare",
        metavar="METHODS",
        help="methods, separated by commas: names, which take their defaults, or configuration files that are laid "
        "over the experiment",
    )
    options.add_argument(
        "--images",
        type=above(2),
        default=FEW,
        metavar="N",
        help="images in the batch that is counted; figures of a step are scaled from it to schedule.batch_size "
        f"(default {FEW})",
    )
    options.add_argument("--json", action="store_true", help="print full numbers as JSON instead of a table")
    return options


def main(argv: Sequence[str]) -> int:
    """Print the figures; returns 0."""
    options, rest = parser().parse_known_args(list(argv))
    names = options.compare.split(",") if options.compare else [None]
    configure(rest)  # a mistake is found before torch is loaded
    with run_settings():
        rows = [_row(rest, name, options) for name in names]
        if options.json:
            print(json.dumps(rows, indent=2))
        else:
            _print(rows)
    return 0


def _row(arguments: list[str], name: str | None, options: Namespace) -> dict[str, Any]:
    """Figures of the experiment with the named method, or with its own.

    Raises:
        ConfigError: the experiment cannot be built, or its images do not fit its network.
    """
    from lightning import Fabric

    from fedrs_lightning import methods
    from fedrs_lightning.engine.cost import measure, random_samples

    own = configure(arguments).method if name is not None else None
    if name is not None and name.endswith((".yaml", ".yml")):
        arguments = [*arguments, "--config", name]
    elif name is not None and name != own:
        arguments = [*arguments, "--method", name]
    try:
        run = configure(arguments)
        built = build(run)
    except ConfigError as error:
        if name not in methods.__all__ or name == own:
            raise
        raise ConfigError(
            f"--compare {name}: {error}; a name alone takes defaults, so where there is none or it does not suit, "
            "write the values "
            "under method: in a file and give the file instead of the name, such as experiments/feddap/compound.yaml "
            "for FedDAP"
        ) from None
    side, source = _side(built.data, options.side)
    accelerator, _, _ = built.fabric.resolve(1)
    fabric = Fabric(accelerator=accelerator, devices=1, precision=built.fabric.precision)
    fabric.launch()
    data = built.data
    batch_size = built.schedule.batch_size
    samples = random_samples(built.task, min(batch_size, options.images), data.num_classes, data.in_channels, side)
    cost = measure(built.task, built.method, fabric, samples, batch_size, options.round)
    label = run.label if name is None or name.endswith((".yaml", ".yml")) else None
    image = {"channels": data.in_channels, "side": side, "side_from": source}
    return {
        "method": label or run.method,
        "task": type(built.task).__name__,
        "image": image,
        **cost.as_dict(),
    }


def _side(data: Any, given: int | None) -> tuple[int, str]:
    """Side of the images, and where it is from."""
    if given is not None:
        return given, "--side"
    for name in ("image_size", "crop_size"):
        value = getattr(data, name, None)
        if value is not None:
            return int(value), f"data.{name}"
    if data.stored_side is not None:
        return data.stored_side, "as stored"
    return DEFAULT_SIDE, "default, set --side for another"


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = rows[0]
    image = first["image"]
    reference = next((row for row in rows if row["method"] == "FedAvg"), None)
    counted = f" (counted on {first['counted_on']} images)" if first["counted_on"] < first["batch_size"] else ""
    table = Table(
        title=f"{first['task']}, {image['channels']} x {image['side']} x {image['side']} ({image['side_from']}), "
        f"batches of {first['batch_size']}{counted}, round {first['round']}",
        title_justify="left",
    )
    headings = [
        "method",
        "forward\n/ sample",
        "+ backward\n/ sample",
        "local step\n/ batch",
        "passes outside\n/ sample",
    ]
    headings += ["parameters", "shared", "private", "down\n/ round", "up\n/ round"]
    headings += ["step\n/ FedAvg"] if reference else []
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        cells = [row["method"]]
        cells += [_short(row[key], "FLOP") for key in ("forward", "forward_backward", "local_step", "outside_steps")]
        cells += [_short(row[key], "") for key in ("parameters", "shared", "private")]
        cells += [_short(row[key], "B") for key in ("bytes_down", "bytes_up")]
        cells += [f"{row['local_step'] / reference['local_step']:.3f}"] if reference else []
        table.add_row(*cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(table)
    print(
        "A multiplication and an addition are two operations; convolutions and products of matrices count, modulation "
        "by its formula,\n"
        "nothing else that works entry by entry. One client with one batch; passes outside: before and after the "
        "steps of local training."
    )


def _short(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000 or prefix == "T":
            number = f"{value:.4g}" if prefix else f"{value:d}"
            return f"{number} {prefix}{unit}".strip()
        value /= 1000
    raise AssertionError
