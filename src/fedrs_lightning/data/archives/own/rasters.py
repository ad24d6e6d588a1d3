"""Your own image and label rasters as a segmentation data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fedrs_lightning.data.archives.archive import Split, TileArchive, TileListing
from fedrs_lightning.data.archives.folders import entries, existing_folder, numeric, synthetic_facts
from fedrs_lightning.data.rasters.class_tables import ClassTable, Palette, Values, class_table
from fedrs_lightning.data.rasters.declared import code_fault
from fedrs_lightning.data.rasters.faults import check_sizes
from fedrs_lightning.data.rasters.rows import GEOTIFF, PICTURE, Rows
from fedrs_lightning.data.rasters.tiles import Reading, Tile, by_position
from fedrs_lightning.errors import ConfigError, DataError, one_of

NUMBERS = ("uint8", "uint16", "int16", "uint32", "int32")  # types of a label that holds values


class OwnRasters(TileArchive):
    """Pairs of image and label rasters (GeoTIFF or PNG) in folders, with your class table.

    An image and its label have the same file name up to the endings. Georeference is not used, and nothing is
    resampled. Pixels that an image declares as no data (a value, a mask inside the file, an alpha channel that is not
    among the bands) are stored as 0, have no label and count in no statistics.

    Args:
        root: folder; the other folders are relative to it. Never written to.
        classes: class name to its colour `[red, green, blue]` or its value in the label rasters, in the order of class
            numbers.
        in_channels: bands of an image that are used.
        bands: which ones, from 1 as in GIS software; null takes the first `in_channels`.
        pixel_type: `uint8` or `uint16`.
        ignored: colours or values that mean "no label", as does what a label file declares as no data. Anything else
            that is not in `classes` is counted, and more than 1 % of a file is an error.
        images: folder of the training images.
        labels: folder of their labels.
        test_images: folder of the test images; null where `split` cuts tiles in two, or `test_tiles` names some.
        test_labels: folder of their labels.
        test_tiles: names (without endings) of training images that are the test set instead.
        image_ending: end of image names before the suffix, such as `_rgb`, that is not part of the tile's name.
        label_ending: the same for labels, such as `_label`.
        split: `official` is as the folders say; `by_position` takes the first three quarters of each training tile for
            training and the last quarter for testing.
    """

    published = None  # there are none for your data

    def __init__(
        self,
        root: str = ".",
        *,
        classes: dict[str, int | list[int]],
        in_channels: int,
        bands: list[int] | None = None,
        pixel_type: Literal["uint8", "uint16"] = "uint8",
        ignored: list[int | list[int]] | None = None,
        images: str = "train/images",
        labels: str = "train/labels",
        test_images: str | None = None,
        test_labels: str | None = None,
        test_tiles: list[str] | None = None,
        image_ending: str = "",
        label_ending: str = "",
        split: Split = "official",
    ) -> None:
        one_of("pixel_type", pixel_type, ("uint8", "uint16"))
        one_of("split", split, ("official", "by_position"))
        if in_channels < 1 or (bands is not None and (len(bands) != in_channels or min(bands) < 1)):
            raise ConfigError(f"bands must name in_channels={in_channels} bands, numbered from 1, got {bands}")
        if (test_images is None) != (test_labels is None):
            raise ConfigError("test_images and test_labels belong together; set both or neither")
        chosen = [test_images is not None, bool(test_tiles), split == "by_position"]
        if sum(chosen) != 1:
            raise ConfigError(
                "the test set must be exactly one of: test_images with test_labels, test_tiles, or split: by_position"
            )
        self.root, self.bands, self.dtype, self.split = root, bands, pixel_type, split
        self.images, self.labels, self.test_images, self.test_labels = images, labels, test_images, test_labels
        self.test_tiles, self.image_ending, self.label_ending = tuple(test_tiles or ()), image_ending, label_ending
        self._channels, self._table = in_channels, class_table(classes, ignored or [])

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of `classes`."""
        return self._table.names

    @property
    def band_names(self) -> tuple[str, ...]:
        """Numbers."""
        return tuple(f"band {number}" for number in self.bands or range(1, self._channels + 1))

    @property
    def ground(self) -> str:
        """The image folder."""
        return f"folder {(Path(self.root).expanduser() / self.images).resolve()}"

    def settings(self) -> dict[str, Any]:
        """See `Archive.settings`."""
        colours = self._table.colours if isinstance(self._table, Palette) else self._table.values
        return super().settings() | {
            "pixel_type": self.dtype,
            "classes": [[name, value] for name, value in zip(self._table.names, colours, strict=True)],
            "ignored": list(self._table.ignored),
            "split": self.split,
            "test_tiles": list(self.test_tiles),
        }

    def listing(self) -> TileListing:
        """See `TileArchive.listing`."""
        top = existing_folder(self.root, "data")
        train = self._tiles(top, self.images, self.labels)
        test: list[Tile] = []
        if self.test_images is not None and self.test_labels is not None:
            test = self._tiles(top, self.test_images, self.test_labels)
        elif self.test_tiles:
            absent = sorted(set(self.test_tiles) - {tile.id for tile in train})
            if absent:
                raise DataError(f"{top / self.images}: holds no image of test tile '{absent[0]}'; correct test_tiles")
            test = [tile for tile in train if tile.id in self.test_tiles]
            train = [tile for tile in train if tile.id not in self.test_tiles]
            if not train:
                raise DataError(f"{top / self.images}: test_tiles names every image; leave some for training")
        else:
            train, test = by_position(train)
        return TileListing(top, train, test, {"variant": "folder", "synthetic": synthetic_facts(top)})

    def _tiles(self, top: Path, images: str, labels: str) -> list[Tile]:
        found, known = self._named(top / images, self.image_ending), self._named(top / labels, self.label_ending)
        order = tuple(band - 1 for band in self.bands or range(1, self._channels + 1))
        reading = Reading(
            order, self._table, "complete classes and ignored, or replace the file", check=self._check_headers
        )
        names = sorted(found.keys() | known.keys(), key=lambda name: (numeric(name), name))
        for name in names:
            if name not in known:
                lacks = f"has no label {name}{self.label_ending} in {top / labels}"
                raise DataError(f"{found[name]}: {lacks}; add it, or move the image out of the folder")
            if name not in found:
                lacks = f"has no image {name}{self.image_ending} in {top / images}"
                raise DataError(f"{known[name]}: {lacks}; add it, or move the label out")
        return [reading.tile(name, found[name], known[name]) for name in names]

    def _named(self, folder: Path, ending: str) -> dict[str, Path]:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; it is named in the config")
        result: dict[str, Path] = {}
        for path in entries(folder):
            if path.suffix.lower() in GEOTIFF + PICTURE and path.stem.endswith(ending):
                name = path.stem.removesuffix(ending)
                if result.setdefault(name, path) != path:
                    raise DataError(f"{path}: tile {name} is there twice, also as {result[name].name}; remove one")
        if not result:
            raise DataError(f"{folder}: holds no raster named *{ending}{{{','.join(GEOTIFF + PICTURE)}}}")
        return result

    def _check_headers(
        self, image_path: Path, image: Rows, label_path: Path, label: Rows, bands: int, table: ClassTable
    ) -> None:
        if coded := code_fault(image):
            raise DataError(f"{image_path}: {coded}")
        if image.dtype != self.dtype:
            what = f"holds {image.dtype} pixels, but pixel_type is {self.dtype}"
            raise DataError(f"{image_path}: {what}; change one of them")
        if image.bands < bands:
            raise DataError(f"{image_path}: has {image.bands} bands, not {bands}; correct in_channels or bands")
        there = (
            f"{label_path}: has {label.bands} band{'s' if label.bands > 1 else ''} of {label.dtype}, but classes are"
        )
        if isinstance(table, Palette) and (label.bands < 3 or label.dtype != "uint8"):
            raise DataError(f"{there} colours; give values in classes")
        if isinstance(table, Values) and label.bands != 1:
            raise DataError(f"{there} values; give colours in classes")
        if isinstance(table, Values) and label.dtype not in NUMBERS:
            convert = f"gdal_translate -ot Int16 {label_path.name} ..."
            raise DataError(f"{there} values; convert it to an 8- or 16-bit integer type ({convert})")
        check_sizes(image_path, image, label_path, label)
