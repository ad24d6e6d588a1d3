"""Scenes of 1200 m with two to five of the 19 BigEarthNet classes: first the map of classes, then each class's ground.

Everything is painted at 10 m; fields, stands and blocks are drawn, single houses and trees are grains of one pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from fedrs_lightning.data.archives.bigearthnet.files import CLASSES
from fedrs_lightning.synth.scenes.scene import Boxes, Scene, borders
from fedrs_lightning.synth.scenes.spectra import ARABLE, HALLS

Noise = Callable[[float], np.ndarray]

PATCH_SIDE = 1200.0  # metres
PIXEL = 10.0
LABEL_SHARE = 0.05  # of the patch: a class with more is a label
_LEAST = 0.08  # share of each class that is drawn as a label
_NUMBER = (0.28, 0.36, 0.23, 0.13)  # chance of 2, 3, 4, 5 labels


@dataclass(frozen=True)
class Cover:
    """How a class covers its ground.

    Attributes:
        shares: materials of its objects and their weights.
        parcels: length and width of fields or blocks, metres; None for natural patches.
        grains: materials of single pixels that stand on the objects, and their weights.
        grain: share of pixels with such a grain.
        clump: over how many metres grains stand together.
        edge: material along the borders of the parcels; empty for none.
        relief: brightness of slopes, standard deviation.
    """

    shares: Mapping[str, float]
    parcels: tuple[float, float] | None = None
    grains: Mapping[str, float] = field(default_factory=dict)
    grain: float = 0.0
    clump: float = 14.0
    edge: str = ""
    relief: float = 0.0


def _mix(text: str) -> dict[str, float]:
    words = text.split()
    return dict(zip(words[::2], map(float, words[1::2]), strict=True))


_GARDENS = _mix("meadow .55 broadleaf .15 concrete .2 soil .1")
_TOWN = _mix("roof_tile .36 roof_dark .24 concrete .22 asphalt .1 roof_metal .08")
_SEALED = _mix("asphalt .42 concrete .3 meadow .18 soil_pale .1")
_SMALL = ARABLE | _mix("meadow .35 orchard .25 broadleaf .08")
_WOODED, _STEPPE = ARABLE | {"meadow": 0.5}, _mix("dry_grass .75 crop_ripe .15 soil .1")
_ROUGH, _BUSHES = _mix("dry_grass .5 meadow .25 rock .25"), _mix("scrub .6 meadow .2 dry_grass .2")
_MARSH, _ORCHARD = _mix("reed .6 water_turbid .2 meadow .2"), _mix("soil .55 soil_pale .33 dry_grass .12")

COVERS: dict[str, Cover] = {
    "Urban fabric": Cover(_GARDENS, (130, 80), _TOWN, 0.5, 10, "asphalt"),
    "Industrial or commercial units": Cover(_SEALED, (220, 150), _mix("concrete .5 roof_dark .5"), 0.08, 14, "asphalt"),
    "Arable land": Cover(ARABLE, (330, 150), edge="dry_grass"),
    "Permanent crops": Cover(_ORCHARD, (190, 110), edge="soil_pale"),
    "Pastures": Cover(_mix("meadow .93 dry_grass .05 crop_green .02"), (210, 150)),
    "Complex cultivation patterns": Cover(_SMALL, (110, 50), _mix("roof_tile .6 concrete .4"), 0.025, 20),
    "Land principally occupied by agriculture, with significant areas of natural vegetation": Cover(
        _WOODED, (170, 100), _mix("broadleaf .6 scrub .4"), 0.34, 80
    ),
    "Agro-forestry areas": Cover(_STEPPE, None, _mix("orchard .75 scrub .25"), 0.2, 11),
    "Broad-leaved forest": Cover(_mix("broadleaf 1"), None, _mix("conifer 1"), 0.03, 30, relief=0.14),
    "Coniferous forest": Cover(_mix("conifer 1"), (260, 160), _mix("scrub .6 broadleaf .4"), 0.05, 40, "", 0.12),
    "Mixed forest": Cover(_mix("broadleaf .5 conifer .5"), None, _mix("conifer .6 broadleaf .4"), 0.45, 35, "", 0.13),
    "Natural grassland and sparsely vegetated areas": Cover(_ROUGH, None, _mix("rock .7 scrub .3"), 0.1, 40, "", 0.16),
    "Moors, heathland and sclerophyllous vegetation": Cover(
        _mix("heath .75 scrub .25"), None, _mix("rock .5 dry_grass .5"), 0.06, 30
    ),
    "Transitional woodland, shrub": Cover(_BUSHES, None, _mix("conifer .5 broadleaf .5"), 0.34, 22, relief=0.08),
    "Beaches, dunes, sands": Cover(_mix("sand 1"), None, _mix("dry_grass 1"), 0.05, 30),
    "Inland wetlands": Cover(_mix("peat .6 reed .4"), None, _mix("water_clear .6 scrub .4"), 0.1, 25),
    "Coastal wetlands": Cover(_MARSH, None, _mix("water_turbid 1"), 0.22, 30),
    "Inland waters": Cover(_mix("water_clear .7 water_turbid .3")),
    "Marine waters": Cover(_mix("water_clear 1")),
}
"""Class to its cover."""

_WATERS = ("Inland waters", "Marine waters")


def paint(scene: Scene, weights: np.ndarray) -> np.ndarray:
    """Draw a patch's classes by weights, float64 [19], and paint them; class of each pixel, int64 [120, 120]."""
    classes, shares = _draw_classes(scene.rng, weights)
    regions = _regions(scene, classes, shares)
    noise = cache(scene.noise)  # the covers never overlap, so that they may share their noises
    for number in classes:
        _cover(scene, noise, CLASSES[number], regions == number)
    if scene.rng.random() < 0.5:
        road = scene.curve(60) < scene.rng.uniform(5, 9)
        dry = ~np.isin(regions, [CLASSES.index(name) for name in _WATERS])
        scene.paint(road & dry, scene.either(0.6, "asphalt", "soil_pale"))
    return regions


def labels(regions: np.ndarray) -> np.ndarray:
    """Whether each class covers more than 5 % of the patch; bool [19]."""
    return np.bincount(regions.ravel(), minlength=len(CLASSES)) > LABEL_SHARE * regions.size


def _draw_classes(rng: np.random.Generator, weights: np.ndarray) -> tuple[list[int], list[float]]:
    """Classes, and the share of each. Now and then one more, too small for a label."""
    count = 2 + int(np.searchsorted(np.cumsum(_NUMBER), rng.random()))
    small = rng.random() < 0.3
    chosen: list[int] = []
    left = weights.copy()
    for _ in range(count + small):
        total = np.cumsum(left)
        drawn = int(np.searchsorted(total, rng.random() * total[-1], side="right"))
        chosen.append(min(drawn, int(np.flatnonzero(left)[-1])))
        left[chosen[-1]] = 0
    rest = rng.uniform(0.008, 0.04) if small else 0.0
    shares = _LEAST + (1 - rest - count * _LEAST) * rng.dirichlet(np.full(count, 1.5))
    for place in range(count):
        if CLASSES[chosen[place]].startswith("Beaches") and shares[place] > 0.12:  # a strip along the shore
            shares[(place + 1) % count] += shares[place] - 0.12
            shares[place] = 0.12
    return chosen, [*shares.tolist(), rest][: len(chosen)]


def _regions(scene: Scene, classes: list[int], shares: list[float]) -> np.ndarray:
    """Map of classes with these shares: each in turn takes the free pixels where it fits best."""
    rng = scene.rng

    def wide() -> float:
        """Metres between the parts of a class; few values, so that the noise's filters are made once."""
        return float(rng.choice((140.0, 200.0, 260.0, 330.0)) * scene.style.scale)

    def compact() -> np.ndarray:
        centre = rng.uniform(-400, 400, 2)
        return 0.5 * scene.noise(90) - np.hypot(scene.x - centre[0], scene.y - centre[1]) / 260

    shore, _ = scene.axes(2 * scene.angle())
    shore = shore / 180 + 0.35 * scene.noise(260 * scene.style.scale)
    fits: dict[str, Callable[[], np.ndarray]] = {
        "Marine waters": lambda: shore,
        "Beaches, dunes, sands": lambda: shore,
        "Coastal wetlands": lambda: shore + 0.3 * scene.noise(120),
        "Inland waters": lambda: -scene.curve(rng.uniform(60, 260)) if rng.random() < 0.5 else scene.noise(wide()),
        "Urban fabric": compact,
        "Industrial or commercial units": compact,
    }
    first = {name: rank for rank, name in enumerate(fits)}
    order = sorted(range(len(classes)), key=lambda place: first.get(CLASSES[classes[place]], len(first)))
    regions = np.full(scene.material.shape, -1, dtype=np.int64)
    for step, place in enumerate(order):
        free = np.flatnonzero(regions.ravel() < 0)
        wanted = len(free) if step == len(order) - 1 else round(shares[place] * regions.size)
        if wanted < len(free):
            fit = fits.get(CLASSES[classes[place]], lambda: scene.noise(wide()))()
            free = free[np.argpartition(fit.ravel()[free], len(free) - wanted)[len(free) - wanted :]]
        regions.ravel()[free] = classes[place]
    return regions


def _cover(scene: Scene, noise: Noise, name: str, where: np.ndarray) -> None:
    cover = COVERS[name]
    if cover.parcels is not None:
        owner, count = scene.parcels(*cover.parcels, 14)
    else:
        owner, count = np.digitize(noise(100), np.sort(scene.rng.normal(0, 0.6, 3))), 4
    if name in _WATERS:
        owner, count = np.zeros_like(owner), 1
    state = {"Marine waters": -0.25, "Inland waters": 0.1}.get(name, 0.0)
    scene.paint_objects(np.where(where, owner, -1), scene.choose(cover.shares, count), state=state)
    if cover.relief:
        scene.shade[where] += (np.float32(cover.relief) * noise(110))[where]
    special = {"Permanent crops": _rows, "Industrial or commercial units": _halls, "Pastures": _hedges}.get(name)
    if special is not None:
        special(scene, noise, where, owner)
    if cover.grain:
        length = cover.clump * (scene.style.scale if cover.clump > 2 * PIXEL else 1.0)
        density = min(0.9, cover.grain * scene.style.density**0.5)
        height = noise(length)
        grown = where & (height > np.quantile(height[where], 1 - density))
        number = np.where(grown, np.cumsum(grown).reshape(grown.shape) - 1, -1)  # every grain is an object of its own
        scene.paint_objects(number, scene.choose(cover.grains, int(np.count_nonzero(grown))))
    if cover.edge:
        scene.paint(where & borders(owner) & (noise(60) > -0.3), cover.edge)


def _rows(scene: Scene, noise: Noise, where: np.ndarray, owner: np.ndarray) -> None:
    """Rows of plants over bare soil; few plants are young plots."""
    count = int(owner.max()) + 1
    angle = scene.angle() + scene.rng.choice([0, np.pi / 2], count)
    period, cover = scene.rng.uniform(20, 36, count), scene.rng.uniform(0.35, 0.8, count)
    across = np.cos(angle)[owner] * scene.y - np.sin(angle)[owner] * scene.x
    plants = where & (np.mod(across / period[owner], 1) < cover[owner])
    scene.paint_objects(np.where(plants, owner, -1), scene.choose({"orchard": 0.85, "scrub": 0.15}, count))


def _halls(scene: Scene, noise: Noise, where: np.ndarray, owner: np.ndarray) -> None:
    """Large roofs in one direction."""
    centres = scene.scatter(240)
    halves = scene.rng.uniform([22, 14], [70, 38], (len(centres), 2)) * scene.style.scale**0.5
    direction = scene.angle() + np.pi / 2 * scene.rng.integers(0, 2, len(centres))
    scene.build(Boxes(centres, halves, direction), HALLS, 10, where)


def _hedges(scene: Scene, noise: Noise, where: np.ndarray, owner: np.ndarray) -> None:
    """Hedges along the borders of the fields, and single trees."""
    scene.paint(where & borders(owner) & (noise(60) > scene.rng.uniform(-1.0, 0.8)), "broadleaf")
