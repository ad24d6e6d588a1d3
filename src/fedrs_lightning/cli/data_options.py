"""What the `fedrs data` commands share: a parser that names the nearest valid word."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from fedrs_lightning.errors import ConfigError

DATASETS = ("eurosat", "potsdam", "vaihingen", "loveda", "bigearthnet")


class DataParser(argparse.ArgumentParser):
    """Raises `ConfigError` with the nearest valid name instead of printing a usage block."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the process."""
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, and name the nearest option for an unknown one."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            name = unknown[0].split("=")[0]
            self.error(f"unknown {'option' if name.startswith('-') else 'argument'} '{name}'{hint(name, self.names())}")
        return arguments

    def names(self) -> list[str]:
        """All option names, such as `--config`."""
        return list(self._option_string_actions)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Type of an argument that is one of `names`."""

    def parse(value: str) -> str:
        if value not in names:
            raise argparse.ArgumentTypeError(f"'{value}' is not one of {', '.join(names)}{hint(value, list(names))}")
        return value

    return parse


def hint(name: str, valid: Sequence[str]) -> str:
    """The nearest valid word, as the end of a message."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
