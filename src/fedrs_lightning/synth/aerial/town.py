"""Towns for aerial scenes: streets, houses, yards, gardens, trees and cars."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedrs_lightning.synth.aerial.scene import SUN, AerialScene, Kind, segments
from fedrs_lightning.synth.scenes.scene import Boxes, turned

PITCHED = {"roof_tile": 0.6, "roof_dark": 0.4}
FLAT = {"roof_gravel": 0.4, "roof_dark": 0.35, "concrete": 0.12, "roof_metal": 0.13}
PAVING = {"concrete": 0.4, "setts": 0.25, "brick": 0.35}
CARS = {"car_white": 0.22, "car_silver": 0.28, "car_black": 0.26, "car_red": 0.12, "car_blue": 0.12}


@dataclass(frozen=True)
class Town:
    """Measures of a town in metres, before the domain's style.

    Attributes:
        block: distance of neighbouring streets.
        cross: distance of crossing streets.
        half: half width of a street, least and most.
        plot: frontage of one house, least and most.
        house: half length and half width, least and most.
        setback: of the houses from the pavement, least and most.
        flat: share of flat roofs.
        yards: paved yards for each 1000 square metres.
        trees: single trees for each 1000 square metres.
        pitched_roofs, flat_roofs: materials and their shares.
    """

    block: float = 44.0
    cross: float = 90.0
    half: tuple[float, float] = (2.6, 4.0)
    plot: tuple[float, float] = (13.0, 20.0)
    house: tuple[tuple[float, float], tuple[float, float]] = ((4.6, 3.8), (7.4, 5.4))
    setback: tuple[float, float] = (2.0, 5.0)
    flat: float = 0.35
    yards: float = 0.9
    trees: float = 20.0
    pitched_roofs: dict[str, float] = field(default_factory=lambda: PITCHED)
    flat_roofs: dict[str, float] = field(default_factory=lambda: FLAT)


@dataclass(frozen=True)
class Street:
    """A street: points of its middle line, metres, [K, 2], and half its width, metres."""

    points: np.ndarray
    half: float

    def frames(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points [P, 2], their unit normals [P, 2] and directions in radians [P] at arc lengths in metres [P]."""
        steps, lengths, starts = segments(self.points)
        number = np.clip(np.searchsorted(starts, places, side="right") - 1, 0, len(steps) - 1)
        tangent = steps[number] / lengths[number, None]
        points = self.points[number] + (places - starts[number])[:, None] * tangent
        return points, np.stack([-tangent[:, 1], tangent[:, 0]], axis=1), np.arctan2(tangent[:, 1], tangent[:, 0])

    @property
    def length(self) -> float:
        """Metres."""
        return float(segments(self.points)[1].sum())


def street(scene: AerialScene, angle: float, offset: float, half: float) -> Street:
    """A street across the scene, straight or winding as the domain likes it."""
    along = np.arange(-0.8 * scene.side - 8, 0.8 * scene.side + 14, 6.0)
    across = np.full_like(along, offset)
    for length in (45.0, 90.0, 200.0):
        height = 0.035 * length * scene.style.winding * scene.rng.uniform(0.3, 1.0)
        across = across + height * np.sin(2 * np.pi * along / length + scene.rng.uniform(0, 2 * np.pi))
    return Street(turned(along, across, angle), half)


def network(scene: AerialScene, town: Town) -> list[Street]:
    """Streets in one direction and others across; one of them always crosses the middle of the scene."""
    rng, scale = scene.rng, scene.style.scale**0.7
    angle = scene.angle()
    streets = []
    for turn, spacing in ((0.0, town.block * scale), (np.pi / 2, town.cross * scale)):
        reach = 0.75 * scene.side
        nearest = rng.uniform(-0.5, 0.5) * (min(spacing, 0.6 * scene.side) if turn == 0 else spacing)
        for offset in nearest + spacing * np.arange(-np.ceil(reach / spacing), np.ceil(reach / spacing) + 1):
            bent = 0.35 * scene.style.winding * rng.normal() if turn else 0.0
            half = rng.uniform(*town.half) * scene.favour("paved") ** 0.3
            streets.append(street(scene, angle + turn + bent, offset, half))
    return streets


def paint_town(scene: AerialScene, town: Town, zone: np.ndarray | None = None) -> list[Street]:
    """Paint a town over the ground, only where `zone`, bool [n, n], is true; gives its streets."""
    zone = np.ones(scene.kind.shape, dtype=bool) if zone is None else zone
    lawns(scene, zone)
    streets = network(scene, town)
    paved = yards(scene, town, streets[0], zone)
    roadway, reserved = pave(scene, streets, zone)
    houses = house_places(scene, town, streets, zone)
    owner = scene.stamp(houses)
    houses = houses.only(np.bincount(owner[reserved & (owner >= 0)], minlength=len(houses.centres)) == 0)
    paths(scene, town, houses, reserved)
    roofs(scene, town, houses)
    trees(scene, town, zone & ~roadway)
    parked(scene, streets, paved)
    return streets


def lawns(scene: AerialScene, zone: np.ndarray) -> None:
    """Gardens of grass, dry spots, beds and hedges, with some rubble and red courts."""
    rng = scene.rng
    plot, count = scene.parcels(24, 17, 6)
    shares = {"meadow": 0.7, "dry_grass": 0.22, "soil": 0.08}
    scene.cover(np.where(zone, plot, -1), scene.pick(shares, count), Kind.GRASS)
    scene.state += np.where(zone, 0.16 * np.maximum(scene.noise(5.0), 0), 0).astype(np.float32)
    area = scene.side**2 / 1000
    beds = scene.scatter(5 * area)
    sizes = rng.uniform([0.6, 0.4], [3.5, 1.4], (len(beds), 2))
    owner = scene.stamp(Boxes(beds, sizes, rng.uniform(0, np.pi, len(beds))))
    scene.cover(np.where(zone, owner, -1), scene.pick({"soil": 0.4, "scrub": 0.6}, len(beds)), Kind.GRASS)
    for kind, number, shares in (
        (Kind.BARREN, 0.22, {"rubble": 0.6, "soil_pale": 0.4}),
        (Kind.CLUTTER, 0.35, {"court": 0.4, "water_turbid": 0.3, "rubble": 0.3}),
    ):
        places = scene.places(rng.poisson(number * area * scene.favour("clutter")))
        halves = rng.uniform([2.0, 1.6], [6.0, 4.0], (len(places), 2)) * scene.style.scale**0.5
        owner = scene.stamp(Boxes(places, halves, rng.uniform(0, np.pi, len(places))), round_=kind == Kind.BARREN)
        scene.cover(np.where(zone, owner, -1), scene.pick(shares, len(places)), kind)


def yards(scene: AerialScene, town: Town, main: Street, zone: np.ndarray) -> Boxes:
    """Paved yards and parking places in the direction of the main street."""
    rng = scene.rng
    number = town.yards * scene.side**2 / 1000 * scene.favour("paved")
    centres = scene.places(rng.poisson(number))
    halves = rng.uniform([5.0, 4.0], [11.0, 8.5], (len(centres), 2)) * scene.style.scale**0.5
    angle = float(np.arctan2(*(main.points[-1] - main.points[0])[::-1]))
    made = Boxes(centres, halves, angle + rng.choice([0.0, np.pi / 2], len(centres)))
    scene.cover(np.where(zone, scene.stamp(made), -1), scene.pick({"asphalt": 0.45} | PAVING, len(centres)), Kind.PAVED)
    return made.only(scene.at(zone, centres))


def pave(
    scene: AerialScene, streets: list[Street], zone: np.ndarray, widths: tuple[float, float] = (1.2, 2.2)
) -> tuple[np.ndarray, np.ndarray]:
    """Pavements, then roadways with paint on them; where roadways are, and where no house may stand."""
    ribbons = [scene.ribbon(line.points, line.half + 2.4) for line in streets]
    walks = scene.rng.uniform(*widths, len(streets))
    roadway, reserved = np.zeros(zone.shape, dtype=bool), np.zeros(zone.shape, dtype=bool)
    materials = scene.pick({"concrete": 0.5, "setts": 0.3, "brick": 0.2}, len(streets))
    for line, (distance, _), walk, material in zip(streets, ribbons, walks, materials, strict=True):
        near = (distance < line.half + walk) & zone
        scene.cover(np.where(near, 0, -1), material[None], Kind.PAVED)
        reserved |= near
    materials = scene.pick({"asphalt": 0.72, "setts": 0.16, "concrete": 0.12}, len(streets))
    for line, (distance, _), material in zip(streets, ribbons, materials, strict=True):
        on = (distance < line.half) & zone
        scene.cover(np.where(on, 0, -1), material[None], Kind.ROAD)
        roadway |= on
    for line, (distance, along) in zip(streets, ribbons, strict=True):
        kerb = np.abs(distance - line.half) < max(0.08, 0.3 * scene.pixel)
        scene.shade[kerb & zone & ~roadway] += 0.2
        if line.half > 3.1 and scene.rng.random() < 0.7:
            scene.fill((distance < 0.09) & (np.mod(along, 6) < 3) & zone, "road_paint", Kind.ROAD)
    return roadway, reserved


def house_places(scene: AerialScene, town: Town, streets: list[Street], zone: np.ndarray) -> Boxes:
    """Houses on both sides of every street."""
    rng, scale = scene.rng, scene.style.scale
    chance = 0.82 * min(1.2, scene.style.density**0.5) * scene.favour("building") ** 0.5
    found = []
    for line in streets:
        for side in (-1, 1):
            count = int(line.length / (town.plot[0] * scale)) + 1
            places = np.cumsum(rng.uniform(*town.plot, count) * scale) - town.plot[1] * scale * rng.random()
            places = places[(places > 0) & (places < line.length)]
            points, normals, directions = line.frames(places)
            size = rng.uniform(*town.house, (len(places), 2)) * scale
            away = line.half + 2.2 + rng.uniform(*town.setback, len(places)) + size[:, 1]
            kept = rng.random(len(places)) < chance
            centre = points + side * away[:, None] * normals
            kept &= np.abs(centre).max(axis=1) < scene.side / 2 + 2 * town.house[1][0] * scale
            kept &= scene.at(zone, centre)
            found.append(Boxes(centre, size, directions + rng.normal(0, 0.03, len(places))).only(kept))
    return Boxes(*map(np.concatenate, zip(*found, strict=True)))


def paths(scene: AerialScene, town: Town, houses: Boxes, reserved: np.ndarray) -> None:
    """Drives and terraces beside the houses."""
    centres, halves, angles = houses
    rng, count = scene.rng, len(centres)
    normals = np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    tangents = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    slide = rng.uniform(-0.6, 0.6, (count, 1)) * halves[:, :1]
    drive = centres + slide * tangents  # reaches the street on one side and the garden on the other
    length = halves[:, 1] + rng.uniform(2.5, town.setback[1] + 1.0, count)
    owner = scene.stamp(Boxes(drive, np.stack([rng.uniform(0.7, 1.7, count), length], axis=1), angles))
    terrace = centres + rng.choice([-1, 1], (count, 1)) * (halves[:, 1:] + 1.0) * normals
    sizes = np.stack([0.5 * halves[:, 0], np.full(count, 1.8)], axis=1)
    owner = np.maximum(owner, scene.stamp(Boxes(terrace, sizes, angles)))
    scene.cover(np.where(reserved, -1, owner), scene.pick(PAVING, count), Kind.PAVED)


def roofs(scene: AerialScene, town: Town, houses: Boxes) -> None:
    """Houses, each with a wing now and then: slopes lit by where they face, tile rows, parapets, chimneys, shadows."""
    centres, halves, angles = houses
    rng, count = scene.rng, len(centres)
    if not count:
        return
    flat = rng.random(count) < town.flat
    materials = np.where(flat, scene.pick(town.flat_roofs, count), scene.pick(town.pitched_roofs, count))
    winged = np.flatnonzero(rng.random(count) < 0.35)
    parent = np.concatenate([winged, np.arange(count)])  # the wing lies under the house
    end = rng.choice([-0.55, 0.55], len(winged)) * halves[winged, 0]
    out = rng.choice([-0.9, 0.9], len(winged)) * halves[winged, 1]
    wing = centres[winged] + turned(end, out, angles[winged])
    sizes = np.stack([0.75 * halves[winged, 1], 0.42 * halves[winged, 0]], axis=1)
    centres = np.concatenate([wing, centres])
    halves = np.concatenate([sizes, halves])
    angles = np.concatenate([angles[winged] + np.pi / 2, angles])
    owner = scene.stamp(Boxes(centres, halves, angles))
    scene.cast(owner, rng.uniform(3.0, 5.0), 0.9)
    scene.cover(np.where(owner >= 0, parent[owner], -1), materials, Kind.BUILDING)

    covered, number, u, v = scene.local(owner, centres, angles)
    half_u, half_v = halves[number].T.astype(np.float32)
    hipped = (rng.random(count) < 0.4)[parent[number]]
    at_end = hipped & (half_u - np.abs(u) < half_v - np.abs(v))
    face = angles[number].astype(np.float32) + np.where(at_end, 0, np.float32(np.pi / 2))
    lit = SUN * (np.cos(face) + np.sin(face)) * np.sign(np.where(at_end, u, v))
    rows = 0.07 * np.sin(2 * np.pi * v / 0.34) if scene.pixel < 0.12 else 0.0
    ridge = np.where(np.abs(v) < max(0.12, scene.pixel / 2), 0.18, 0.0)
    edge = np.minimum(half_u - np.abs(u), half_v - np.abs(v))
    parapet = np.where(edge < 0.35, 0.25, 0.0)
    scene.shade[covered] += np.where(flat[parent[number]], parapet, 0.3 * lit + rows + ridge).astype(np.float32)

    fittings = np.repeat(np.arange(count), rng.poisson(2.2, count)) + len(winged)
    spread = rng.uniform(-0.75, 0.75, (len(fittings), 2)) * halves[fittings]
    places = centres[fittings] + turned(spread[:, 0], spread[:, 1], angles[fittings])
    small = scene.stamp(Boxes(places, rng.uniform(0.25, 0.8, (len(fittings), 2)), angles[fittings]))
    small = np.where(owner >= 0, small, -1)
    scene.cast(small, 0.7, 0.7)
    scene.cover(small, scene.pick({"concrete": 0.3, "glass": 0.4, "roof_dark": 0.3}, len(fittings)), None)


def trees(scene: AerialScene, town: Town, where: np.ndarray) -> None:
    """Clusters of trees over gardens and pavements, not over roofs."""
    rng = scene.rng
    number = town.trees * scene.side**2 / 1000 * scene.favour("tree") * scene.style.density
    middles = scene.places(rng.poisson(number / 2.5))
    members = rng.poisson(2.5, len(middles))
    centres = np.repeat(middles, members, axis=0)
    centres = centres + rng.normal(0, 3.2, centres.shape) * scene.style.scale
    where = where & (scene.kind != Kind.BUILDING)
    centres = centres[scene.at(where, centres)]
    crowns(scene, centres, rng.lognormal(np.log(1.9), 0.35, len(centres)) * scene.style.scale**0.8, Kind.TREE, where)


def crowns(scene: AerialScene, centres: np.ndarray, radii: np.ndarray, kind: Kind, where: np.ndarray) -> None:
    """Crowns made of a dozen tufts each, lit from the south-east, only `where`, so that roofs stay free.

    Centres [trees, 2] and radii [trees] are metres; the kind is tree or forest.
    """
    rng, tufts = scene.rng, 13
    if not len(centres):
        return
    crown = np.repeat(np.arange(len(centres)), tufts)
    angle, reach = rng.uniform(0, 2 * np.pi, len(crown)), 0.72 * np.sqrt(rng.random(len(crown))) * radii[crown]
    places = centres[crown] + reach[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    sizes = (rng.uniform(0.3, 0.5, len(crown)) * radii[crown])[:, None] * np.ones((1, 2))
    tuft = np.where(where, scene.stamp(Boxes(places, sizes, np.zeros(len(crown))), round_=True), -1)
    owner = np.where(tuft >= 0, crown[tuft], -1)
    scene.cast(owner, float(1.1 * np.median(radii)), 0.85)
    scene.cover(owner, scene.pick({"broadleaf": 0.65, "conifer": 0.35}, len(centres)), kind)
    covered, number, u, v = scene.local(owner, centres, np.zeros(len(centres)))
    side = np.clip(SUN * (u + v) / radii[number].astype(np.float32), -1, 1)
    light = rng.normal(0, 0.14, len(crown)).astype(np.float32)[tuft[covered]]
    scene.shade[covered] += (0.3 * side + light - 0.05).astype(np.float32)


def parked(scene: AerialScene, streets: list[Street], paved: Boxes) -> None:
    """Cars along kerbs, some driving, and in rows on yards; only on sealed ground."""
    rng, wanted = scene.rng, 0.19 * scene.favour("car")
    places, directions = [np.zeros((0, 2))], [np.zeros(0)]
    for line in streets:
        for offset, spacing, chance in ((line.half - 1.1, 6.0, wanted), (0.45 * line.half, 22.0, 0.4 * wanted)):
            for side in (-1, 1):
                at = np.arange(rng.uniform(0, spacing), line.length, spacing)
                at = at[rng.random(len(at)) < chance]
                points, normals, heading = line.frames(at)
                places.append(points + side * offset * normals)
                directions.append(heading)
    for centre, half, angle in zip(*paved, strict=True):
        u, v = np.meshgrid(np.arange(-half[0] + 1.6, half[0] - 1.0, 2.7), [-half[1] + 2.7, half[1] - 2.7])
        kept = rng.random(u.size) < 1.2 * wanted
        places.append((centre + turned(u.ravel(), v.ravel(), angle))[kept])
        directions.append(np.full(int(kept.sum()), angle + np.pi / 2))
    place, heading = np.concatenate(places), np.concatenate(directions)
    seen = np.abs(place).max(axis=1) < scene.side / 2 + 2
    sealed = seen & np.isin(scene.at(scene.kind, place), (Kind.ROAD, Kind.PAVED))
    place, heading = place[sealed], heading[sealed]
    gaps = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
    crossing = np.abs(np.sin(heading[:, None] - heading[None])) > 0.3
    clash = np.triu((gaps < 2.3) | ((gaps < 4.8) & crossing), 1).any(axis=0)
    cars(scene, place[~clash], heading[~clash] + rng.normal(0, 0.03, int((~clash).sum())))


def cars(scene: AerialScene, centres: np.ndarray, angles: np.ndarray) -> None:
    """Car bodies with dark windows and small shadows, off roofs and trees."""
    rng, count = scene.rng, len(centres)
    halves = np.stack([rng.uniform(1.9, 2.45, count), rng.uniform(0.82, 0.95, count)], axis=1)
    owner = np.where(np.isin(scene.kind, (Kind.ROAD, Kind.PAVED)), scene.stamp(Boxes(centres, halves, angles)), -1)
    if not (owner >= 0).any():
        return
    shadow = scene.shadow[owner >= 0]
    scene.cast(owner, 0.9, 0.9)
    scene.shadow[owner >= 0] = shadow  # a car in the shade of a house stays there
    scene.cover(owner, scene.pick(CARS, count), None)
    scene.car |= owner >= 0
    covered, number, u, v = scene.local(owner, centres, angles)
    along, across = u / halves[number, 0], v / halves[number, 1]
    window = (((along > 0.18) & (along < 0.45)) | ((along > -0.82) & (along < -0.6))) & (np.abs(across) < 0.82)
    glass = np.zeros_like(covered)
    glass[covered] = window
    scene.paint(glass, "glass")
