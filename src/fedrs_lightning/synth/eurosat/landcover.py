"""The ten EuroSAT classes as scenes: each painter covers one scene with its class and what usually lies around it."""

from __future__ import annotations

import numpy as np

from fedrs_lightning.data.archives.eurosat.files import CLASSES
from fedrs_lightning.synth.scenes.scene import Boxes, Scene, borders, turned
from fedrs_lightning.synth.scenes.spectra import ARABLE, HALLS, HOUSES

TILE_SIDE = 640.0  # metres: 64 pixels of 10 m


def annual_crop(scene: Scene) -> None:
    """Large fields in strips, each with one crop in one state, and narrow tracks."""
    _fields(scene, ARABLE, length=scene.rng.uniform(220, 420), width=scene.rng.uniform(60, 190))
    scene.trees(3, 10)


def forest(scene: Scene) -> None:
    """Closed forest on rolling ground, now and then with a clearing or a track."""
    rng = scene.rng
    stand, count = scene.parcels(300, 250, 90)
    scene.paint_objects(stand, scene.choose({"conifer": 0.6, "broadleaf": 0.4}, count), state=rng.normal(0, 0.15))
    scene.shade += np.float32(rng.uniform(0.02, 0.22)) * scene.noise(110)
    if rng.random() < 0.25:
        radius, material = rng.uniform(40, 90) * scene.style.scale, scene.either(0.6, "meadow", "scrub")
        east, south = rng.uniform(-220, 220, 2)
        scene.paint(np.hypot(scene.x - east, scene.y - south) < radius * (1 + 0.35 * scene.noise(50)), material)
    if rng.random() < 0.3:
        scene.paint(scene.curve(140) < 3.5, "soil")


def herbaceous_vegetation(scene: Scene) -> None:
    """Grass, scrub and bare ground in natural patches without field borders."""
    rng = scene.rng
    names = scene.choose({"dry_grass": 0.32, "scrub": 0.34, "rock": 0.16, "meadow": 0.18}, 3)
    height = scene.noise(rng.uniform(60, 140) * scene.style.scale)
    owner = np.digitize(height, np.sort(rng.normal(0, 0.7, 2)))
    scene.paint_objects(owner, names, state=rng.normal(0, 0.25))
    scene.shade += np.float32(rng.uniform(0.04, 0.14)) * scene.noise(30) + np.float32(rng.normal(0, 0.12))
    for _ in range(rng.integers(0, 4)):
        scene.paint(scene.curve(240) < rng.uniform(2.5, 6), scene.either(0.5, "soil", "soil_pale"))
    bushes = scene.noise(40) > 0.4
    scene.trees(rng.uniform(0, 120), 6, bushes)


def highway(scene: Scene) -> None:
    """One wide road, sometimes with a second one or a loop, across open country."""
    rng = scene.rng
    countryside(scene)
    loops = rng.integers(0, 3) if rng.random() < 0.35 else 0
    for _ in range(loops):
        (east, south), radius = rng.uniform(-130, 130, 2), rng.uniform(35, 80)
        scene.paint(np.abs(np.hypot(scene.x - east, scene.y - south) - radius) < 6, "asphalt")
    if rng.random() < 0.4:
        scene.paint(scene.curve(90) < rng.uniform(4, 8), "asphalt")
    distance, half = scene.curve(55), rng.uniform(11, 24)
    scene.paint(distance < half + 7, scene.either(0.6, "meadow", "dry_grass"))
    scene.paint(distance < half, scene.either(0.65, "asphalt", "concrete"))
    if half > 15:
        scene.paint(distance < 2.6, "meadow")


def industrial(scene: Scene) -> None:
    """Large halls in one direction on paved ground, with roads and leftovers of green."""
    rng = scene.rng
    ground, count = scene.parcels(170, 130, 10)
    scene.paint_objects(ground, scene.choose({"asphalt": 0.5, "concrete": 0.32, "meadow": 0.18}, count))
    scene.paint(borders(ground), "asphalt")
    scene.trees(60, 9, where=scene.noise(60) > 0.6)
    angle = scene.angle()
    shares = HALLS | {"roof_metal": rng.uniform(0.1, 0.8)}
    for spacing, smallest, largest in ((rng.uniform(55, 75), 7, 20), (rng.uniform(120, 190), 22, 62)):
        grid = _lattice(scene, spacing * scene.style.scale, 0.75 * spacing * scene.style.scale, jitter=0.22)
        kept = rng.random(len(grid[0])) < rng.uniform(0.4, 0.85) * min(1.2, scene.style.density)
        halves = rng.uniform(smallest, largest, (len(kept), 2)) * [1.0, 0.62] * scene.style.scale
        scene.build(_seen(scene, grid, halves, angle, kept), shares, shadow=12, spread=0.1)


def pasture(scene: Scene) -> None:
    """Green, irregular fields of grass with hedges and single trees."""
    rng = scene.rng
    field, count = scene.parcels(rng.uniform(130, 260), rng.uniform(110, 200), 70)
    shares = {"meadow": 0.9, "dry_grass": 0.05, "soil": 0.05}
    scene.paint_objects(field, scene.choose(shares, count), state=rng.normal(0.05, 0.12))
    hedge = borders(field) & (scene.noise(90) > rng.uniform(-1.2, 0.6))
    thicker = hedge.copy()
    thicker[1:] |= hedge[:-1]
    thicker[:, 1:] |= hedge[:, :-1]
    scene.paint(thicker, "broadleaf")
    scene.trees(rng.uniform(4, 40), 8)
    if rng.random() < 0.25:
        _farm(scene)


def permanent_crop(scene: Scene) -> None:
    """Orchards and vineyards: rows of plants over bare soil, with tracks between the plots."""
    rng = scene.rng
    plot, count = scene.parcels(rng.uniform(110, 230), rng.uniform(70, 170), 25)
    bare = scene.choose({"soil": 0.6, "soil_pale": 0.3, "dry_grass": 0.1}, count)
    scene.paint_objects(plot, bare, state=rng.normal(0, 0.25))
    angles = scene.angle() + rng.choice([0, np.pi / 2], count) + rng.normal(0, 0.15, count)
    period = rng.uniform(11, rng.uniform(16, 34), count)
    cover = rng.uniform(0, 0.6, count)  # few plants are young or cleared plots
    across = np.cos(angles)[plot] * scene.y - np.sin(angles)[plot] * scene.x
    along = np.cos(angles)[plot] * scene.x + np.sin(angles)[plot] * scene.y
    row = np.mod(across / period[plot], 1) < cover[plot]
    separate = (rng.random(count) < 0.4)[plot]  # single trees instead of closed rows
    row &= ~separate | (np.mod(along / period[plot], 1) < 0.65)
    scene.paint_objects(np.where(row, plot, -1), scene.choose({"orchard": 0.8, "scrub": 0.2}, count))
    scene.paint(borders(plot), scene.either(0.6, "soil_pale", "soil"))
    if rng.random() < 0.2:
        _farm(scene)


def residential(scene: Scene) -> None:
    """Houses along a grid of streets, with gardens."""
    rng = scene.rng
    scene.paint(np.ones_like(scene.material, dtype=bool), "meadow")
    scene.state += np.float32(rng.uniform(0, 0.6)) * (scene.noise(25) + 0.6)
    scene.trees(rng.uniform(120, 420), 6)
    if rng.random() < 0.5:
        scene.paint(scene.noise(45) > rng.uniform(0.2, 1.4), str(rng.choice(["concrete", "asphalt", "soil"])))
    angle, bend = scene.angle(), 70 * scene.style.winding * rng.random()
    along, across = scene.axes(angle, bend)
    long, short = rng.uniform([90, 48], [150, 70]) * scene.style.scale
    street = (np.mod(along, long) < 8) | (np.mod(across, short) < 8)
    scene.paint(street, "asphalt")
    spacing, depth = rng.uniform(15, 24) * scene.style.scale, short / 2
    grid = _lattice(scene, spacing, depth, jitter=0.12)
    kept = rng.random(len(grid[0])) < rng.uniform(0.65, 0.98) * min(1.2, scene.style.density)
    halves = rng.uniform([5.5, 4.5], [10.5, 8.5], (len(kept), 2)) * scene.style.scale
    scene.build(_seen(scene, grid, halves, angle, kept), HOUSES, shadow=5, where=~street, spread=0.1)


def river(scene: Scene) -> None:
    """One winding band of water with banks through open country."""
    rng = scene.rng
    countryside(scene)
    distance, half = scene.curve(rng.uniform(30, 170)), rng.uniform(22, 85) * scene.style.scale**0.5
    if rng.random() < 0.6:
        scene.paint(distance < half + rng.uniform(6, 25), scene.either(0.7, "broadleaf", "soil_pale"))
    scene.paint(distance < half, str(rng.choice(["water_clear", "water_turbid"])))
    if rng.random() < 0.3:
        scene.paint(scene.curve(40) < 5, "concrete")  # a bridge


def sea_lake(scene: Scene) -> None:
    """Open water with slow changes of colour; sometimes a shore."""
    rng = scene.rng
    scene.paint(np.ones_like(scene.material, dtype=bool), "water_clear")
    scene.state += np.float32(0.03) * scene.noise(200) + np.float32(abs(rng.normal(0, 0.12)))
    if rng.random() < 0.22:
        along, _ = scene.axes(scene.angle() * 2, 90)
        edge = rng.uniform(160, 300)
        scene.paint(along > edge - 25, "water_turbid")
        scene.paint(along > edge, scene.either(0.4, "soil_pale", "scrub"))


def countryside(scene: Scene) -> None:
    """A random mixture of fields, grass, woods and a few houses, behind roads and rivers."""
    kind = scene.rng.random()
    if kind < 0.35:
        _fields(scene, ARABLE | {"meadow": 0.5}, length=260, width=130)
    elif kind < 0.6:
        pasture(scene)
    elif kind < 0.8:
        herbaceous_vegetation(scene)
    else:
        residential(scene)
    wood = scene.noise(140 * scene.style.scale) > scene.rng.uniform(0.3, 1.8)
    scene.paint(wood, scene.either(0.6, "broadleaf", "conifer"))


_PAINTERS = [annual_crop, forest, herbaceous_vegetation, highway, industrial]
_PAINTERS += [pasture, permanent_crop, residential, river, sea_lake]
PAINTERS = dict(zip(CLASSES, _PAINTERS, strict=True))


def _fields(scene: Scene, shares: dict[str, float], length: float, width: float) -> None:
    field, count = scene.parcels(length, width, 14)
    scene.paint_objects(field, scene.choose(shares, count))
    _, across = scene.axes(scene.angle())
    strength = scene.rng.uniform(0, 0.07, count).astype(np.float32)
    scene.shade += strength[field] * np.sin(2 * np.pi / 31 * across)  # the drill's rows
    if scene.rng.random() < 0.6:
        scene.paint(borders(field), scene.either(0.5, "soil_pale", "dry_grass"))


def _lattice(scene: Scene, along: float, across: float, jitter: float) -> tuple[np.ndarray, np.ndarray]:
    """Jittered grid of places that covers the scene in any direction, metres."""
    reach = 0.75 * scene.side
    u, v = np.meshgrid(np.arange(-reach, reach, along) + along / 2, np.arange(-reach, reach, across) + across / 2)
    shift = scene.rng.uniform(-jitter, jitter, (2, u.size))
    return u.ravel() + along * shift[0], v.ravel() + across * shift[1]


def _seen(
    scene: Scene, grid: tuple[np.ndarray, np.ndarray], halves: np.ndarray, angle: float, kept: np.ndarray
) -> Boxes:
    """Those of the kept buildings of a lattice along a direction that are near the scene."""
    centres = turned(*grid, angle)
    near = np.abs(centres).max(axis=1) < scene.side / 2 + 30
    return Boxes(centres, halves, np.full(len(centres), angle)).only(kept & near)


def _farm(scene: Scene) -> None:
    rng = scene.rng
    centres = rng.uniform(-200, 200, 2) + rng.normal(0, 28, (5, 2))
    halves, angles = rng.uniform([8, 6], [18, 10], (5, 2)), np.full(5, rng.random() * np.pi)
    scene.build(Boxes(centres, halves, angles), HOUSES, shadow=6)
