"""The ten EuroSAT classes as scenes: each painter covers one scene with its class and what usually lies around it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedrs_lightning.synth.scenes.scene import Scene, borders

TILE_SIDE = 640.0  # metres: 64 pixels of 10 m

ARABLE = {"crop_green": 0.42, "crop_ripe": 0.22, "soil": 0.22, "soil_pale": 0.14}
HOUSES = {"roof_tile": 0.5, "roof_dark": 0.3, "concrete": 0.2}
HALLS = {"roof_metal": 0.45, "concrete": 0.25, "roof_dark": 0.3}


def annual_crop(scene: Scene) -> None:
    """Large fields in strips, each with one crop in one state, and narrow tracks."""
    _fields(scene, ARABLE, length=scene.rng.uniform(220, 420), width=scene.rng.uniform(60, 190))
    scene.trees(3, 10)


def forest(scene: Scene) -> None:
    """Closed forest on rolling ground, now and then with a clearing or a track."""
    stand, count = scene.parcels(300, 250, 90)
    scene.paint_objects(
        stand, scene.style.choose(scene.rng, {"conifer": 0.6, "broadleaf": 0.4}, count), state=scene.rng.normal(0, 0.15)
    )
    scene.shade += np.float32(scene.rng.uniform(0.02, 0.22)) * scene.noise(110)
    if scene.rng.random() < 0.25:
        _blob(scene, scene.rng.uniform(40, 90), "meadow" if scene.rng.random() < 0.6 else "scrub")
    if scene.rng.random() < 0.3:
        scene.paint(scene.curve(140) < 3.5, "soil")


def herbaceous_vegetation(scene: Scene) -> None:
    """Grass, scrub and bare ground in natural patches without field borders."""
    names = scene.style.choose(scene.rng, {"dry_grass": 0.32, "scrub": 0.34, "rock": 0.16, "meadow": 0.18}, 3)
    height = scene.noise(scene.rng.uniform(60, 140) * scene.style.scale)
    owner = np.digitize(height, np.sort(scene.rng.normal(0, 0.7, 2)))
    scene.paint_objects(owner, names, state=scene.rng.normal(0, 0.25))
    scene.shade += np.float32(scene.rng.uniform(0.04, 0.14)) * scene.noise(30) + np.float32(scene.rng.normal(0, 0.12))
    for _ in range(scene.rng.integers(0, 4)):
        scene.paint(scene.curve(240) < scene.rng.uniform(2.5, 6), "soil" if scene.rng.random() < 0.5 else "soil_pale")
    bushes = scene.noise(40) > 0.4
    scene.trees(scene.rng.uniform(0, 120), 6, where=bushes)


def highway(scene: Scene) -> None:
    """One wide road, sometimes with a second one or a loop, across open country."""
    countryside(scene)
    loops = scene.rng.integers(0, 3) if scene.rng.random() < 0.35 else 0
    for _ in range(loops):
        centre, radius = scene.rng.uniform(-130, 130, 2), scene.rng.uniform(35, 80)
        ring = np.abs(np.hypot(scene.x - centre[0], scene.y - centre[1]) - radius)
        scene.paint(ring < 6, "asphalt")
    if scene.rng.random() < 0.4:
        scene.paint(scene.curve(90) < scene.rng.uniform(4, 8), "asphalt")
    distance, half = scene.curve(55), scene.rng.uniform(11, 24)
    scene.paint(distance < half + 7, "meadow" if scene.rng.random() < 0.6 else "dry_grass")
    scene.paint(distance < half, "asphalt" if scene.rng.random() < 0.65 else "concrete")
    if half > 15:
        scene.paint(distance < 2.6, "meadow")


def industrial(scene: Scene) -> None:
    """Large halls in one direction on paved ground, with roads and leftovers of green."""
    ground, count = scene.parcels(170, 130, 10)
    scene.paint_objects(
        ground, scene.style.choose(scene.rng, {"asphalt": 0.5, "concrete": 0.32, "meadow": 0.18}, count)
    )
    scene.paint(borders(ground), "asphalt")
    scene.trees(60, 9, where=scene.noise(60) > 0.6)
    angle = scene.style.angle(scene.rng)
    shares = HALLS | {"roof_metal": scene.rng.uniform(0.1, 0.8)}
    for spacing, smallest, largest in ((scene.rng.uniform(55, 75), 7, 20), (scene.rng.uniform(120, 190), 22, 62)):
        along, across = _lattice(scene, spacing * scene.style.scale, 0.75 * spacing * scene.style.scale, jitter=0.22)
        kept = scene.rng.random(len(along)) < scene.rng.uniform(0.4, 0.85) * min(1.2, scene.style.density)
        halves = scene.rng.uniform(smallest, largest, (len(along), 2)) * [1.0, 0.62] * scene.style.scale
        _buildings(scene, along[kept], across[kept], halves[kept], angle, shares, shadow=12)


def pasture(scene: Scene) -> None:
    """Green, irregular fields of grass with hedges and single trees."""
    field, count = scene.parcels(scene.rng.uniform(130, 260), scene.rng.uniform(110, 200), 70)
    shares = {"meadow": 0.9, "dry_grass": 0.05, "soil": 0.05}
    scene.paint_objects(field, scene.style.choose(scene.rng, shares, count), state=scene.rng.normal(0.05, 0.12))
    hedge = borders(field) & (scene.noise(90) > scene.rng.uniform(-1.2, 0.6))
    scene.paint(_thicker(hedge), "broadleaf")
    scene.trees(scene.rng.uniform(4, 40), 8)
    if scene.rng.random() < 0.25:
        _farm(scene)


def permanent_crop(scene: Scene) -> None:
    """Orchards and vineyards: rows of plants over bare soil, with tracks between the plots."""
    plot, count = scene.parcels(scene.rng.uniform(110, 230), scene.rng.uniform(70, 170), 25)
    bare = scene.style.choose(scene.rng, {"soil": 0.6, "soil_pale": 0.3, "dry_grass": 0.1}, count)
    scene.paint_objects(plot, bare, state=scene.rng.normal(0, 0.25))
    angles = scene.style.angle(scene.rng) + scene.rng.choice([0, np.pi / 2], count) + scene.rng.normal(0, 0.15, count)
    period = scene.rng.uniform(11, scene.rng.uniform(16, 34), count)
    cover = scene.rng.uniform(0, 0.6, count)  # few plants are young or cleared plots
    across = np.cos(angles)[plot] * scene.y - np.sin(angles)[plot] * scene.x
    along = np.cos(angles)[plot] * scene.x + np.sin(angles)[plot] * scene.y
    row = np.mod(across / period[plot], 1) < cover[plot]
    separate = (scene.rng.random(count) < 0.4)[plot]  # single trees instead of closed rows
    row &= ~separate | (np.mod(along / period[plot], 1) < 0.65)
    scene.paint_objects(np.where(row, plot, -1), scene.style.choose(scene.rng, {"orchard": 0.8, "scrub": 0.2}, count))
    scene.paint(borders(plot), "soil_pale" if scene.rng.random() < 0.6 else "soil")
    if scene.rng.random() < 0.2:
        _farm(scene)


def residential(scene: Scene) -> None:
    """Houses along a grid of streets, with gardens."""
    scene.paint(np.ones_like(scene.material, dtype=bool), "meadow")
    scene.state += np.float32(scene.rng.uniform(0, 0.6)) * (scene.noise(25) + 0.6)
    scene.trees(scene.rng.uniform(120, 420), 6)
    if scene.rng.random() < 0.5:
        scene.paint(
            scene.noise(45) > scene.rng.uniform(0.2, 1.4), str(scene.rng.choice(["concrete", "asphalt", "soil"]))
        )
    angle, bend = scene.style.angle(scene.rng), 70 * scene.style.winding * scene.rng.random()
    along, across = scene.axes(angle, bend)
    long, short = scene.rng.uniform([90, 48], [150, 70]) * scene.style.scale
    street = (np.mod(along, long) < 8) | (np.mod(across, short) < 8)
    scene.paint(street, "asphalt")
    spacing, depth = scene.rng.uniform(15, 24) * scene.style.scale, short / 2
    u, v = _lattice(scene, spacing, depth, jitter=0.12)
    kept = scene.rng.random(len(u)) < scene.rng.uniform(0.65, 0.98) * min(1.2, scene.style.density)
    halves = scene.rng.uniform([5.5, 4.5], [10.5, 8.5], (len(u), 2)) * scene.style.scale
    _buildings(scene, u[kept], v[kept], halves[kept], angle, HOUSES, shadow=5, avoid=street)


def river(scene: Scene) -> None:
    """One winding band of water with banks through open country."""
    countryside(scene)
    distance, half = scene.curve(scene.rng.uniform(30, 170)), scene.rng.uniform(22, 85) * scene.style.scale**0.5
    if scene.rng.random() < 0.6:
        scene.paint(
            distance < half + scene.rng.uniform(6, 25), "broadleaf" if scene.rng.random() < 0.7 else "soil_pale"
        )
    scene.paint(distance < half, str(scene.rng.choice(["water_clear", "water_turbid"])))
    if scene.rng.random() < 0.3:
        scene.paint(scene.curve(40) < 5, "concrete")  # a bridge


def sea_lake(scene: Scene) -> None:
    """Open water with slow changes of colour; sometimes a shore."""
    scene.paint(np.ones_like(scene.material, dtype=bool), "water_clear")
    scene.state += np.float32(0.03) * scene.noise(200) + np.float32(abs(scene.rng.normal(0, 0.12)))
    if scene.rng.random() < 0.22:
        along, _ = scene.axes(scene.style.angle(scene.rng) * 2, 90)
        edge = scene.rng.uniform(160, 300)
        scene.paint(along > edge - 25, "water_turbid")
        scene.paint(along > edge, "soil_pale" if scene.rng.random() < 0.4 else "scrub")


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
    scene.paint(wood, "broadleaf" if scene.rng.random() < 0.6 else "conifer")


PAINTERS: dict[str, Callable[[Scene], None]] = {
    "AnnualCrop": annual_crop,
    "Forest": forest,
    "HerbaceousVegetation": herbaceous_vegetation,
    "Highway": highway,
    "Industrial": industrial,
    "Pasture": pasture,
    "PermanentCrop": permanent_crop,
    "Residential": residential,
    "River": river,
    "SeaLake": sea_lake,
}


def _fields(scene: Scene, shares: dict[str, float], length: float, width: float) -> None:
    field, count = scene.parcels(length, width, 14)
    scene.paint_objects(field, scene.style.choose(scene.rng, shares, count))
    direction = scene.style.angle(scene.rng)
    _, across = scene.axes(direction)
    strength = scene.rng.uniform(0, 0.07, count).astype(np.float32)
    scene.shade += strength[field] * np.sin(2 * np.pi / 31 * across)  # the drill's rows
    if scene.rng.random() < 0.6:
        scene.paint(borders(field), "soil_pale" if scene.rng.random() < 0.5 else "dry_grass")


def _lattice(scene: Scene, along: float, across: float, jitter: float) -> tuple[np.ndarray, np.ndarray]:
    """Jittered grid of places that covers the scene in any direction, metres."""
    reach = 0.75 * scene.side
    u, v = np.meshgrid(np.arange(-reach, reach, along) + along / 2, np.arange(-reach, reach, across) + across / 2)
    shift = scene.rng.uniform(-jitter, jitter, (2, u.size))
    return u.ravel() + along * shift[0], v.ravel() + across * shift[1]


def _buildings(
    scene: Scene,
    along: np.ndarray,
    across: np.ndarray,
    halves: np.ndarray,
    angle: float,
    shares: dict[str, float],
    shadow: float,
    avoid: np.ndarray | None = None,
) -> None:
    """Roofs at places given along and across a direction, with their shadows."""
    cos, sin = np.cos(angle), np.sin(angle)
    centres = np.stack([cos * along - sin * across, sin * along + cos * across], axis=1)
    seen = np.abs(centres).max(axis=1) < scene.side / 2 + 30
    owner = scene.stamp(centres[seen], halves[seen], np.full(int(seen.sum()), angle))
    if avoid is not None:
        owner = np.where(avoid, -1, owner)
    scene.shadows(owner, shadow)
    roofs = scene.style.choose(scene.rng, shares, int(seen.sum()))
    scene.paint_objects(owner, roofs, state=scene.rng.normal(0, 0.1))


def _farm(scene: Scene) -> None:
    place, count = scene.rng.uniform(-200, 200, 2), 5
    centres = place + scene.rng.normal(0, 28, (count, 2))
    owner = scene.stamp(
        centres, scene.rng.uniform([8, 6], [18, 10], (count, 2)), np.full(count, scene.rng.random() * np.pi)
    )
    scene.shadows(owner, 6)
    scene.paint_objects(owner, scene.style.choose(scene.rng, HOUSES, count))


def _blob(scene: Scene, radius: float, material: str) -> None:
    centre = scene.rng.uniform(-220, 220, 2)
    distance = np.hypot(scene.x - centre[0], scene.y - centre[1])
    scene.paint(distance < radius * scene.style.scale * (1 + 0.35 * scene.noise(50)), material)


def _thicker(mask: np.ndarray) -> np.ndarray:
    wide = mask.copy()
    wide[1:] |= mask[:-1]
    wide[:, 1:] |= mask[:, :-1]
    return wide
