"""Reflectance of land-cover materials in ten Sentinel-2 bands, and how it varies within a material.

The end-members are round figures of our own in the range of published spectral libraries; they are meant to give
plausible and separable land cover, not to be measured with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
"""Blue, green, red, three red edges, near infrared, narrow near infrared, two short-wave infrareds."""

BLUE, GREEN, RED, NIR = 0, 1, 2, 6  # channel numbers in BANDS


@dataclass(frozen=True)
class Material:
    """One surface.

    A pixel is (mean + t (toward - mean)) exp(b): t moves along the line to another material (a crop towards bare soil),
    b is brightness. Both are drawn for each object, and textured within it.

    Attributes:
        name: of the material.
        mean: reflectance in `BANDS`.
        toward: material at t = 1.
        state: standard deviation of t between objects.
        shade: standard deviation of b between objects.
        fine: standard deviation of b within an object at a correlation length of about 12 m.
        coarse: the same at about 80 m.
    """

    name: str
    mean: tuple[float, ...]
    toward: str
    state: float
    shade: float
    fine: float
    coarse: float


def _material(name: str, toward: str, variation: tuple[float, float, float, float], *mean: float) -> Material:
    return Material(name, mean, toward, *variation)


# fmt: off
MATERIALS = (
    #         name           toward          state shade fine  coarse   B02   B03   B04   B05   B06   B07   B08   B8A   B11   B12
    _material("water_clear", "water_turbid", (0.16, 0.15, 0.02, 0.03), .022, .028, .014, .010, .007, .006, .005, .005, .003, .002),
    _material("water_turbid", "water_clear", (0.30, 0.15, 0.03, 0.05), .052, .080, .072, .060, .038, .032, .027, .024, .008, .005),
    _material("conifer", "broadleaf",        (0.30, 0.15, 0.16, 0.10), .013, .027, .018, .042, .120, .150, .165, .180, .075, .035),
    _material("broadleaf", "conifer",        (0.30, 0.15, 0.14, 0.10), .019, .043, .023, .070, .230, .300, .320, .335, .150, .070),
    _material("meadow", "dry_grass",         (0.14, 0.14, 0.06, 0.08), .032, .062, .040, .090, .260, .345, .370, .385, .200, .105),
    _material("dry_grass", "meadow",         (0.30, 0.18, 0.10, 0.12), .058, .085, .105, .140, .200, .220, .240, .260, .310, .215),
    _material("scrub", "dry_grass",          (0.28, 0.18, 0.16, 0.16), .034, .052, .052, .088, .160, .190, .205, .220, .205, .125),
    _material("rock", "soil_pale",           (0.30, 0.20, 0.16, 0.18), .095, .120, .145, .160, .175, .185, .195, .205, .260, .230),
    _material("crop_green", "soil",          (0.16, 0.16, 0.05, 0.05), .026, .056, .030, .080, .300, .395, .425, .440, .210, .105),
    _material("crop_ripe", "soil_pale",      (0.25, 0.14, 0.05, 0.05), .064, .098, .132, .168, .220, .242, .262, .280, .330, .240),
    _material("soil", "soil_pale",           (0.30, 0.18, 0.05, 0.07), .064, .090, .118, .138, .160, .175, .190, .205, .275, .225),
    _material("soil_pale", "soil",           (0.25, 0.14, 0.05, 0.07), .105, .148, .195, .220, .242, .260, .280, .298, .380, .320),
    _material("orchard", "scrub",            (0.25, 0.15, 0.10, 0.08), .026, .046, .034, .070, .200, .250, .270, .285, .160, .085),
    _material("asphalt", "concrete",         (0.25, 0.14, 0.06, 0.05), .078, .088, .092, .096, .102, .107, .112, .116, .130, .120),
    _material("concrete", "asphalt",         (0.30, 0.14, 0.07, 0.05), .130, .148, .162, .172, .180, .185, .190, .195, .220, .205),
    _material("roof_metal", "concrete",      (0.35, 0.22, 0.04, 0.03), .260, .270, .270, .272, .275, .275, .275, .275, .265, .250),
    _material("roof_tile", "roof_dark",      (0.25, 0.16, 0.05, 0.03), .062, .084, .140, .158, .175, .188, .198, .208, .240, .210),
    _material("roof_dark", "concrete",       (0.20, 0.18, 0.05, 0.03), .062, .068, .072, .078, .084, .090, .094, .098, .112, .102),
    # Seen from an aeroplane only. New materials go to the end: the draws of a style follow this order.
    _material("setts", "concrete",           (0.25, 0.14, 0.06, 0.05), .068, .078, .084, .090, .097, .103, .108, .112, .126, .116),
    _material("brick", "concrete",           (0.25, 0.15, 0.06, 0.05), .070, .088, .128, .144, .160, .172, .182, .190, .220, .195),
    _material("road_paint", "concrete",      (0.20, 0.15, 0.04, 0.03), .400, .420, .430, .430, .430, .430, .430, .430, .400, .380),
    _material("roof_gravel", "concrete",     (0.30, 0.16, 0.06, 0.05), .105, .118, .126, .134, .142, .148, .153, .158, .185, .172),
    _material("roof_blue", "roof_metal",     (0.30, 0.16, 0.04, 0.03), .235, .180, .110, .120, .150, .180, .200, .205, .215, .200),
    _material("court", "brick",              (0.20, 0.12, 0.04, 0.04), .052, .082, .190, .215, .235, .250, .262, .270, .290, .250),
    _material("rubble", "soil_pale",         (0.30, 0.18, 0.10, 0.10), .100, .118, .132, .142, .152, .160, .168, .175, .215, .198),
    _material("glass", "asphalt",            (0.15, 0.15, 0.02, 0.02), .034, .036, .036, .038, .040, .042, .044, .046, .050, .048),
    _material("car_white", "car_silver",     (0.25, 0.15, 0.03, 0.02), .480, .490, .490, .490, .485, .480, .475, .470, .430, .400),
    _material("car_silver", "car_black",     (0.25, 0.18, 0.03, 0.02), .210, .215, .215, .218, .220, .222, .224, .226, .230, .225),
    _material("car_black", "car_silver",     (0.20, 0.18, 0.03, 0.02), .028, .029, .029, .032, .035, .037, .039, .040, .045, .044),
    _material("car_red", "car_black",        (0.25, 0.16, 0.03, 0.02), .030, .034, .210, .270, .310, .330, .340, .345, .340, .320),
    _material("car_blue", "car_silver",      (0.25, 0.18, 0.03, 0.02), .135, .078, .048, .052, .090, .140, .170, .180, .200, .190),
    # Of BigEarthNet's coasts and moors.
    _material("sand", "soil_pale",           (0.25, 0.12, 0.04, 0.05), .190, .240, .290, .310, .325, .335, .345, .355, .420, .360),
    _material("reed", "dry_grass",           (0.30, 0.16, 0.10, 0.14), .034, .056, .050, .082, .150, .180, .195, .205, .130, .065),
    _material("peat", "reed",                (0.30, 0.18, 0.10, 0.14), .030, .042, .048, .066, .105, .122, .135, .145, .135, .085),
    _material("heath", "scrub",              (0.25, 0.16, 0.12, 0.14), .028, .042, .052, .078, .118, .138, .150, .162, .180, .110),
)
# fmt: on

ARABLE = {"crop_green": 0.42, "crop_ripe": 0.22, "soil": 0.22, "soil_pale": 0.14}
HOUSES = {"roof_tile": 0.5, "roof_dark": 0.3, "concrete": 0.2}
HALLS = {"roof_metal": 0.45, "concrete": 0.25, "roof_dark": 0.3}

INDEX = {material.name: number for number, material in enumerate(MATERIALS)}
MEAN = np.asarray([material.mean for material in MATERIALS], dtype=np.float32)  # [M, 10]
TOWARD = np.asarray([MATERIALS[INDEX[material.toward]].mean for material in MATERIALS], dtype=np.float32)  # [M, 10]
STATE, SHADE, FINE, COARSE = (
    np.asarray([getattr(material, name) for material in MATERIALS], dtype=np.float32)
    for name in ("state", "shade", "fine", "coarse")
)  # each [M]


def reflectance(material: np.ndarray, state: np.ndarray, shade: np.ndarray) -> np.ndarray:
    """Reflectance of a map, float32 [10, H, W].

    Args:
        material: index of each pixel's material, int [H, W].
        state: t of each pixel, clipped to [-0.5, 1].
        shade: b of each pixel, clipped to [-1.2, 0.7].
    """
    start = MEAN.T[:, material]
    pixels = start + np.clip(state, -0.5, 1.0) * (TOWARD.T[:, material] - start)
    return np.maximum(pixels * np.exp(np.clip(shade, -1.2, 0.7)), np.float32(0.0005))
