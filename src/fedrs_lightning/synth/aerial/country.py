"""Town and country at 30 cm for LoveDA: larger buildings, fields in rows, woods, water, bare ground, villages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrs_lightning.synth.aerial.scene import AerialScene, Kind
from fedrs_lightning.synth.aerial.town import Town, crowns, paint_town, pave, street
from fedrs_lightning.synth.scenes.scene import Boxes, borders

_ROOFS = {"roof_gravel": 0.3, "roof_dark": 0.25, "concrete": 0.15, "roof_metal": 0.12, "roof_blue": 0.18}
_HOUSE = (8.0, 5.5), (17.0, 9.0)
CITY = Town(62.0, 105.0, (3.5, 7.5), (20.0, 40.0), _HOUSE, (3.0, 9.0), flat=0.65, trees=3.0, flat_roofs=_ROOFS)
VILLAGE = Town(block=90.0, cross=220.0, half=(2.0, 2.8), plot=(15.0, 26.0), yards=0.4, trees=4.0, flat=0.3)

CROPS = {"crop_green": 0.4, "crop_ripe": 0.25, "soil": 0.25, "soil_pale": 0.1}


def paint_town_and_country(scene: AerialScene, town_share: float) -> None:
    """Paint a tile of which about `town_share` is town and the rest country."""
    rng = scene.rng
    fields(scene)
    woods(scene)
    bare_ground(scene)
    height = scene.noise(90.0 * scene.style.scale**0.5)
    share = float(np.clip(rng.normal(town_share, 0.12), 0.02, 1.0))
    zone = height <= np.quantile(height, share)
    town = CITY if rng.random() < 0.25 + 0.6 * town_share else VILLAGE
    factor = float(np.clip(scene.side / 200, 0.5, 1.0))  # small tiles still see a street and a few houses
    road = street(scene, scene.angle(), rng.uniform(-0.35, 0.35) * scene.side, rng.uniform(2.2, 4.0))
    pave(scene, [road], ~zone, widths=(0.0, 0.6))
    paint_town(scene, replace(town, block=town.block * factor, cross=town.cross * factor), zone)
    water(scene, ~zone)


def fields(scene: AerialScene) -> None:
    """Strips of fields with the rows of plough and drill, and grass between them."""
    rng = scene.rng
    field, count = scene.parcels(75, 34, 8)
    scene.cover(field, scene.pick(CROPS, count), Kind.FIELD)
    angles = scene.angle() + rng.choice([0, np.pi / 2], count) + rng.normal(0, 0.1, count)
    across = (np.cos(angles)[field] * scene.y - np.sin(angles)[field] * scene.x).astype(np.float32)
    period = np.maximum(rng.uniform(1.2, 4.0, count), 3.2 * scene.pixel).astype(np.float32)
    depth = rng.uniform(0.03, 0.2, count).astype(np.float32)
    scene.shade += depth[field] * np.sin(2 * np.pi * across / period[field])
    edges = borders(field)
    for _ in range(max(1, round(0.9 / scene.pixel))):
        edges[1:] |= edges[:-1].copy()
        edges[:, 1:] |= edges[:, :-1].copy()
    scene.fill(edges & (scene.noise(40) > -0.8), scene.either(0.6, "meadow", "dry_grass"), Kind.GRASS)
    idle = np.flatnonzero(rng.random(count) < 0.14)
    fallow = np.full(count, -1)
    fallow[idle] = np.arange(len(idle))
    scene.cover(fallow[field], scene.pick({"meadow": 0.4, "scrub": 0.3, "dry_grass": 0.3}, len(idle)), Kind.GRASS)


def woods(scene: AerialScene) -> None:
    """Closed stands of trees, crown by crown over shaded ground."""
    rng = scene.rng
    share = np.clip(0.2 * scene.favour("tree") * rng.uniform(0.4, 1.6), 0.02, 0.7)
    height = scene.noise(45.0 * scene.style.scale)
    wood = height > np.quantile(height, 1 - share)
    scene.fill(wood, "conifer", Kind.FOREST)
    scene.shade[wood] -= 0.35
    radius = 2.3 * scene.style.scale**0.5
    places = scene.places(int(0.6 * scene.side**2 / radius**2))
    places = places[scene.at(wood, places)]
    crowns(scene, places, rng.uniform(0.7, 1.5, len(places)) * radius, Kind.FOREST, wood)


def bare_ground(scene: AerialScene) -> None:
    """Building sites and quarries without plants."""
    height = scene.noise(32.0 * scene.style.scale**0.5)
    share = np.clip(0.07 * scene.favour("clutter") * scene.rng.uniform(0, 2), 0.0, 0.4)
    site = height > np.quantile(height, 1 - share)
    scene.fill(site, scene.either(0.6, "rubble", "soil_pale"), Kind.BARREN)
    scene.shade[site] += (0.08 * scene.noise(4.0))[site]


def water(scene: AerialScene, country: np.ndarray) -> None:
    """Ponds with straight banks in the country, and now and then a river through everything."""
    rng = scene.rng
    number = 5 * (scene.side / 300) ** 2 * scene.favour("water")
    places = scene.places(rng.poisson(number))
    places = places[scene.at(country & (scene.kind != Kind.ROAD), places)]
    halves = rng.uniform([9.0, 7.0], [24.0, 15.0], (len(places), 2)) * scene.style.scale**0.5
    angles = np.full(len(places), scene.angle())
    banks = scene.stamp(Boxes(places, halves + 1.5, angles))
    scene.cover(banks, scene.pick({"dry_grass": 0.5, "concrete": 0.5}, len(places)), Kind.GRASS)
    pond = scene.stamp(Boxes(places, halves, angles))
    scene.cover(pond, scene.pick({"water_clear": 0.6, "water_turbid": 0.4}, len(places)), Kind.WATER)
    wet = pond >= 0
    if rng.random() < 0.35:
        distance, half = scene.curve(25), rng.uniform(5, 14) * scene.style.scale**0.5
        scene.fill(distance < half + 3, scene.either(0.6, "scrub", "soil_pale"), Kind.GRASS)
        wet |= distance < half
        scene.fill(distance < half, scene.either(0.6, "water_turbid", "water_clear"), Kind.WATER)
    scene.shadow[wet | (banks >= 0)] = 0
    scene.car[wet | (banks >= 0)] = False
