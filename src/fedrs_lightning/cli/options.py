"""An argument parser whose mistakes are one line with the nearest valid name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fedrs_lightning.cli.config.nearest_names import nearest
from fedrs_lightning.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """`argparse` without abbreviations; a mistake raises `ConfigError`, which the command prints with exit code 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse everything; an unknown option names the nearest known one."""
        found, rest = self.parse_known_args(argv)
        if rest:
            name = rest[0].partition("=")[0]
            what = "option" if name.startswith("-") else "argument"
            self.error(f"unknown {what} '{name}'{nearest(name, self.names())}")
        return found

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise ConfigError(f"{message} ({self.prog} --help lists the options)")

    def names(self) -> list[str]:
        """All option names, such as `--format`."""
        return list(self._option_string_actions)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Type of an argument that is one of `names`; a wrong one names the nearest."""

    def convert(text: str) -> str:
        if text not in names:
            known = ", ".join(names)
            raise argparse.ArgumentTypeError(f"'{text}' is not one of {known}{nearest(text, names, '')}")
        return text

    return convert


def above(minimum: int) -> Any:
    """Type of an argument: a whole number of at least `minimum`."""

    def convert(text: str) -> int:
        if not text.removeprefix("-").isdecimal():
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number")
        if int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text} is below {minimum}")
        return int(text)

    return convert


@contextmanager
def writing(path: Path | None, option: str) -> Iterator[None]:
    """Say in one line that a file which the user named cannot be written.

    Args:
        path: as the user gave it; None passes everything through.
        option: that names another place, such as `--out`.

    Raises:
        ConfigError: the body could not write; names `path`, not the temporary file beside it.
    """
    try:
        yield
    except OSError as error:
        if path is None or error.strerror is None:
            raise
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); name another place with {option}") from None
