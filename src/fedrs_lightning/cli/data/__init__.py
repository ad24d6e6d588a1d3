"""`fedrs data`: everything about data sets before they are trained on."""

from __future__ import annotations

from importlib import import_module

from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.errors import ConfigError

COMMANDS = {
    "synth": "write a synthetic sample in the official layout of a data set",
    "check": "find the faults of data folders, each with its file and remedy; exit code 2 when there are errors",
    "pack": "decode a data set once into the cache, or check what is there; an interrupted one goes on",
    "inspect": "show what every client holds: samples, classes, bands, days; as tables, JSON and pictures",
}
"""Command to what it does; each is a module of this package."""


def main(argv: list[str]) -> int:
    """Run `fedrs data ...`; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = [f"  {name:<9}{text}" for name, text in COMMANDS.items()]
        print(f"usage: fedrs data {{{','.join(COMMANDS)}}} ...\n", *lines, sep="\n")
        print("\nfedrs data <command> --help lists the options of a command, and the data sets that it knows.")
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        raise ConfigError(f"unknown command '{argv[0]}'{nearest(argv[0], COMMANDS)}")
    return int(import_module(f"fedrs_lightning.cli.data.{argv[0]}").main(argv[1:]))
