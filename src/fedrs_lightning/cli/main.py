"""The `fedrs` command: finds the subcommand and loads only what it needs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from fedrs_lightning import __version__
from fedrs_lightning.errors import FedrsError

_DATA = "check a data folder, pack it, see what clients hold"
COMMANDS = {
    "fit": ("fedrs_lightning.cli.fit", "run one federated experiment, or continue it"),
    "sweep": ("fedrs_lightning.cli.sweep", "run an experiment over methods, settings and seeds"),
    "table": ("fedrs_lightning.cli.table", "mean and deviation over seeds of finished runs"),
    "plot": ("fedrs_lightning.cli.plot", "learning curves of one or more runs"),
    "flops": ("fedrs_lightning.cli.flops", "operations, parameters and bytes of an experiment, without its data"),
    "data": ("fedrs_lightning.cli.data", f"{_DATA}, or make a synthetic sample"),
}


def usage() -> str:
    """Text of `fedrs --help`."""
    rows = "\n".join(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: fedrs COMMAND [options]\n\n"
        "Federated learning on Earth-observation imagery.\n\n"
        f"commands:\n{rows}\n\n"
        "fedrs COMMAND --help lists a command's options; fedrs --version prints the version.\n"
        "Start here: fedrs fit --config experiments/quickstart.yaml"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns its exit code (2 for a mistake the user can repair)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name in ("-V", "--version"):
        print(f"fedrs {__version__}")
        return 0
    if name not in COMMANDS:
        from fedrs_lightning.cli.config.nearest_names import nearest

        print(f"fedrs: unknown command '{name}'{nearest(name, COMMANDS, 'choose from')}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(COMMANDS[name][0]).main(rest))
    except FedrsError as error:
        print(f"fedrs {name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"fedrs {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away: not an error of ours. Python would complain again when it flushes.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return 141 if name == "fit" else 0  # a run that stopped in the middle has not succeeded


if __name__ == "__main__":
    sys.exit(main())
