"""One transform for images, bands of two resolutions, and masks; against NumPy, Pillow and a bicubic in float64."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from fedrs_lightning.data.transforms.dihedral import dihedral, draw_dihedral
from fedrs_lightning.data.transforms.transform import Transform
from fedrs_lightning.seeding import torch_stream

# Images ---------------------------------------------------------------------------------------------------------------


def turn(image, draw):
    """Flips and a quarter turn with NumPy."""
    horizontal, vertical, quarters = (int(value) for value in draw)
    image = np.flip(image, -1) if horizontal else image
    image = np.flip(image, -2) if vertical else image
    return np.rot90(image, quarters, axes=(-2, -1))


def noise(shape, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_normalises_in_float32(dtype):
    raw = noise((5, 3, 8, 8), dtype)
    mean, std, scale = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6], 1 / np.iinfo(dtype).max
    image, label = torch.from_numpy(raw), torch.arange(5)
    draws = draw_dihedral(5, torch_stream(1, "test"))
    batch = Transform([mean], [std], scale)({"image": image, "label": label}, draws)
    shape = (1, 3, 1, 1)
    turned = np.stack([turn(one, draw) for one, draw in zip(raw, draws, strict=True)]).astype(np.float64)
    wanted = (turned * scale - np.reshape(mean, shape)) / np.reshape(std, shape)
    assert batch["image"].dtype == torch.float32
    assert batch["label"] is label
    assert np.abs(batch["image"].numpy() - wanted).max() < 1e-5
    assert batch["image"].is_contiguous()
    assert np.array_equal(image.numpy(), raw)  # the source is not written to


def test_a_float_source_is_not_normalised_in_place():
    raw = torch.ones(2, 1, 4, 4)
    Transform([[0.5]], [[0.5]])({"image": raw, "label": torch.zeros(2)})
    assert torch.equal(raw, torch.ones(2, 1, 4, 4))


@pytest.mark.parametrize("size", [32, 24, 100])
def test_resizes_like_pillow(size):
    raw = noise((2, 3, 64, 64))
    found = Transform([[0.0] * 3], [[1.0] * 3], image_size=size)({"image": torch.from_numpy(raw)})["image"].numpy()
    for image, bands in zip(raw, found, strict=True):
        for band, ours in zip(image, bands, strict=True):
            theirs = Image.fromarray(band.astype(np.float32)).resize((size, size), Image.Resampling.BILINEAR)
            assert np.abs(ours - np.asarray(theirs)).max() < 0.01


def test_chosen_bands_of_one_array():
    raw = noise((4, 5, 6, 6), np.uint16)
    stored, bands = {"image": tuple("abcde")}, ("d", "a")
    transform = Transform([[1.0, 2.0]], [[2.0, 4.0]], 0.5, stored, bands)
    batch = {"image": torch.from_numpy(raw), "label": torch.zeros(4)}
    draws = transform.draw(4, torch_stream(2, "test"))
    turned = np.stack([turn(one, draw) for one, draw in zip(raw[:, [3, 0]], draws, strict=True)]).astype(np.float64)
    wanted = (0.5 * turned - np.reshape([1.0, 2.0], (1, 2, 1, 1))) / np.reshape([2.0, 4.0], (1, 2, 1, 1))
    assert np.abs(transform(batch, draws)["image"].numpy() - wanted).max() < 1e-2


# Bands of two resolutions ---------------------------------------------------------------------------------------------

FINE, COARSE = ("f0", "f1"), ("c0", "c1", "c2")
ALL = ("f0", "c0", "c1", "f1", "c2")


def patches(count=4, side=12):
    fine, coarse = noise((count, 2, side, side), np.uint16), noise((count, 3, side // 2, side // 2), np.uint16, 1)
    entries = {"group": torch.arange(count) % 2, "label": torch.ones(count, 19)}
    return {"image10": torch.from_numpy(fine), "image20": torch.from_numpy(coarse)} | entries


def matrix(size, aligned):
    """Bicubic doubling of a row as a matrix [2 * size, size], float64: cubic convolution with a = -0.75, edges
    repeated.
    """

    def weight(x, a=-0.75):
        x = abs(x)
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    result = np.zeros((2 * size, size))
    for row in range(2 * size):
        place = row * (size - 1) / (2 * size - 1) if aligned else (row + 0.5) / 2 - 0.5
        for tap in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
            result[row, min(max(tap, 0), size - 1)] += weight(place - tap)
    return result


def joined(bands=ALL, mean=None, std=None, **options):
    mean, std = mean or [[0.0] * len(bands)], std or [[1.0] * len(bands)]
    return Transform(mean, std, 1.0, {"image10": FINE, "image20": COARSE}, bands, **options)


@pytest.mark.parametrize("kernel", ["torch", "rsim"])
def test_bands_against_a_float64_bicubic(kernel):
    given = patches()
    found = joined(kernel=kernel)(given)["image"]
    resize = matrix(6, kernel == "rsim")
    coarse = resize @ given["image20"].numpy().astype(np.float64) @ resize.T
    fine = given["image10"].numpy().astype(np.float64)
    expected = np.stack([fine[:, 0], coarse[:, 0], coarse[:, 1], fine[:, 1], coarse[:, 2]], axis=1)
    assert found.dtype == torch.float32
    assert_close(found.double(), torch.from_numpy(expected), rtol=1e-5, atol=0.1)
    assert (found[:, 0] == torch.from_numpy(fine[:, 0]).float()).all()
    assert found.min() < 0  # overshoot of noise, not clipped and not wrapped around


def test_chosen_bands_in_the_given_order():
    whole, given = joined()(patches())["image"], patches()
    for bands in (("c2", "f1"), ("f1", "f0"), ("c1",)):
        assert (joined(bands)(given)["image"] == whole[:, [ALL.index(band) for band in bands]]).all()


def test_augmentation_turns_all_bands_alike():
    given, transform = patches(16), joined()
    draws = transform.draw(16, torch.Generator().manual_seed(3))
    assert len(draws.unique(dim=0)) > 4
    assert_close(transform(given, draws)["image"], dihedral(transform(given)["image"], draws), rtol=1e-5, atol=0.1)


def test_normalisation_by_group_and_what_passes_through():
    mean, std = [[10.0, 20, 30, 40, 50], [1.0, 2, 3, 4, 5]], [[2.0, 3, 4, 5, 6], [7.0, 8, 9, 10, 11]]
    given = patches()
    before = {name: values.clone() for name, values in given.items()}
    found = joined(mean=mean, std=std)(given)
    pixels = joined()(given)["image"].double()
    middle, deviation = (torch.tensor(rows)[given["group"], :, None, None] for rows in (mean, std))
    assert_close(found["image"].double(), (pixels - middle) / deviation, rtol=1e-5, atol=1e-2)
    assert set(found) == {"image", "label"}
    assert all((given[name].to(torch.float64) == values.to(torch.float64)).all() for name, values in before.items())


def test_resize_of_all_bands():
    found, whole = joined(image_size=6)(patches())["image"], joined()(patches())["image"]
    expected = torch.nn.functional.interpolate(whole, size=(6, 6), mode="bilinear", antialias=True, align_corners=False)
    assert (found == expected).all()
    assert joined(image_size=12)(patches())["image"].shape == whole.shape


# Crops with masks -----------------------------------------------------------------------------------------------------


def crops(count=40, side=8, domains=2, dtype=torch.uint8):
    """Images whose three bands hold the row, the column and the sample; the mask holds row + column."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    image = torch.stack([torch.stack([rows, columns, torch.full_like(rows, number)]) for number in range(count)])
    mask = (rows + columns).expand(count, -1, -1).to(torch.uint8).contiguous()
    domain = torch.arange(count) % domains
    return {"image": image.to(dtype), "mask": mask, "domain": domain, "group": domain}


def cropping(window=8, augment=True):
    return Transform([[0.0] * 3] * 2, [[1.0] * 3] * 2, augment=augment, crop=8, window=window)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
@pytest.mark.parametrize("window", [8, 13])
def test_image_and_mask_move_together(window, dtype):
    batch, transform = crops(side=window, dtype=dtype), cropping(window)
    draws = transform.draw(40, torch.Generator().manual_seed(0))
    result = transform(batch, draws)
    image, mask = result["image"].long(), result["mask"]
    assert image.shape == (40, 3, 8, 8)
    assert mask.dtype == torch.int64
    assert torch.equal(mask, image[:, 0] + image[:, 1])
    assert torch.equal(image[:, 2], torch.arange(40)[:, None, None].expand(-1, 8, 8))
    for number in range(40):  # a square of neighbouring pixels, in one of eight positions
        rows, columns = image[number, 0], image[number, 1]
        top, left = int(rows.min()), int(columns.min())
        assert sorted(map(tuple, torch.stack([rows, columns], -1).reshape(-1, 2).tolist())) == [
            (row, column) for row in range(top, top + 8) for column in range(left, left + 8)
        ]
    first = {(int(image[number, 0, 0, 0]), int(image[number, 1, 0, 0])) for number in range(40)}
    assert len(first) == 4 if window == 8 else len(first) > 10
    assert int(batch["image"].long().sum()) == int(crops(side=window)["image"].long().sum())  # input untouched


def test_random_crops_reach_every_place():
    transform = cropping(10, augment=False)
    draws = transform.draw(600, torch.Generator().manual_seed(1))
    corners = transform(crops(600, 10), draws)["image"][:, :2, 0, 0].long()
    places, counts = torch.unique(corners, dim=0, return_counts=True)
    assert len(places) == 9
    assert counts.min() > 35
    centre = transform(crops(4, 10))["image"]  # without draws
    assert (centre[:, 0, 0] == 1).all()
    assert transform(crops(4, 6))["image"].shape == (4, 3, 6, 6)  # test crops stay whole


def test_each_domain_has_its_statistics_and_classes():
    mean, std = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[1.0] * 3, [2.0] * 3]
    transform = Transform(mean, std, 0.5, crop=8, window=8, classes=[[True, False], [True, True]])
    batch = crops()
    result = transform(batch)
    pixels, domain = batch["image"].numpy().astype(np.float64), batch["domain"].numpy()
    middle, deviation = np.asarray(mean)[domain][..., None, None], np.asarray([1.0, 2.0])[domain][:, None, None, None]
    assert result["image"].numpy() == pytest.approx((0.5 * pixels - middle) / deviation, abs=1e-5)
    assert result["classes"].tolist() == [[True, bool(number % 2)] for number in range(40)]
    assert "classes" not in cropping()(crops())


# Both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [Transform([[0.0]], [[1.0]], augment=False), cropping(augment=False)])
def test_nothing_to_draw(transform):
    assert transform.draw(3, torch_stream(0)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std": [[1.0, 0.0]]}, "std > 0"),
        ({"mean": [[0.0]]}, "mean and std must be"),
        ({"mean": [0.0, 0.0], "std": [1.0, 1.0]}, "mean and std must be"),
        ({"stored": {"a": ("x", "y")}, "bands": ("x", "z")}, "not all among the stored"),
        ({"stored": {"a": ("x", "y")}, "bands": ("x", "x")}, "named twice"),
        ({"stored": {"a": ("x", "y", "z")}}, "statistics lack"),
        ({"crop": 8, "window": 7}, "window must be at least crop=8, got 7"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Transform(**{"mean": [[0.0, 0.0]], "std": [[1.0, 1.0]]} | arguments)
