"""A scene seen from an aeroplane, which also knows what each pixel is, where cars stand and where shadows fall."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from fedrs_lightning.synth.scenes import spectra
from fedrs_lightning.synth.scenes.scene import Boxes, Scene
from fedrs_lightning.synth.scenes.shift import SpectralShift, Style


class Kind(IntEnum):
    """Kinds of ground cover; data sets make their classes from these. Cars are a layer of their own."""

    ROAD, PAVED, BUILDING, GRASS, TREE, FOREST, WATER, BARREN, FIELD, CLUTTER = range(10)


SUN = np.float32(np.sqrt(0.5))  # east and south component of the direction to the sun: a morning flight

_BANDS = (spectra.RED, spectra.GREEN, spectra.BLUE, spectra.NIR)
# Light that is left in the shade.
_SKY = np.asarray([0.46, 0.40, 0.35, 0.33, 0.30, 0.28, 0.27, 0.27, 0.22, 0.20], dtype=np.float32)
_ELEMENTS = 4_000_000  # pixels of object windows that are stamped at a time
_ROWS = 128  # rendered at a time


class AerialScene(Scene):
    """Square piece of ground with a kind for each pixel.

    Attributes:
        kind: what covers the ground, a `Kind`, uint8 [n, n].
        car: where cars stand, bool [n, n].
        shadow: what part of the sun's light is kept off, float32 [n, n] in [0, 1].
    """

    def __init__(self, side: float, pixel: float, rng: np.random.Generator, style: Style) -> None:
        super().__init__(side, pixel, rng, style)
        self.kind = np.full((self.size, self.size), Kind.GRASS, dtype=np.uint8)
        self.car = np.zeros((self.size, self.size), dtype=bool)
        self.shadow = np.zeros((self.size, self.size), dtype=np.float32)

    def cover(self, owner: np.ndarray, materials: np.ndarray, kind: Kind | None) -> None:
        """Cover the ground with objects of one kind, as `paint_objects` does; None keeps what the ground counts as."""
        self.paint_objects(owner, materials)
        if kind is not None:
            self.kind[owner >= 0] = kind

    def fill(self, mask: np.ndarray, material: str, kind: Kind | None) -> None:
        """Cover `mask` with one object."""
        self.cover(np.where(mask, 0, -1), np.asarray([spectra.INDEX[material]]), kind)

    def pick(self, shares: Mapping[str, float], size: int) -> np.ndarray:
        """Draw `size` materials by shares that no domain moves, so that a class keeps its mean spectrum."""
        numbers, weights = [spectra.INDEX[name] for name in shares], np.asarray(list(shares.values()))
        return self.rng.choice(numbers, size, p=weights / weights.sum())

    def favour(self, name: str) -> float:
        """Factor by which the domain changes the number or area of something."""
        return float(np.exp(self.style.preference.get(name, 0.0)))

    def at(self, layer: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Values of a layer at places in metres, [objects]; places outside take the nearest pixel."""
        pixels = np.clip(((places + self.side / 2) / self.pixel).astype(np.int64), 0, self.size - 1)
        return layer[pixels[:, 1], pixels[:, 0]]

    def stamp(self, boxes: Boxes, round_: bool = False) -> np.ndarray:
        """As in `Scene`, a few objects at a time, since their windows are large at 5 cm; those outside are left out."""
        owner = np.full((self.size, self.size), -1, dtype=np.int64)
        radii = np.hypot(*boxes.halves.T)
        seen = np.flatnonzero(np.all(np.abs(boxes.centres) - radii[:, None] < self.side / 2, axis=1))
        if not len(seen):
            return owner
        window = (2 * np.ceil(radii[seen].max() / self.pixel) + 3) ** 2
        for part in np.array_split(seen, int(np.ceil(len(seen) * window / _ELEMENTS))):
            if len(part):
                found = super().stamp(boxes.only(part), round_)
                owner = np.where(found >= 0, part[found], owner)
        return owner

    def local(self, owner: np.ndarray, centres: np.ndarray, angles: np.ndarray) -> tuple[np.ndarray, ...]:
        """Covered pixels, bool [n, n]; of each its object and its place along and across it in metres, [P] each."""
        covered = owner >= 0
        number = owner[covered]
        east, south = centres[number].T.astype(np.float32)
        dx, dy = self.x[covered] - east, self.y[covered] - south
        cos, sin = np.cos(angles).astype(np.float32)[number], np.sin(angles).astype(np.float32)[number]
        return covered, number, cos * dx + sin * dy, cos * dy - sin * dx

    def ribbon(self, points: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """Distance from a line through points [K, 2] and arc length at its nearest point, metres, float32 [n, n] each.

        The distance is infinite beyond `reach` metres.
        """
        distance = np.full((self.size, self.size), np.inf, dtype=np.float32)
        along = np.zeros((self.size, self.size), dtype=np.float32)
        steps, lengths, starts = segments(points)
        low = np.minimum(points[:-1], points[1:]) - reach
        high = np.maximum(points[:-1], points[1:]) + reach
        first = np.clip(np.floor((low + self.side / 2) / self.pixel), 0, self.size).astype(np.int64)
        last = np.clip(np.ceil((high + self.side / 2) / self.pixel), 0, self.size).astype(np.int64)
        for number in np.flatnonzero(np.all(first < last, axis=1)):
            window = slice(first[number, 1], last[number, 1]), slice(first[number, 0], last[number, 0])
            dx, dy = self.x[window] - np.float32(points[number, 0]), self.y[window] - np.float32(points[number, 1])
            u, v = (steps[number] / lengths[number]).astype(np.float32)
            t = np.clip(dx * u + dy * v, 0, np.float32(lengths[number]))
            found = np.hypot(dx - t * u, dy - t * v)
            better = (found < distance[window]) & (found < reach)
            distance[window][better] = found[better]
            along[window][better] = t[better] + np.float32(starts[number])
        return distance, along

    def cast(self, owner: np.ndarray, reach: float, strength: float = 1.0) -> None:
        """Let objects throw a shadow `reach` metres to the north-west; what they stand on themselves stays lit."""
        tall = owner >= 0
        steps = max(1, round(reach / self.pixel * float(SUN)))
        shade, done = tall.copy(), 0
        while done < steps:  # each pass doubles the length
            move = min(max(1, done), steps - done)
            shade[:-move, :-move] |= shade[move:, move:].copy()
            done += move
        self.shadow[tall] = 0.0
        self.shadow[shade & ~tall] = strength

    def surface(self) -> tuple[np.ndarray, np.ndarray]:
        """State and brightness of each pixel with texture, float32 [n, n] each."""
        lengths = (max(0.12, 1.1 * self.pixel), max(0.6, 2.5 * self.pixel), 6.0)
        shade = self.shade.copy()
        for column, length in enumerate(lengths):
            shade += spectra.GRAIN[:, column][self.material] * self.noise(length)
        state = self.state + 0.4 * spectra.STATE[self.material] * (self.noise(9.0) + 0.5 * self.noise(lengths[1]))
        return state, shade

    def reflectance(self, step: int = 1) -> np.ndarray:
        """Every `step`-th row and column in `spectra.BANDS` with texture and shadows, float32 [10, n', n']."""
        some = slice(None, None, step), slice(None, None, step)
        return self._lit(some, *self.surface())

    def light(self, shift: SpectralShift, by_class: bool = False) -> np.ndarray:
        """Red, green, blue and near infrared light from the ground after the spectral shift, float32 [4, n, n].

        `by_class` moves vegetation by 1.5 times the shift, roofs and cars by 0.4 times (`spectra.BY_CLASS`).
        """
        state, shade = self.surface()
        seen = np.empty((len(_BANDS), self.size, self.size), dtype=np.float32)
        for first in range(0, self.size, _ROWS):
            rows = slice(first, first + _ROWS)
            pixels = self._lit(rows, state, shade)
            moved = shift(pixels)
            if by_class and shift.strength > 0:
                moved = pixels + spectra.BY_CLASS[self.material[rows]] * (moved - pixels)
                moved = np.maximum(moved, np.float32(0.0001))
            seen[:, rows] = moved[list(_BANDS)]
        return seen

    def _lit(self, some: Any, state: np.ndarray, shade: np.ndarray) -> np.ndarray:
        pixels = spectra.reflectance(self.material[some], state[some], shade[some])
        return pixels * (1 - self.shadow[some] * (1 - _SKY[:, None, None]))


def segments(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Segments of a line through points [K, 2]: vectors [K - 1, 2], lengths [K - 1], arc lengths of the points [K]."""
    steps = np.diff(points, axis=0)
    lengths = np.hypot(*steps.T)
    return steps, lengths, np.concatenate([[0.0], np.cumsum(lengths)])
