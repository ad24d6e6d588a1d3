"""Known faults of Potsdam, Vaihingen and LoveDA folders, injected one by one, to try checks and error messages on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedrs_lightning.data.synth import defects
from fedrs_lightning.errors import ConfigError

DEFECTS: dict[str, dict[str, Callable[[Path], None]]] = {"potsdam": {}, "vaihingen": {}, "loveda": {}}


def check(dataset: str, layout: str, names: Sequence[str]) -> None:
    """Refuse unknown names.

    Raises:
        ConfigError: with the nearest valid name.
    """
    for name in names:
        if name not in DEFECTS[dataset]:
            raise ConfigError(f"unknown defect '{name}' of {dataset}; {defects.nearest(name, DEFECTS[dataset])}")
        if layout != "official":
            raise ConfigError(f"defect '{name}' needs the official layout")


def inject(root: Path, dataset: str, names: Sequence[str]) -> None:
    """Apply the named defects to a finished sample in the official layout."""
    for name in names:
        DEFECTS[dataset][name](root)
