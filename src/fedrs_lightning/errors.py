"""Errors that a person can act on.

The command line prints any `FedrsError` as one line and ends with exit code 2; everything else is a defect of this
software and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints


class FedrsError(Exception):
    """Something the user can repair: the message says what is wrong, where, and what to do."""


class ConfigError(FedrsError):
    """A key, type or value of the configuration."""


class LaunchError(ConfigError):
    """Ranks that do not fit the options: all of them find it, and rank 0 says it."""


class DataError(FedrsError):
    """A data folder, file, raster or label."""


class RunError(FedrsError):
    """A run directory, checkpoint or client memory."""


class LostContact(RunError):
    """Another rank is gone, and this one does not know why."""


class TrainingError(FedrsError):
    """Training went wrong on a named client and round, for example a loss that is not finite."""


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Check the choice of an option.

    Raises:
        ConfigError: the value is not allowed.
    """
    choices = list(allowed)
    if value not in choices:
        raise ConfigError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got '{value}'")


def check_choices(signature: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check, as `one_of` does, every argument in `given` (`locals()`) whose type in the signature is a `Literal`."""
    for name, hint in get_type_hints(signature).items():
        if get_origin(hint) is Literal:
            one_of(name, given[name], get_args(hint))
