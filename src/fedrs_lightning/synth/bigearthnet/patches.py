"""Countries, products and patch names of the synthetic BigEarthNet archive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrs_lightning.data.archives.bigearthnet.files import COUNTRIES

CLIENTS = COUNTRIES[:8]
SPLIT = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2
"""Split of patch n of a country is `SPLIT[n % 10]`."""

_COLUMNS = {"train": (0, 54), "validation": (54, 73), "test": (73, 91)}
"""Of a tile, which has 91 rows: the official split is by blocks too."""

_ROWS = 91


@dataclass(frozen=True)
class Product:
    """One acquisition of one tile.

    The tile's MGRS name is without the T; its upper left corner is easting and northing, metres in its UTM zone.
    """

    sensor: str
    day: str
    time: str
    orbit: str
    tile: str
    corner: tuple[int, int]

    @property
    def name(self) -> str:
        """Of the product folder."""
        return f"{self.sensor}_MSIL2A_{self.day}T{self.time}_N9999_{self.orbit}_T{self.tile}"

    @property
    def epsg(self) -> int:
        """Code of the tile's coordinate reference system, WGS 84 / UTM north."""
        return 32600 + int(self.tile[:2])


# Country, kind of its patches, and what `Product` lists. The real archive ends in May 2018. All these days are
# later, so no id here is that of a real patch.
_TABLE = """
Finland     summer   S2B 20180704 094029 R036 35VNL 499980 7100040
Finland     summer   S2A 20180608 101021 R022 34VER 499980 7100040
Ireland     summer   S2A 20180612 113321 R080 29UPU 600000 5900040
Ireland     summer   S2A 20180722 113321 R080 29UPV 600000 6000000
Serbia      summer   S2B 20180820 093029 R136 34TEQ 499980 5000040
Serbia      summer   S2A 20180808 094031 R036 34TCR 300000 5100000
Austria     summer   S2A 20180618 101031 R022 33UUP 300000 5400000
Austria     summer   S2B 20180826 095029 R079 33UXP 600000 5400000
Belgium     summer   S2B 20180824 105019 R051 31UER 499980 5600040
Lithuania   summer   S2B 20180803 094029 R036 35ULA 300000 6100020
Lithuania   summer   S2A 20180725 100031 R122 34UDG 399960 6200040
Portugal    summer   S2A 20180818 112121 R037 29SNC 499980 4300020
Portugal    summer   S2A 20180709 112111 R037 29SND 499980 4400040
Switzerland summer   S2A 20180813 103021 R108 32TMT 399960 5300040
Kosovo      outside  S2A 20181203 093351 R136 34TEN 499980 4800000
Luxembourg  outside  S2A 20180915 104031 R008 31UGR 699960 5600040
Austria     winter   S2B 20181219 101029 R022 33UUP 300000 5400000
Ireland     cloud    S2B 20180713 115359 R023 29UPB 600000 6200040
Finland     snow     S2A 20181106 094131 R036 35VNJ 499980 6900000
"""
_PRODUCTS: dict[tuple[str, str], list[Product]] = {}
for _row in _TABLE.strip().splitlines():
    _country, _kind, *_name, _east, _north = _row.split()
    _PRODUCTS.setdefault((_country, _kind), []).append(Product(*_name, (int(_east), int(_north))))  # type: ignore[call-arg, arg-type]

# Of each country: patches of a thousand in which a class occurs, by class in canonical order; rounded from the summer
# rows of the official table. 0: the class does not occur in the country.
_FREQUENCIES = """
Finland      37  10 217   0   2   0 203   0  73 656 632   0   3 344   1  81   3 196 251
Ireland      92  19 355   0 707  61 109   0  51 142  73  14  57  91   4 103   2  19 245
Serbia      152  28 556  20 111 306 350   0 517  32  57 122   1 346   0  26   0  80   0
Austria     396  43 721 131 280 277 337   0 362 205 284  22   5  31   0  31   0  83   0
Belgium     719  91 709   0 614 659 280   0 526  53 126   0  36  32   0   9   0  36   0
Lithuania   145  36 426   5 340 507 384   0 219 440 476   8   6 295  10  35   0 130 163
Portugal     99  31 452 282 159 234 157 420 420 118 207  16  58 418   7   1  11  61  65
Switzerland 504 101 653  20 267 267  91   0 198 357 655  59  16  65   0  14   0 120   0
"""
_FREQUENCY = np.asarray([row.split()[1:] for row in _FREQUENCIES.strip().splitlines()], dtype=np.float64).T
_LIKE = {"Kosovo": "Serbia", "Luxembourg": "Belgium"}


@dataclass(frozen=True)
class Patch:
    """One patch of the archive.

    Its kind is `summer` for the patches of the eight clients; `outside`, `winter`, `cloud` and `snow` stand for what a
    filter leaves out. Numbers are from 0, inside country and kind.
    """

    country: str
    kind: str
    number: int

    @property
    def domain(self) -> int:
        """Number of the domain: one each country."""
        return COUNTRIES.index(self.country)

    @property
    def split(self) -> str:
        """Name of the split."""
        return SPLIT[self.number % len(SPLIT)]

    @property
    def product(self) -> Product:
        """The acquisition it is cut from; the patches of a country take turns."""
        products = _PRODUCTS[self.country, self.kind]
        return products[self.number // len(SPLIT) % len(products)]

    @property
    def place(self) -> tuple[int, int]:
        """Column and row inside the tile; each split fills columns of its own, from the north."""
        turn, inside = divmod(self.number, len(SPLIT))
        turn //= len(_PRODUCTS[self.country, self.kind])
        position = turn * SPLIT.count(self.split) + inside - SPLIT.index(self.split)
        left, right = _COLUMNS[self.split]
        row, column = divmod(position, right - left)
        return left + column, row

    @property
    def id(self) -> str:
        """As in the official archive: 50 characters."""
        column, row = self.place
        return f"{self.product.name}_{column:02d}_{row:02d}"

    @property
    def corner(self) -> tuple[int, int]:
        """Easting and northing of the patch's upper left corner, metres."""
        column, row = self.place
        return self.product.corner[0] + 1200 * column, self.product.corner[1] - 1200 * row

    @property
    def s1_name(self) -> str:
        """Of a radar patch of the same place."""
        column, row = self.place
        return f"S1A_IW_GRDH_1SDV_{self.product.day}T050000_{self.product.tile}_{column}_{row}"

    @property
    def s2v1_name(self) -> str:
        """As the first release would have named it: nothing padded."""
        column, row = self.place
        product = self.product
        return f"{product.sensor}_MSIL2A_{product.day}T{int(product.time)}_{column}_{row}"


def largest() -> int:
    """Most patches that every country has room for."""
    fewest = min(map(len, _PRODUCTS.values()))
    rooms = [(right - left) * _ROWS // SPLIT.count(name) for name, (left, right) in _COLUMNS.items()]
    return fewest * min(rooms) * len(SPLIT)


def patches(per_country: int) -> list[Patch]:
    """All patches of an archive: those of the eight clients, and one each that a season or a flag leaves out."""
    found = [Patch(country, "summer", number) for country in CLIENTS for number in range(per_country)]
    return found + [Patch(country, kind, 0) for country, kind in _PRODUCTS if kind != "summer"]


def class_weights(country: str, strength: float) -> np.ndarray:
    """Relative weight of each class in a country's patches, float64 [19].

    Classes that the country does not have stay away. The weights of the others move with `strength`, T in [0, 1], from
    the mean of all countries to the country's own; they are square roots, so that rare classes occur in small samples.
    """
    own = _FREQUENCY[:, CLIENTS.index(_LIKE.get(country, country))]
    common = np.asarray([row[row > 0].mean() for row in _FREQUENCY])
    weights = np.where(own > 0, np.sqrt(common) ** (1 - strength) * np.sqrt(np.maximum(own, 1)) ** strength, 0.0)
    return weights / weights.sum()
