"""Reflectance of land-cover materials in ten Sentinel-2 bands, and how it varies within a material.

The end-members are round figures of our own in the range of published spectral libraries; they are meant to give
plausible and separable land cover, not to be measured with.
"""

from __future__ import annotations

import numpy as np

BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
"""Blue, green, red, three red edges, near infrared, narrow near infrared, two short-wave infrareds."""

BLUE, GREEN, RED, NIR = 0, 1, 2, 6  # channel numbers in BANDS

# Material, the one it moves toward, how it varies (4, 3 and 1 figures), reflectance in BANDS; explained below.
# New materials go to the end: the draws of a style follow this order.
_TABLE = """
water_clear  water_turbid .16 .15 .02 .03  .02 .03 .04  1.0  .022 .028 .014 .010 .007 .006 .005 .005 .003 .002
water_turbid water_clear  .30 .15 .03 .05  .02 .03 .06  1.0  .052 .080 .072 .060 .038 .032 .027 .024 .008 .005
conifer      broadleaf    .30 .15 .16 .10  .24 .22 .06  1.5  .013 .027 .018 .042 .120 .150 .165 .180 .075 .035
broadleaf    conifer      .30 .15 .14 .10  .20 .20 .06  1.5  .019 .043 .023 .070 .230 .300 .320 .335 .150 .070
meadow       dry_grass    .14 .14 .06 .08  .11 .10 .10  1.5  .032 .062 .040 .090 .260 .345 .370 .385 .200 .105
dry_grass    meadow       .30 .18 .10 .12  .12 .11 .12  1.5  .058 .085 .105 .140 .200 .220 .240 .260 .310 .215
scrub        dry_grass    .28 .18 .16 .16  .18 .17 .10  1.5  .034 .052 .052 .088 .160 .190 .205 .220 .205 .125
rock         soil_pale    .30 .20 .16 .18  .05 .03 .05  1.0  .095 .120 .145 .160 .175 .185 .195 .205 .260 .230
crop_green   soil         .16 .16 .05 .05  .12 .09 .07  1.5  .026 .056 .030 .080 .300 .395 .425 .440 .210 .105
crop_ripe    soil_pale    .25 .14 .05 .05  .11 .08 .07  1.5  .064 .098 .132 .168 .220 .242 .262 .280 .330 .240
soil         soil_pale    .30 .18 .05 .07  .10 .08 .09  1.0  .064 .090 .118 .138 .160 .175 .190 .205 .275 .225
soil_pale    soil         .25 .14 .05 .07  .09 .07 .09  1.0  .105 .148 .195 .220 .242 .260 .280 .298 .380 .320
orchard      scrub        .25 .15 .10 .08  .20 .20 .06  1.5  .026 .046 .034 .070 .200 .250 .270 .285 .160 .085
asphalt      concrete     .25 .14 .06 .05  .06 .03 .08  1.0  .078 .088 .092 .096 .102 .107 .112 .116 .130 .120
concrete     asphalt      .30 .14 .07 .05  .06 .04 .08  1.0  .130 .148 .162 .172 .180 .185 .190 .195 .220 .205
roof_metal   concrete     .35 .22 .04 .03  .05 .03 .05  0.4  .260 .270 .270 .272 .275 .275 .275 .275 .265 .250
roof_tile    roof_dark    .25 .16 .05 .03  .05 .03 .05  0.4  .062 .084 .140 .158 .175 .188 .198 .208 .240 .210
roof_dark    concrete     .20 .18 .05 .03  .05 .03 .05  0.4  .062 .068 .072 .078 .084 .090 .094 .098 .112 .102
setts        concrete     .25 .14 .06 .05  .15 .05 .06  1.0  .068 .078 .084 .090 .097 .103 .108 .112 .126 .116
brick        concrete     .25 .15 .06 .05  .10 .04 .06  1.0  .070 .088 .128 .144 .160 .172 .182 .190 .220 .195
road_paint   concrete     .20 .15 .04 .03  .05 .03 .05  1.0  .400 .420 .430 .430 .430 .430 .430 .430 .400 .380
roof_gravel  concrete     .30 .16 .06 .05  .15 .05 .06  0.4  .105 .118 .126 .134 .142 .148 .153 .158 .185 .172
roof_blue    roof_metal   .30 .16 .04 .03  .05 .03 .05  0.4  .235 .180 .110 .120 .150 .180 .200 .205 .215 .200
court        brick        .20 .12 .04 .04  .05 .03 .05  1.0  .052 .082 .190 .215 .235 .250 .262 .270 .290 .250
rubble       soil_pale    .30 .18 .10 .10  .20 .18 .12  1.0  .100 .118 .132 .142 .152 .160 .168 .175 .215 .198
glass        asphalt      .15 .15 .02 .02  .05 .03 .05  0.4  .034 .036 .036 .038 .040 .042 .044 .046 .050 .048
car_white    car_silver   .25 .15 .03 .02  .05 .03 .05  0.4  .480 .490 .490 .490 .485 .480 .475 .470 .430 .400
car_silver   car_black    .25 .18 .03 .02  .05 .03 .05  0.4  .210 .215 .215 .218 .220 .222 .224 .226 .230 .225
car_black    car_silver   .20 .18 .03 .02  .05 .03 .05  0.4  .028 .029 .029 .032 .035 .037 .039 .040 .045 .044
car_red      car_black    .25 .16 .03 .02  .05 .03 .05  0.4  .030 .034 .210 .270 .310 .330 .340 .345 .340 .320
car_blue     car_silver   .25 .18 .03 .02  .05 .03 .05  0.4  .135 .078 .048 .052 .090 .140 .170 .180 .200 .190
sand         soil_pale    .25 .12 .04 .05  .05 .03 .05  1.0  .190 .240 .290 .310 .325 .335 .345 .355 .420 .360
reed         dry_grass    .30 .16 .10 .14  .05 .03 .05  1.0  .034 .056 .050 .082 .150 .180 .195 .205 .130 .065
peat         reed         .30 .18 .10 .14  .05 .03 .05  1.0  .030 .042 .048 .066 .105 .122 .135 .145 .135 .085
heath        scrub        .25 .16 .12 .14  .05 .03 .05  1.0  .028 .042 .052 .078 .118 .138 .150 .162 .180 .110
"""
_ROWS = [row.split() for row in _TABLE.strip().splitlines()]
_NUMBERS = np.asarray([[float(number) for number in row[2:]] for row in _ROWS], dtype=np.float32)

NAMES = tuple(row[0] for row in _ROWS)
"""Of the materials, in order of their numbers."""

INDEX = {name: number for number, name in enumerate(NAMES)}
MEAN, TOWARD = _NUMBERS[:, 8:].copy(), _NUMBERS[[INDEX[row[1]] for row in _ROWS], 8:]
"""A pixel is (MEAN + t (TOWARD - MEAN)) exp(b), float32 [M, 10] each.

t moves along the line to another material (a crop towards bare soil), b is brightness. Both are drawn for each object,
and textured within it.
"""

STATE, SHADE, FINE, COARSE = _NUMBERS[:, :4].T.copy()
"""Standard deviations, float32 [M] each: of t and b between objects, of b within an object over 12 m and over 80 m."""

GRAIN = _NUMBERS[:, 4:7]
"""Standard deviation of b within an object, seen from an aeroplane, over 0.12, 0.6 and 6 m; float32 [M, 3]."""

BY_CLASS = _NUMBERS[:, 7].copy()
"""Factor on the spectral shift where it moves vegetation more than the ground, and roofs and cars less; float32 [M]."""

ARABLE = {"crop_green": 0.42, "crop_ripe": 0.22, "soil": 0.22, "soil_pale": 0.14}
HOUSES = {"roof_tile": 0.5, "roof_dark": 0.3, "concrete": 0.2}
HALLS = {"roof_metal": 0.45, "concrete": 0.25, "roof_dark": 0.3}
"""Usual mixtures of materials."""


def reflectance(material: np.ndarray, state: np.ndarray, shade: np.ndarray) -> np.ndarray:
    """Reflectance, float32 [10, H, W], of materials [H, W] with t (clipped to [-0.5, 1]) and b (to [-1.2, 0.7])."""
    start = MEAN.T[:, material]
    pixels = start + np.clip(state, -0.5, 1.0) * (TOWARD.T[:, material] - start)
    return np.maximum(pixels * np.exp(np.clip(shade, -1.2, 0.7)), np.float32(0.0005))
