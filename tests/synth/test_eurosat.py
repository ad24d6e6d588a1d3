"""Acceptance of the generator: same bytes, separate shifts, learnable, and read like real data."""

import hashlib
import json
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from fedrs_lightning.data.archives.eurosat.files import CLASSES
from fedrs_lightning.errors import ConfigError, DataError
from fedrs_lightning.seeding import numpy_stream
from fedrs_lightning.synth.eurosat import defects
from fedrs_lightning.synth.eurosat.sample import EuroSATSample, encode_jpeg, paint_scene, render_tile
from fedrs_lightning.synth.sample import write_sample
from fedrs_lightning.synth.scenes import sensor, spectra
from fedrs_lightning.synth.scenes.scene import Boxes, Scene, blur
from fedrs_lightning.synth.scenes.shift import SpectralShift, Style, spatial_style

from .gap import run_lengths, spatial_gap, spectral_gap


def digest(folder):
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def test_same_arguments_same_bytes(sample, tmp_path):
    for name in ("first", "again"):
        write_sample(tmp_path / name, EuroSATSample(tiles=3, domains=2, spectral_shift=0.5, spatial_shift=0.5))
    assert digest(tmp_path / "first") == digest(tmp_path / "again")
    assert (
        encode_jpeg(render_tile(EuroSATSample(seed=1, domains=2), "River", 1))
        != (sample / "2750" / "River" / "River_1.jpg").read_bytes()
    )


def test_no_tile_depends_on_how_many_are_made(sample):
    for name, number in [("Forest", 3), ("Residential", 20)]:
        alone = encode_jpeg(render_tile(EuroSATSample(tiles=300, domains=2), name, number))
        assert alone == (sample / "2750" / name / f"{name}_{number}.jpg").read_bytes()


@pytest.mark.parametrize("domain", range(4))
def test_no_spectral_shift_is_exactly_the_identity(domain):
    pixels = np.random.default_rng(domain).random((10, 8, 8), dtype=np.float32)
    pixels[:, 0, 0], pixels[:, 1, 1] = -0.01, 1.7  # beyond the range that shifted pixels are clipped to
    shift = SpectralShift(0, domain, 0.0)
    assert np.array_equal(shift(pixels), pixels)
    assert np.array_equal(shift.mix, np.eye(10, dtype=np.float32))
    assert np.all(shift.gain == 1)
    assert not shift.offset.any()
    strong = SpectralShift(0, domain, 1.0)
    assert np.abs((strong.mix - np.eye(10)).sum(axis=1)).max() < 1e-6  # mixing rows sum to zero
    assert 0.5 < strong.gain.min() < strong.gain.max() < 1.7
    assert np.abs(strong.offset).max() <= 0.06
    flat = np.full((10, 1, 1), 0.2, dtype=np.float32)  # equal bands stay equal up to gain and offset
    assert strong(flat).ravel() == pytest.approx(np.clip(0.2 * strong.gain + strong.offset, 1e-4, 1.5), rel=1e-5)


def test_no_spatial_shift_is_one_style_for_all():
    plain = Style()
    for domain in range(4):
        style = spatial_style(0, domain, 0.0)
        assert (style.scale, style.density, style.spread, style.winding, style.blur) == (1, 1, 1, plain.winding, 0)
        assert not any(style.preference.values())
        assert spatial_style(0, domain, 1.0).scale != 1


def measure(sample, spectral, per_class=8):
    """Spectral gaps for each strength, and the spatial gap, of the painted ground of all domains."""
    painted = []
    for domain in range(sample.domains):
        style = spatial_style(sample.seed, domain, sample.spatial_shift)
        numbers = range(domain + 1, per_class * sample.domains + 1, sample.domains)
        painted.append([paint_scene(sample, name, number, style) for name in CLASSES for number in numbers])
    maps = [[scene.material for scene in scenes] for scenes in painted]
    pixels = [
        np.concatenate([scene.reflectance().reshape(10, -1)[:, ::7] for scene in scenes], axis=1) for scenes in painted
    ]
    materials = [np.concatenate([scene.material.ravel()[::7] for scene in scenes]) for scenes in painted]
    gaps = []
    for strength in spectral:
        shifts = [SpectralShift(sample.seed, domain, strength) for domain in range(sample.domains)]
        shifted = [shift(values[:, :, None])[:, :, 0] for shift, values in zip(shifts, pixels, strict=True)]
        gaps.append(spectral_gap(list(zip(shifted, materials, strict=True))))
    return gaps, spatial_gap(maps, 5.0)


def test_each_shift_moves_its_own_gap_only():
    def sample(strength):
        return EuroSATSample(tiles=24, domains=3, spatial_shift=strength)

    spectral, still = measure(sample(0.0), [0, 0.25, 0.5, 1])
    assert spectral[0] < 0.25
    assert spectral[1] > 3 * spectral[0]
    assert all(later > 1.3 * earlier for earlier, later in pairwise(spectral))

    spatial, beside = [still], [spectral[0]]
    for strength in (0.25, 0.5, 1.0):
        (gap,), moved = measure(sample(strength), [0])
        spatial.append(moved)
        beside.append(gap)
    assert still < 0.07
    assert all(later > earlier for earlier, later in pairwise(spatial))
    assert spatial[-1] > 2 * still
    assert max(beside) < beside[0] + 0.12  # noise of the means; the smallest spectral shift moves them by 0.7
    # The ground itself does not know of the spectral shift, so that one cannot move the spatial gap at all.
    shifted, style = EuroSATSample(tiles=24, domains=3, spectral_shift=1.0), spatial_style(0, 1, 0.0)
    first, second = (paint_scene(given, "Highway", 2, style).material for given in (sample(0.0), shifted))
    assert np.array_equal(first, second)


def test_gap_measures_against_hand_made_domains():
    rng = np.random.default_rng(0)
    materials = np.repeat([0, 1], 5000)
    domains = [(rng.normal(shift, 0.5, (10, 10000)), materials) for shift in (0.0, 1.0)]
    assert spectral_gap(domains) == pytest.approx(2.0, rel=0.03)
    with pytest.raises(ValueError, match="no material has enough pixels"):
        spectral_gap([(pixels[:, :50], materials[:50]) for pixels, _ in domains])
    assert run_lengths(np.asarray([[1, 1, 2], [2, 2, 2]])).tolist() == [2, 1, 3]
    coarse, fine = np.kron(np.eye(2, dtype=int), np.ones((8, 8), dtype=int)), np.indices((16, 16)).sum(axis=0) % 2
    assert spatial_gap([[coarse], [coarse]], 5.0) == 0
    assert spatial_gap([[coarse], [fine]], 5.0) == pytest.approx(0.5)  # same areas, no common size


def tiles(sample, numbers):
    return network_input(
        [sensor.to_rgb(render_tile(sample, name, number)) for name in CLASSES for number in numbers], len(numbers)
    )


def network_input(images, per_class):
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return F.avg_pool2d((pixels - 95) / 38, 2), torch.arange(10).repeat_interleave(per_class)


def train_cnn(images, labels, epochs=14):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = []
        for before, after in [(3, 16), (16, 32), (32, 64)]:
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(25):
                optimizer.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()
    return model.eval()


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def test_a_small_network_learns_it_and_loses_in_another_domain():
    """Stated: 250 tiles and a few CPU seconds give 0.55 at S = T = 0 (measured 0.66 to 0.72 over three seeds).

    At S = 1 the other domain costs 0.2 with this seed (measured 0.22, 0.41 and 0.43 for seeds 0, 1, 2).
    """
    plain = EuroSATSample(seed=1, tiles=50, domains=2)
    shifted = replace(plain, spectral_shift=1.0)
    here, there = range(1, 51, 2), range(2, 51, 4)
    data = tiles(plain, here)
    start = time.process_time()
    model = train_cnn(*data)
    seconds = time.process_time() - start
    same = accuracy(model, *tiles(plain, there))
    other = accuracy(train_cnn(*tiles(shifted, here)), *tiles(shifted, there))
    assert same > 0.55
    assert other < same - 0.20
    assert seconds < 20  # about 2 on one core


def test_classes_cannot_be_told_by_mean_colour_alone(sample):
    """Nearest class mean of mean colours, leaving the tile out: clearly above chance, far from solved."""
    paths = [sample / "2750" / name / f"{name}_{number}.jpg" for name in CLASSES for number in range(1, 21)]
    images, labels = network_input([np.asarray(Image.open(path)) for path in paths], 20)
    colours = images.mean(dim=(2, 3))
    hits = 0
    for number in range(len(colours)):
        others = torch.arange(len(colours)) != number
        means = torch.stack([colours[others & (labels == label)].mean(0) for label in range(10)])
        hits += int((means - colours[number]).norm(dim=1).argmin() == labels[number])
    assert 0.25 < hits / len(colours) < 0.65


def test_reflectance_stays_plausible():
    assert spectra.MEAN.shape == (len(spectra.NAMES), 10)
    for name in CLASSES:
        pixels = render_tile(EuroSATSample(), name, 1)
        assert pixels.shape == (10, 64, 64)
        assert pixels.dtype == np.float32
        assert -0.02 < pixels.min() < pixels.max() < 1.5
        assert sensor.to_l1c(pixels).dtype == np.uint16
    vegetation, water = (render_tile(EuroSATSample(), name, 2).mean(axis=(1, 2)) for name in ("Forest", "SeaLake"))
    assert vegetation[spectra.NIR] > 3 * vegetation[spectra.RED]
    assert water[spectra.NIR] < water[spectra.BLUE]


def test_scene_primitives():
    scene = Scene(640, 5, numpy_stream(0, "test"), Style())
    field = np.stack([Scene(640, 5, numpy_stream(number, "test"), Style()).noise(40) for number in range(60)])
    assert field.std() == pytest.approx(1, abs=0.03)
    assert np.mean(field[:, :, :-8] * field[:, :, 8:]) == pytest.approx(np.exp(-1), abs=0.06)  # correlation at 40 m
    centres, halves = np.asarray([[0.0, 0.0], [100.0, 50.0]]), np.asarray([[40.0, 20.0], [30.0, 30.0]])
    owner = scene.stamp(Boxes(centres, halves, np.asarray([0.5, 0.0])))
    assert np.count_nonzero(owner == 0) * 25 == pytest.approx(80 * 40, rel=0.05)
    assert np.count_nonzero(owner == 1) * 25 == pytest.approx(60 * 60, rel=0.05)
    disc = scene.stamp(Boxes(np.asarray([[0.0, 0.0]]), np.asarray([[50.0, 50.0]]), np.zeros(1)), round_=True)
    assert np.count_nonzero(disc == 0) * 25 == pytest.approx(np.pi * 2500, rel=0.05)
    owner, count = scene.parcels(200, 100, 10)
    assert np.array_equal(np.unique(owner), np.arange(count))
    road = scene.curve(0.0) < 10
    assert np.count_nonzero(road) * 25 == pytest.approx(20 * 640, rel=0.5)  # 585 to 905 m long, by direction and place
    impulse = np.zeros((1, 31, 31), dtype=np.float32)
    impulse[0, 15, 15] = 1
    spread = blur(impulse, 1.5)[0]
    rows = np.arange(31) - 15
    assert spread.sum() == pytest.approx(1, abs=1e-5)
    assert (spread.sum(axis=0) * rows**2).sum() == pytest.approx(1.5**2, rel=0.02)


def test_sample_folder(sample, tmp_path):
    assert sorted(path.name for path in sample.iterdir()) == ["2750", "SYNTHETIC.json", "attributes.csv"]
    marker = json.loads((sample / "SYNTHETIC.json").read_text())
    assert marker["parameters"]["tiles"] == 20
    assert (sample / "attributes.csv").read_text().splitlines()[:3] == [
        "file,domain",
        "AnnualCrop/AnnualCrop_1.jpg,0",
        "AnnualCrop/AnnualCrop_2.jpg,1",
    ]
    small = EuroSATSample(tiles=1)
    (tmp_path / "out").mkdir()
    assert write_sample(tmp_path / "out", small)
    assert not write_sample(tmp_path / "out", small)
    with pytest.raises(DataError, match="holds another synthetic sample; give another --out"):
        write_sample(tmp_path / "out", EuroSATSample(tiles=1, seed=1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(DataError, match="holds other things"):
        write_sample(tmp_path / "mine", small)
    with pytest.raises(DataError, match="cannot write the sample"):
        write_sample(tmp_path / "mine" / "notes.txt" / "out", small)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two tiles of each class. Read only."""
    out = tmp_path_factory.mktemp("synthetic") / "plain"
    write_sample(out, EuroSATSample(tiles=2))
    return out


@pytest.mark.parametrize("name", defects.DEFECTS)
def test_each_defect_is_written_and_listed(plain, tmp_path, name):
    faulty = tmp_path / "faulty"
    write_sample(faulty, EuroSATSample(tiles=2, defects=(name,)))
    assert json.loads((faulty / "SYNTHETIC.json").read_text())["parameters"]["defects"] == [name]
    assert digest(faulty / "2750" if (faulty / "2750").exists() else faulty) != digest(plain / "2750")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spectral_shift": 1.5}, "spectral_shift must be in"),
        ({"spatial_shift": -0.1}, "spatial_shift must be in"),
        ({"domains": 0}, "domains must be in 1..20"),
        ({"layout": "EuroSat"}, "layout must be one of"),
        ({"defects": ("gray",)}, "unknown defect 'gray'; did you mean 'grey'"),
        ({"defects": ("zipped", "grey")}, "cannot be combined"),
        ({"defects": ("grey",), "layout": "EuroSAT_MS"}, "needs a layout with JPEGs"),
    ],
)
def test_refuses_impossible_samples(arguments, message):
    with pytest.raises(ConfigError, match=message):
        EuroSATSample(**arguments)
