"""A scene: a map of materials on a metric grid, painted from back to front, then turned into reflectance.

All sizes are in metres; a finer grid shows the same ground in more detail. Everything is drawn from one generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedrs_lightning.synth.scenes import spectra
from fedrs_lightning.synth.scenes.shift import Style


class Boxes(NamedTuple):
    """Rotated rectangles or ellipses.

    Attributes:
        centres: east and south, metres, [objects, 2].
        halves: half length and half width, metres, [objects, 2].
        angles: direction of the length, radians, [objects].
    """

    centres: np.ndarray
    halves: np.ndarray
    angles: np.ndarray

    def only(self, which: np.ndarray) -> Boxes:
        """Some of them, by a mask or by numbers."""
        return Boxes(self.centres[which], self.halves[which], self.angles[which])


class Scene:
    """Square piece of ground of `side` metres, painted with materials as the domain's `style` likes it.

    Attributes:
        x, y: metres east and south of the centre, float32 [n, n].
        material: index into `spectra.NAMES`, int [n, n].
        state, shade: t and b of each pixel (see `spectra.MEAN`), float32 [n, n].
        rng: source of all draws.
    """

    def __init__(self, side: float, pixel: float, rng: np.random.Generator, style: Style) -> None:
        self.size, self.pixel, self.side, self.rng, self.style = round(side / pixel), pixel, side, rng, style
        axis = ((np.arange(self.size) + 0.5) * pixel - side / 2).astype(np.float32)
        self.x, self.y = np.meshgrid(axis, axis)
        self.material = np.zeros((self.size, self.size), dtype=np.int64)
        self.state = np.zeros((self.size, self.size), dtype=np.float32)
        self.shade = np.zeros((self.size, self.size), dtype=np.float32)

    def noise(self, length: float) -> np.ndarray:
        """Gaussian noise of unit variance, correlated over `length` metres; float32 [n, n], the edges fit together."""
        white = self.rng.standard_normal((self.size, self.size), dtype=np.float32)
        smooth = np.fft.rfft2(white) * _low_pass(self.size, length / self.pixel)
        return np.fft.irfft2(smooth, s=white.shape).astype(np.float32)

    def angle(self) -> float:
        """Draw a direction that the style likes, radians."""
        return self.style.angle(self.rng)

    def choose(self, shares: Mapping[str, float], size: int) -> np.ndarray:
        """Draw `size` materials, int [size], by shares that the style moves."""
        return self.style.choose(self.rng, shares, size)

    def either(self, chance: float, first: str, second: str) -> str:
        """The first of two materials with this chance, else the second."""
        return first if self.rng.random() < chance else second

    def axes(self, angle: float, bend: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates along and across a direction, in metres, optionally bent by smooth noise of `bend` metres."""
        along = np.cos(angle) * self.x + np.sin(angle) * self.y
        across = np.cos(angle) * self.y - np.sin(angle) * self.x
        if bend > 0:
            along = along + bend * self.noise(self.side / 5)
            across = across + bend * self.noise(self.side / 5)
        return along, across

    def paint(self, mask: np.ndarray, material: str) -> None:
        """Cover `mask` with one object of a material."""
        self.paint_objects(np.where(mask, 0, -1), np.asarray([spectra.INDEX[material]]))

    def paint_objects(self, owner: np.ndarray, materials: np.ndarray, state: float = 0.0) -> None:
        """Cover the ground with objects, each with its own draw of state (shifted by `state`) and brightness.

        `owner` is the number of the object that each pixel belongs to, -1 for none, int [n, n]; `materials` of each
        object are int [objects].
        """
        if not len(materials):
            return
        draws = self.rng.standard_normal((2, len(materials)), dtype=np.float32)
        covered = owner >= 0
        number = owner[covered]
        self.material[covered] = materials[number]
        self.state[covered] = (np.float32(state) + draws[0] * spectra.STATE[materials])[number]
        self.shade[covered] = (draws[1] * spectra.SHADE[materials])[number]

    def parcels(self, length: float, width: float, bend: float) -> tuple[np.ndarray, int]:
        """Cut the ground into strips of `width` and the strips into fields of `length`, metres times the style's scale.

        Borders are crooked by `bend` metres times the style's winding. Gives the number of the parcel of each pixel,
        int [n, n], and how many numbers there are.
        """
        scale, reach = self.style.scale, self.side
        along, across = self.axes(self.angle(), bend * self.style.winding)
        cuts = np.cumsum(self.rng.uniform(0.5, 1.5, 4 + int(2 * reach / (width * scale)))) * (width * scale) - reach
        strip = np.searchsorted(cuts, across)
        lengths = (self.rng.uniform(0.5, 1.6, len(cuts) + 1) * length * scale).astype(np.float32)
        shifts = self.rng.random(len(cuts) + 1).astype(np.float32)
        most = 2 + int(2 * reach / lengths.min())
        cell = np.clip(((along + reach) / lengths[strip] + shifts[strip]).astype(np.int64), 0, most - 1)
        owner = strip * most + cell
        present = np.zeros((len(cuts) + 1) * most, dtype=bool)
        present[owner] = True
        return (np.cumsum(present) - 1)[owner], int(present.sum())

    def curve(self, bend: float) -> np.ndarray:
        """Distance in metres of each pixel from a winding line through the middle half of the scene; float32 [n, n].

        Its bends have an amplitude of `bend` metres, times 0.4 to 1.6 by the style's winding.
        """
        along, across = self.axes(self.angle())
        place = self.rng.uniform(-0.25, 0.25) * self.side
        line, slope = np.full_like(along, place), np.zeros_like(along)
        for cycles in (0.5, 1.1, 2.1):
            amplitude = bend * (0.4 + 1.2 * self.style.winding) * self.rng.uniform(0.3, 1.0) / (1 + cycles)
            rate, phase = np.float32(2 * np.pi * cycles / self.side), self.rng.uniform(0, 2 * np.pi)
            line += np.float32(amplitude) * np.sin(rate * along + phase)
            slope += np.float32(amplitude) * rate * np.cos(rate * along + phase)
        return np.abs(across - line) / np.sqrt(1 + slope * slope)

    def stamp(self, boxes: Boxes, round_: bool = False) -> np.ndarray:
        """Number of the box, or ellipse if `round_`, on each pixel, -1 for none, int [n, n]; of several the last."""
        centres, halves, angles = boxes
        owner = np.full((self.size, self.size), -1, dtype=np.int64)
        if not len(centres):
            return owner
        reach = int(np.ceil(np.hypot(*halves.T).max() / self.pixel)) + 1
        steps = np.arange(-reach, reach + 1)
        middle = np.floor((centres + self.side / 2) / self.pixel).astype(np.int64)
        column = middle[:, 0, None, None] + steps[None, None, :]
        row = middle[:, 1, None, None] + steps[None, :, None]
        dx = (column + 0.5) * self.pixel - self.side / 2 - centres[:, 0, None, None]
        dy = (row + 0.5) * self.pixel - self.side / 2 - centres[:, 1, None, None]
        cos, sin = np.cos(angles)[:, None, None], np.sin(angles)[:, None, None]
        u = np.abs(cos * dx + sin * dy) / halves[:, 0, None, None]
        v = np.abs(cos * dy - sin * dx) / halves[:, 1, None, None]
        inside = (u * u + v * v <= 1) if round_ else (np.maximum(u, v) <= 1)
        inside &= (row >= 0) & (row < self.size) & (column >= 0) & (column < self.size)
        number, below, right = np.nonzero(inside)
        owner[middle[number, 1] + steps[below], middle[number, 0] + steps[right]] = number
        return owner

    def shadows(self, owner: np.ndarray, reach: float) -> None:
        """Darken the ground north-west of objects, `reach` metres far: in the morning the sun is in the south-east."""
        tall = owner >= 0
        step = max(1, round(reach / self.pixel / 1.4))
        cast = np.zeros_like(tall)
        for shift in range(1, step + 1):
            cast[:-shift, :-shift] |= tall[shift:, shift:]
        self.shade[cast & ~tall] -= 0.45

    def build(
        self,
        boxes: Boxes,
        shares: Mapping[str, float],
        shadow: float,
        where: np.ndarray | bool = True,
        spread: float = 0.0,
    ) -> None:
        """Buildings, only `where` if given, with roofs of `shares` of materials and shadows of `shadow` metres.

        All roofs share a state with the standard deviation `spread`.
        """
        owner = np.where(where, self.stamp(boxes), -1)
        self.shadows(owner, shadow)
        materials = self.choose(shares, len(boxes.centres))
        self.paint_objects(owner, materials, state=self.rng.normal(0, spread) if spread else 0.0)

    def places(self, count: int) -> np.ndarray:
        """Random places, metres, [count, 2]."""
        return self.rng.uniform(-self.side / 2, self.side / 2, (count, 2))

    def scatter(self, number: float) -> np.ndarray:
        """Random places, metres, [about `number` times the style's density, 2]."""
        return self.places(self.rng.poisson(number * self.style.density))

    def trees(self, number: float, radius: float, where: np.ndarray | bool = True) -> None:
        """Scatter about `number` crowns of about `radius` metres, only on the pixels of `where` if given."""
        places = self.scatter(number)
        radii = radius * self.style.scale * self.rng.uniform(0.6, 1.4, (len(places), 1)) * np.ones((1, 2))
        owner = np.where(where, self.stamp(Boxes(places, radii, np.zeros(len(places))), round_=True), -1)
        self.paint_objects(owner, self.choose({"conifer": 0.4, "broadleaf": 0.6}, len(places)))

    def reflectance(self) -> np.ndarray:
        """Reflectance in `spectra.BANDS` with texture, float32 [10, n, n]."""
        fine, coarse = self.noise(12.0), self.noise(80.0)
        shade = self.shade + spectra.FINE[self.material] * fine + spectra.COARSE[self.material] * coarse
        state = self.state + 0.5 * spectra.STATE[self.material] * self.noise(60.0)
        return spectra.reflectance(self.material, state, shade)


def turned(u: np.ndarray, v: np.ndarray, angle: np.ndarray | float) -> np.ndarray:
    """Places that lie u along and v across a direction, [objects, 2]."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([cos * u - sin * v, sin * u + cos * v], axis=1)


def borders(owner: np.ndarray) -> np.ndarray:
    """Pixels whose right or lower neighbour belongs to another region; bool [n, n]."""
    edge = np.zeros(owner.shape, dtype=bool)
    edge[:, :-1] |= owner[:, :-1] != owner[:, 1:]
    edge[:-1] |= owner[:-1] != owner[1:]
    return edge


def shrink(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Average blocks of factor x factor pixels; [C, H, W] to [C, H / factor, W / factor]."""
    if factor == 1:
        return pixels
    bands, height, width = pixels.shape
    return pixels.reshape(bands, height // factor, factor, width // factor, factor).mean(axis=(2, 4), dtype=np.float32)


def blur(pixels: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian point spread of `sigma` pixels; [C, H, W]. Edges are mirrored. Sigma 0 returns the input."""
    if sigma <= 0:
        return pixels
    reach = max(1, int(np.ceil(3 * sigma)))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    for axis in (1, 2):
        padding = [(0, 0), (0, 0), (0, 0)]
        padding[axis] = (reach, reach)
        padded, size = np.pad(pixels, padding, mode="reflect"), pixels.shape[axis]
        steps = [(slice(None),) * axis + (slice(step, step + size),) for step in range(len(kernel))]
        pixels = sum(weight * padded[part] for weight, part in zip(kernel, steps, strict=True))
    return pixels


@lru_cache(maxsize=256)
def _low_pass(size: int, length: float) -> np.ndarray:
    """Frequency response that turns white noise into unit-variance noise of correlation length `length` pixels."""
    down, right = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :]
    response = np.exp(-((np.pi * length) ** 2) * (down**2 + right**2) / 2)
    both_halves = np.where((right == 0) | (right == 0.5), 1.0, 2.0)  # the transform of real input keeps half the plane
    return (response / np.sqrt((response**2 * both_halves).sum() / size**2)).astype(np.float32)
