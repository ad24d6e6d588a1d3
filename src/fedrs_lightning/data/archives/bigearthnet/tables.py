"""The metadata tables of BigEarthNet v2.0, read a column at a time: half a million rows take less than a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrs_lightning.data.archives.bigearthnet import faults
from fedrs_lightning.data.archives.bigearthnet.files import CLASSES, COUNTRIES, PATCH, SPLITS, SUMMER, Layout
from fedrs_lightning.data.archives.folders import no_permission
from fedrs_lightning.errors import ConfigError, DataError

COLUMNS = ("patch_id", "labels", "split", "country", "contains_seasonal_snow", "contains_cloud_or_shadow")

Season = str | Sequence[int]


@dataclass(frozen=True)
class Rows:
    """Rows of the tables, one array a column.

    Attributes:
        patch_ids: str objects [N].
        labels: multi-hot, bool [N, 19], classes as in `CLASSES`.
        split: position in `SPLITS`, int8 [N].
        country: position in `COUNTRIES`, int8 [N].
        day: of acquisition as the number YYYYMMDD, from the patch id, int32 [N].
        flagged: seasonal snow, cloud or shadow, bool [N].
        faults: what is wrong with the tables, a line each; rows with a fault are not among the arrays.
    """

    patch_ids: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    country: np.ndarray
    day: np.ndarray
    flagged: np.ndarray
    faults: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.patch_ids)

    @property
    def month(self) -> np.ndarray:
        """Month of acquisition, 1 to 12, int32 [N]."""
        return self.day // 100 % 100

    def take(self, chosen: np.ndarray) -> Rows:
        """The chosen rows, by mask or by positions."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _ARRAYS})


_ARRAYS = tuple(each.name for each in fields(Rows) if each.name != "faults")


class CountryRow(NamedTuple):
    """One line of the table of countries: patches by split, and days of acquisition."""

    country: str
    train: int
    validation: int
    test: int
    days: int


def read_tables(layout: Layout, flagged: bool) -> Rows:
    """Rows of the main table, and of the table of flagged patches where asked for, sorted by patch id.

    Args:
        layout: where the tables lie.
        flagged: also take patches with snow, cloud or shadow.

    Raises:
        DataError: a table is missing or unreadable. What is wrong inside is in `faults`.
    """
    if not layout.metadata.is_file():
        remedy = "put metadata.parquet from the BigEarthNet v2.0 archive there, or set metadata to where it lies"
        raise DataError(f"{layout.metadata}: no such table; {remedy}")
    rows = read_table(layout.metadata)
    if flagged:
        if not layout.flagged.is_file():
            raise DataError(faults.no_flagged_table(layout.flagged))
        second = read_table(layout.flagged)
        joined = {name: np.concatenate([getattr(rows, name), getattr(second, name)]) for name in _ARRAYS}
        rows = Rows(**joined, faults=rows.faults + second.faults)
    else:
        rows = rows.take(~rows.flagged)
    rows = rows.take(np.argsort(rows.patch_ids.astype(bytes), kind="stable"))
    again = np.flatnonzero(rows.patch_ids[1:] == rows.patch_ids[:-1]) + 1
    if len(again):
        single = rows.take(np.setdiff1d(np.arange(len(rows)), again))
        rows = replace(single, faults=(*rows.faults, *_repeated(layout.metadata, rows, again)))
    return rows


def _repeated(path: Path, rows: Rows, again: np.ndarray) -> list[str]:
    """What is wrong with rows whose patch id is that of the row before."""
    texts = []

    def add(found: np.ndarray, what: str) -> None:
        patch = f"{path}: patch {rows.patch_ids[found[0]]}{faults.more(len(found) - 1)}"
        texts.append(f"{patch} {what}; {faults.REPLACE}")

    for values, names in ((rows.split, SPLITS), (rows.country, COUNTRIES)):
        moved = again[values[again] != values[again - 1]]
        if len(moved):
            first, second = (names[int(values[row])] for row in (moved[0] - 1, moved[0]))
            add(moved, f"is in {first} and in {second}; a patch may be in one split and one country only")
        again = again[values[again] == values[again - 1]]
    if len(again):
        add(again, "has two rows; a patch may be in one table only, and once")
    return texts


def read_table(path: Path) -> Rows:
    """Rows of one table, in its order.

    Raises:
        DataError: pyarrow is not installed, or the file is no table with the columns of v2.0. What is wrong with single
            rows is in `faults`.
    """
    try:
        import pyarrow as pa
        from pyarrow import compute, parquet
    except ImportError:
        needs = "reading metadata.parquet needs the package pyarrow, which is not installed"
        raise DataError(f"{needs}; run: pip install pyarrow") from None
    try:
        present = parquet.read_schema(path).names
        lacking = [name for name in COLUMNS if name not in present]
        if lacking:
            columns = (", ".join(present[:9]) + (", ..." if len(present) > 9 else "")) or "none"
            there = f"has no column {', '.join(lacking)} (columns: {columns})"
            raise DataError(f"{path}: {there}; use the table of BigEarthNet v2.0")
        table = parquet.read_table(path, columns=list(COLUMNS))
        ids, split, country = (_array(table, name, pa.string()) for name in ("patch_id", "split", "country"))
        labels = _array(table, "labels", pa.list_(pa.string()))
        snow, cloud = (_numbers(_array(table, name, pa.bool_()).fill_null(False)) for name in COLUMNS[4:])
    except PermissionError:
        raise DataError(no_permission(path)) from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: cannot be read as a Parquet table ({reason}); {faults.REPLACE}") from None
    names = _numbers(ids.fill_null(""))
    found = _Faults(path, names)
    valid = _numbers(compute.match_substring_regex(ids, f"^{PATCH}$").fill_null(False))
    example = "S2A_MSIL2A_20170613T101031_N9999_R022_T33UUP_26_57"
    found.add(~valid, "'{patch}'{more} is no patch id of v2.0, such as {example}; {replace}", example=example)
    day = np.zeros(len(names), np.int32)
    day[valid] = _days(names[valid])
    splits = _codes(split, SPLITS, found, "split")
    countries = _codes(country, COUNTRIES, found, "country")
    rows = Rows(names, _multi_hot(labels, found), splits, countries, day, snow | cloud, tuple(found.texts))
    return rows.take(~found.rows) if found.rows.any() else rows


def months_of(season: Season) -> tuple[int, ...]:
    """Months of a season: `summer` (June, July, August), `all`, or a list of months 1 to 12.

    Raises:
        ConfigError: anything else.
    """
    if season == "summer":
        return SUMMER
    if season == "all":
        return tuple(range(1, 13))
    months = () if isinstance(season, str) else tuple(season)
    if not months or not all(isinstance(month, int) and 1 <= month <= 12 for month in months):
        raise ConfigError(f"season must be summer, all, or a list of months from 1 to 12, got {season!r}")
    return tuple(sorted(set(months)))


def in_season(rows: Rows, season: Season) -> np.ndarray:
    """Rows acquired in a season, bool [N]."""
    return np.isin(rows.month, months_of(season))


def choose(rows: Rows, season: Season, countries: Sequence[str] | None, table: Path, rule: str) -> Rows:
    """The rows of a season and of some countries, with a fault where a choice leaves nothing.

    Args:
        rows: of `read_tables`.
        season: see `months_of`.
        countries: None takes all.
        table: where the rows are from, for a fault.
        rule: names the season in a fault.
    """
    chosen = rows.take(in_season(rows, season))
    there, texts = present_countries(chosen), []
    text = f"countries with patches: {', '.join(there)}" if there else "no country has any"
    for name in countries or ():
        if name not in there:
            remedy = f"take it out of countries or change season ({text})"
            texts.append(f"country {name} has no patches left ({rule}); {remedy}")
    if countries:
        chosen = chosen.take(np.isin(chosen.country, [COUNTRIES.index(name) for name in countries]))
    elif not len(chosen):
        texts.append(f"{table}: no patches left ({rule}); set season: all, or check the table")
    return replace(chosen, faults=(*rows.faults, *texts))


def present_countries(rows: Rows) -> list[str]:
    """Countries that have rows, in the order of `COUNTRIES`."""
    return [COUNTRIES[number] for number in np.unique(rows.country).tolist()]


def country_table(rows: Rows, season: Season = "summer") -> list[CountryRow]:
    """Patches by country and split, and days of acquisition, for the countries that have patches in the season.

    For the official main table and summer this is the table of the eight clients of FedMAD.

    Args:
        rows: of `read_table` or `read_tables`.
        season: see `months_of`.
    """
    chosen, lines = rows.take(in_season(rows, season) & ~rows.flagged), []
    for name in present_countries(chosen):
        own = chosen.country == COUNTRIES.index(name)
        counts = np.bincount(chosen.split[own], minlength=len(SPLITS)).tolist()
        lines.append(CountryRow(name, counts[0], counts[1], counts[2], len(np.unique(chosen.day[own]))))
    return lines


class _Faults:
    """Collects one line for each kind of fault, naming the first row."""

    def __init__(self, path: Path, names: np.ndarray) -> None:
        self.path, self.names, self.texts = path, names, list[str]()
        self.rows = np.zeros(len(names), bool)

    def add(self, bad: np.ndarray, text: str, **values: str) -> None:
        """Text with `{patch}` for the first bad row, `{more}` for the number of others, `{replace}` for the remedy."""
        if bad.any():
            self.rows |= bad
            patch, more = str(self.names[bad.argmax()]), faults.more(int(bad.sum()) - 1)
            self.texts.append(f"{self.path}: " + text.format(patch=patch, more=more, replace=faults.REPLACE, **values))


def _array(table: Any, name: str, kind: Any) -> Any:
    """A column as one Arrow array of the given type."""
    return table[name].cast(kind).combine_chunks()


def _numbers(column: Any) -> np.ndarray:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _days(names: np.ndarray) -> np.ndarray:
    """Field three of the patch ids, as numbers."""
    letters = names.astype("S19").view(np.uint8).reshape(len(names), 19)[:, 11:]
    return ((letters - ord("0")).astype(np.int64) @ 10 ** np.arange(7, -1, -1)).astype(np.int32)


def _codes(column: Any, known: Sequence[str], found: _Faults, name: str) -> np.ndarray:
    """Position of each value in `known`, -1 for another one."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    raw = _numbers(encoded.indices.fill_null(len(values)))
    found.add(raw == len(values), "{name} of patch {patch}{more} is empty; {replace}", name=name)
    for number, value in enumerate(values):
        if value not in known:
            text = "{name} '{value}' of patch {patch}{more} is not one of {known}"
            if name == "split":
                text = "split of patch {patch}{more} is '{value}', but must be train, validation or test"
            if value.lower() in ("val", "valid", "dev"):
                text += "; it is called 'validation'"
            found.add(raw == number, text, name=name, value=value, known=", ".join(known))
    positions = [known.index(value) if value in known else -1 for value in values]
    return np.asarray([*positions, -1], np.int8)[raw]


def _multi_hot(labels: Any, found: _Faults) -> np.ndarray:
    """bool [N, 19] from a list column."""
    from pyarrow import compute

    hot = np.zeros((len(labels), len(CLASSES)), bool)
    encoded = compute.list_flatten(labels).dictionary_encode()
    rows = _numbers(compute.list_parent_indices(labels))
    values = encoded.dictionary.to_pylist()
    codes = _numbers(encoded.indices.fill_null(len(values)))
    for number, value in enumerate([*values, ""]):
        where = rows[codes == number]
        if value in CLASSES:
            hot[where, CLASSES.index(value)] = True
        elif len(where):
            bad = np.zeros(len(labels), bool)
            bad[where] = True
            text = "label '{value}' of patch {patch}{more} is not one of the 19 BigEarthNet classes"
            found.add(bad, text + "; use the table of v2.0", value=value)
    found.add(~hot.any(axis=1) & ~found.rows, "patch {patch}{more} has no label; {replace}")
    return hot
