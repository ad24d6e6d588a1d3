"""Acceptance of the aerial generator: same bytes, separate shifts, read like real data, learnable and not by colour."""

import hashlib
import json
import time
import warnings
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrs_lightning.cli.main import main
from fedrs_lightning.data.archives.isprs.potsdam import Potsdam
from fedrs_lightning.data.archives.isprs.vaihingen import Vaihingen
from fedrs_lightning.data.archives.loveda.archive import LoveDA
from fedrs_lightning.data.rasters.class_tables import ISPRS
from fedrs_lightning.data.rasters.rows import read_whole
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.aerial.archive import LAYOUTS
from fedrs_lightning.synth.aerial.camera import BOUNDARY, ISPRS_COLOURS, erode, isprs_classes, loveda_classes
from fedrs_lightning.synth.aerial.sample import AerialSample, aerial_style, paint, render
from fedrs_lightning.synth.aerial.scene import AerialScene, Kind
from fedrs_lightning.synth.aerial.town import street
from fedrs_lightning.synth.sample import write_sample
from fedrs_lightning.synth.scenes import spectra
from fedrs_lightning.synth.scenes.scene import Boxes
from fedrs_lightning.synth.scenes.shift import SpectralShift, Style

from .gap import spatial_gap, spectral_gap

DATASETS = ("potsdam", "vaihingen", "loveda")


def small(dataset, **options):
    """A sample of few pixels that still shows a street and some houses."""
    return AerialSample(dataset, **({"side": 128, "gsd_factor": 4} | options))


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SYNTHETIC.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("dataset", DATASETS)
def test_same_arguments_same_bytes(dataset, tmp_path):
    sample = small(dataset, spectral_shift=0.5, spatial_shift=0.5, domain=1, class_spectral=True)
    for name in ("first", "again"):
        assert write_sample(tmp_path / name, sample)
    first = digests(tmp_path / "first")
    assert first == digests(tmp_path / "again")
    assert not write_sample(tmp_path / "first", sample)
    with pytest.raises(DataError, match="holds another synthetic sample"):
        write_sample(tmp_path / "first", replace(sample, seed=1))
    (tile, *_) = sample.tiles()
    pixels, classes = render(sample, tile)
    for other in (replace(sample, seed=1), replace(sample, domain=2), replace(sample, spectral_shift=0.6)):
        assert not np.array_equal(render(other, tile)[0], pixels)
    # Nothing but colour knows of the spectral shift.
    assert np.array_equal(render(replace(sample, spectral_shift=0.0), tile)[1], classes)


@pytest.mark.parametrize("dataset", DATASETS)
def test_no_tile_depends_on_how_many_are_made(dataset):
    few, many = small(dataset), small(dataset, size="medium")
    assert set(few.tiles()) < set(many.tiles())
    last = few.tiles()[-1]
    assert np.array_equal(render(few, last)[0], render(many, last)[0])


@pytest.mark.parametrize("domain", range(4))
def test_at_zero_all_domains_share_one_distribution(domain):
    style, plain = aerial_style(0, domain, 0.0), Style()
    assert (style.scale, style.density, style.spread, style.winding, style.blur) == (1, 1, 1, plain.winding, 0)
    assert not any(style.preference.values())
    assert any(aerial_style(0, domain, 1.0).preference.values())
    sample = small("potsdam", domain=domain, side=256)
    scene = paint(sample, sample.tiles()[0])
    state = scene.rng.bit_generator.state
    lights = []
    for strength, by_class in ((0.0, False), (0.0, True), (1.0, False), (1.0, True)):
        scene.rng.bit_generator.state = state
        lights.append(scene.light(SpectralShift(0, domain, strength), by_class))
    assert np.array_equal(lights[0], lights[1])
    move = [np.abs(light - lights[0]).mean(axis=0) for light in lights[2:]]
    plants = np.isin(scene.material, [spectra.INDEX[name] for name in ("meadow", "broadleaf", "conifer", "scrub")])
    assert move[1][plants].mean() > 1.2 * move[0][plants].mean()
    assert move[1][scene.kind == Kind.BUILDING].mean() < 0.9 * move[0][scene.kind == Kind.BUILDING].mean()


def grounds(strength, per_domain=9):
    scenes = []
    for domain in range(3):
        sample = small("potsdam", size="medium", side=256, domain=domain, spatial_shift=strength)
        scenes.append([paint(sample, tile) for tile in sample.tiles()[:per_domain]])
    return scenes


def gaps(scenes, strengths):
    """Spectral gaps of materials at each strength, and the spatial gap of classes, of three domains."""
    pixels = [np.concatenate([scene.reflectance(3).reshape(10, -1) for scene in painted], axis=1) for painted in scenes]
    materials = [np.concatenate([scene.material[::3, ::3].ravel() for scene in painted]) for painted in scenes]
    spectral = []
    for strength in strengths:
        moved = [
            SpectralShift(0, domain, strength)(values[:, :, None])[:, :, 0] for domain, values in enumerate(pixels)
        ]
        spectral.append(spectral_gap(list(zip(moved, materials, strict=True))))
    return spectral, spatial_gap(
        [[isprs_classes(scene) for scene in painted] for painted in scenes], scenes[0][0].pixel
    )


def test_each_shift_moves_its_own_gap_only():
    spectral, still = gaps(grounds(0.0), (0, 0.25, 0.5, 1))
    assert spectral[0] < 0.25
    assert all(later > 1.3 * earlier for earlier, later in pairwise(spectral))
    beside, spatial = [], [still]
    for strength in (0.25, 0.5, 1):
        (gap,), moved = gaps(grounds(strength), (0,))
        beside.append(gap)
        spatial.append(moved)
    assert still < 0.06
    assert all(later > earlier for earlier, later in pairwise(spatial))
    assert spatial[-1] > 2.5 * still
    assert max(beside) < 0.7 * spectral[1]  # noise of the means stays below the smallest spectral shift


def test_views_and_labels_are_of_one_scene(tmp_path):
    sample = small("potsdam", spectral_shift=0.3)
    write_sample(tmp_path / "p", sample)
    pixels, classes = render(sample, sample.tiles()[0])
    top = tmp_path / "p"
    views = {name: read_whole(next(top.glob(f"*_Ortho_{name}/*2_10_{name}.tif"))) for name in ("RGB", "IRRG", "RGBIR")}
    assert np.array_equal(views["RGBIR"], pixels.transpose(2, 0, 1))
    assert np.array_equal(views["RGB"], views["RGBIR"][:3])
    assert np.array_equal(views["IRRG"], views["RGBIR"][[3, 0, 1]])
    full = read_whole(top / "5_Labels_all" / "top_potsdam_2_10_label.tif")
    ids, unknown = ISPRS.decode(full)
    assert unknown == 0
    assert np.array_equal(ids, classes)
    assert set(np.unique(classes)) >= {0, 1, 2, 3}
    eroded = read_whole(top / "5_Labels_all_noBoundary" / "top_potsdam_2_10_label_noBoundary.tif")
    black = (eroded == 0).all(axis=0)
    assert np.array_equal(np.where(black, full * 0, full), eroded)
    # Black is what has another class within three pixels, by brute force.
    size, grid = 40, np.indices((128, 128)).reshape(2, -1)
    for row, column in np.random.default_rng(0).integers(0, size, (200, 2)):
        disc = (grid[0] - row) ** 2 + (grid[1] - column) ** 2 <= 9
        assert black[row, column] == (len(np.unique(classes.ravel()[disc])) > 1)
    assert json.loads((top / "SYNTHETIC.json").read_text())["parameters"]["spectral_shift"] == 0.3
    vegetation, sealed = (views["RGBIR"][:, (ids == label)].mean(axis=1) for label in (2, 0))
    assert vegetation[3] - vegetation[0] > 60  # near infrared
    assert abs(sealed[3] - sealed[0]) < 40


def test_erosion_of_a_square():
    square = np.zeros((20, 20), dtype=np.uint8)
    square[5:15, 5:15] = 1
    eroded = erode(square)
    assert np.array_equal(np.argwhere(eroded == 1).min(axis=0), [8, 8])
    assert np.count_nonzero(eroded == 1) == 16
    assert eroded[0, 0] == 0
    assert eroded[4, 10] == BOUNDARY
    assert (ISPRS_COLOURS[BOUNDARY] == 0).all()


def test_scene_measures_in_metres():
    scene = AerialScene(40, 0.2, numpy_stream(0, "test"), Style(winding=0))
    line = street(scene, 0.3, 2.0, 3.0)
    distance, along = scene.ribbon(line.points, 5.0)
    exact = np.abs(np.cos(0.3) * scene.y - np.sin(0.3) * scene.x - 2.0)
    near = exact < 4.9
    assert np.allclose(distance[near], exact[near], atol=1e-3)
    assert np.isinf(distance[exact > 5.1]).all()
    u = np.cos(0.3) * scene.x + np.sin(0.3) * scene.y
    assert np.allclose((along - u)[near], (along - u)[near].mean(), atol=0.01)
    points, normals, heading = line.frames(np.asarray([10.0, 20.0]))
    assert np.allclose(np.diff(points, axis=0), 10 * np.asarray([[np.cos(0.3), np.sin(0.3)]]))
    assert np.allclose(normals, [[-np.sin(0.3), np.cos(0.3)]] * 2)
    assert np.allclose(heading, 0.3)
    # Many objects are stamped in parts; the numbers stay those of the list.
    centres = scene.rng.uniform(-18, 18, (40, 2))
    owner = scene.stamp(Boxes(np.concatenate([[[500.0, 0.0]], centres]), np.full((41, 2), 0.5), np.zeros(41)))
    assert set(np.unique(owner)) <= set(range(-1, 41)) - {0}
    assert np.all(scene.at(owner, centres) >= np.arange(1, 41))  # of two that overlap, the later one
    tower = np.where((np.abs(scene.x) < 2) & (np.abs(scene.y) < 2), 0, -1)
    scene.cast(tower, 6.0)
    shaded = scene.shadow > 0
    assert not shaded[tower == 0].any()
    assert shaded.any()
    assert scene.x[shaded].max() < 2
    assert scene.y[shaded].max() < 2
    assert np.hypot(scene.x[shaded] + 2, scene.y[shaded] + 2).max() == pytest.approx(6.0, abs=0.5)


def test_urban_and_rural_differ_with_the_spatial_shift_only():
    def built(strength):
        sample = small("loveda", size="small", spatial_shift=strength, gsd_factor=2)
        share = {"Urban": [], "Rural": []}
        for tile in sample.tiles()[:28]:
            classes = loveda_classes(paint(sample, tile))
            share[tile.part.split("/")[1]].append(np.isin(classes, (2, 3)).mean())
        return [float(np.mean(values)) for values in share.values()]

    urban, rural = built(0.0)
    assert abs(urban - rural) < 0.1
    urban, rural = built(1.0)
    assert urban > rural + 0.2


READERS = {
    "potsdam": [lambda root, modality=modality: Potsdam(root, modality) for modality in ("rgb", "irrg", "rgbir")],
    "vaihingen": [Vaihingen, lambda root: Vaihingen(root, gsd="native")],
    "loveda": [lambda root, area=area: LoveDA(root, area) for area in ("urban", "rural")],
}


@pytest.mark.parametrize(
    ("dataset", "layout"), [(dataset, layout) for dataset in DATASETS for layout in LAYOUTS[dataset]]
)
def test_readers_and_check_accept_every_layout(dataset, layout, tmp_path):
    root = str(tmp_path / "sample")
    sample = small(dataset, layout=layout, spectral_shift=1.0, spatial_shift=1.0)
    write_sample(Path(root), sample)
    readers = READERS[dataset][:1] if layout == "converted" else READERS[dataset]
    for make in readers if layout != "participants" else ():  # test tiles have no labels there
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            survey = make(root).listing()
            assert survey.facts["synthetic"]
            assert survey.train
            assert survey.test
            with survey.train[0].open() as tile:
                assert tile.image.rows(0, tile.image.height).std() > 5
                assert len(np.unique(tile.ids.rows(0, tile.ids.height))) > 2
                assert tile.finish() == 0
    for deep in (False, True):
        report = {"potsdam": Potsdam, "vaihingen": Vaihingen, "loveda": LoveDA}[dataset](str(root)).check(deep)
        loud = [finding for finding in report.findings if finding.severity != "note"]
        if layout == "participants":
            assert len(loud) == 1
            assert "has no label" in loud[0].message
        else:
            assert not loud
        assert report.synthetic
    assert sum(report.counts.values()) > 0


@cache
def crops(sample, part, number):
    """64-pixel crops in red, green and blue, and their classes with clutter ignored."""
    images, masks = [], []
    for tile in [tile for tile in sample.tiles() if tile.part == part][:number]:
        pixels, classes = render(sample, tile)
        for row in range(0, tile.height, 64):
            for column in range(0, tile.width, 64):
                images.append(pixels[row : row + 64, column : column + 64, :3])
                masks.append(classes[row : row + 64, column : column + 64])
    masks = torch.from_numpy(np.stack(masks)).long()
    return (torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() - 95) / 45, torch.where(
        masks == 5, 255, masks
    )


class Small(nn.Module):
    """Three scales with skips."""

    def __init__(self, width=12):
        super().__init__()

        def block(before, after, stride=1):
            return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

        self.down = nn.ModuleList(
            [
                block(3, width),
                nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width)),
                nn.Sequential(block(2 * width, 4 * width, 2), block(4 * width, 4 * width)),
                nn.Sequential(block(4 * width, 4 * width, 2), block(4 * width, 4 * width)),
            ]
        )
        self.up = nn.ModuleList([block(8 * width, 2 * width), block(4 * width, width), block(2 * width, width)])
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        for layer, skip in zip(self.up, skips[-2::-1], strict=True):
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), skip], 1))
        return self.head(x)


def trained(images, masks, epochs=6):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Small()
        optimizer = torch.optim.Adam(model.parameters(), 4e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(12):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]), masks[rows], ignore_index=255).backward()
                optimizer.step()
    return model.eval()


def accuracy(predicted, masks):
    return (predicted == masks)[masks < 5].float().mean().item()


def test_a_small_network_learns_it_and_loses_in_another_domain():
    """Stated: 96 crops and a few CPU seconds give a pixel accuracy of 0.62 (chance 0.33), and about the same in another
    domain of the same distribution; colour alone gives less than 0.45; at S = 1 the other domain costs 0.2.

    Measured over seeds 0, 1, 2: 0.77, 0.69, 0.77; colour alone 0.36, 0.36, 0.38; loss at S = 1 0.27, 0.33, 0.31.
    """
    plain = small("potsdam", size="medium", side=256)
    data, test = crops(plain, "train", 6), crops(plain, "test", 4)
    start = time.process_time()
    model = trained(*data)
    seconds = time.process_time() - start

    def score(model, sample):
        images, masks = crops(sample, "test", 4)
        with torch.no_grad():
            return accuracy(model(images).argmax(1), masks)

    same = score(model, plain)
    assert same > 0.62
    assert abs(score(model, replace(plain, domain=1)) - same) < 0.12
    assert seconds < 30  # about 3 on one core

    means = torch.stack([data[0].permute(1, 0, 2, 3)[:, data[1] == label].mean(1) for label in range(5)])
    nearest = (test[0].permute(0, 2, 3, 1)[..., None, :] - means).square().sum(-1).argmin(-1)
    assert accuracy(nearest, test[1]) < 0.45

    shifted = replace(plain, spectral_shift=1.0)
    model = trained(*crops(shifted, "train", 6))
    assert score(model, replace(shifted, domain=1)) < score(model, shifted) - 0.2


def test_command_line_makes_federations(tmp_path, capsys):
    common = ["--side", "64", "--gsd-factor", "4", "--spectral-shift", "0.6"]
    assert main(["data", "synth", "potsdam", "--out", str(tmp_path / "all"), "--domains", "3", *common]) == 0
    assert main(["data", "synth", "potsdam", "--out", str(tmp_path / "one"), "--domain", "2", *common]) == 0
    assert "3 synthetic tiles, domain 2" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["domain0", "domain1", "domain2"]
    assert digests(tmp_path / "all" / "domain2") == digests(tmp_path / "one")
    assert digests(tmp_path / "all" / "domain1") != digests(tmp_path / "one")
    assert main(["data", "synth", "loveda", "--out", str(tmp_path / "l"), "--side", "64", "--class-spectral"]) == 0
    parameters = json.loads((tmp_path / "l" / "SYNTHETIC.json").read_text())["parameters"]
    assert (parameters["spatial_shift"], parameters["class_spectral"]) == (0.5, True)
    assert len(list((tmp_path / "l").rglob("*.png"))) == 16


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["potsdam", "--spatial-shift", "2"], "spatial_shift must be in [0, 1]"),
        (["potsdam", "--spectral-shift", "-1"], "spectral_shift must be in [0, 1]"),
        (["potsdam", "--domains", "2", "--domain", "2"], "--domain must be in 0..1"),
        (["potsdam", "--domain", "-1"], "domain must be 0 or more"),
        (["vaihingen", "--side", "20"], "side must be in 64..4096"),
        (["vaihingen", "--gsd-factor", "0.5"], "gsd_factor must be in 1..20"),
        (["loveda", "--layout", "gts"], "layout of loveda must be one of official, converted, got 'gts'"),
        (["loveda", "--with-defect", "stray-color"], "unknown defect 'stray-color' of loveda"),
        (["potsdam", "--with-defect", "stray-color"], "did you mean 'stray-colour'?"),
        (["potsdam", "--with-defect", "zipped,alpha"], "cannot be combined"),
        (["potsdam", "--with-defect", "alpha", "--layout", "flat"], "defect 'alpha' needs --layout official"),
        (["potsdam", "--with-defect", "colour-annotation"], "needs --layout converted"),
        (["eurosat", "--domain", "0"], "--domain is for potsdam, vaihingen and loveda"),
        (["eurosat", "--gsd-factor", "2"], "--gsd-factor is for potsdam, vaihingen and loveda"),
        (["eurosat", "--class-spectral"], "--class-spectral is for potsdam, vaihingen and loveda"),
    ],
)
def test_refuses_impossible_samples(argv, message, tmp_path, capsys):
    assert main(["data", "synth", *argv, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_side_and_shift_are_checked_in_python_too():
    with pytest.raises(ConfigError, match="side must be"):
        AerialSample("potsdam", side=5000)
