import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedrs_lightning.data.clients.normalisation import Sums, statistics
from fedrs_lightning.data.transforms.bands import BandTransform
from fedrs_lightning.data.transforms.images import dihedral
from fedrs_lightning.errors import DataError

FINE, COARSE = ("f0", "f1"), ("c0", "c1", "c2")
ALL = ("f0", "c0", "c1", "f1", "c2")


def batch(count=4, side=12, seed=0):
    rng = np.random.default_rng(seed)
    fine = rng.integers(0, 65536, (count, 2, side, side)).astype(np.uint16)
    coarse = rng.integers(0, 65536, (count, 3, side // 2, side // 2)).astype(np.uint16)
    group = torch.arange(count) % 2
    return {
        "image10": torch.from_numpy(fine),
        "image20": torch.from_numpy(coarse),
        "group": group,
        "label": torch.ones(count, 19),
    }


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


def plain(bands=ALL, **options):
    return BandTransform((FINE, COARSE), bands, [[0.0] * len(bands)], [[1.0] * len(bands)], **options)


@pytest.mark.parametrize("kernel", ["torch", "rsim"])
def test_bands_against_a_float64_bicubic(kernel):
    given = batch()
    found = plain(kernel=kernel)(given)["image"]
    resize = matrix(6, kernel == "rsim")
    coarse = resize @ given["image20"].numpy().astype(np.float64) @ resize.T
    fine = given["image10"].numpy().astype(np.float64)
    expected = np.stack([fine[:, 0], coarse[:, 0], coarse[:, 1], fine[:, 1], coarse[:, 2]], axis=1)
    assert found.dtype == torch.float32
    assert_close(found.double(), torch.from_numpy(expected), rtol=1e-5, atol=0.1)
    assert (found[:, 0] == torch.from_numpy(fine[:, 0]).float()).all()
    assert found.min() < 0  # overshoot of noise, not clipped and not wrapped around


def test_chosen_bands_in_the_given_order():
    whole, given = plain()(batch())["image"], batch()
    for bands in (("c2", "f1"), ("f1", "f0"), ("c1",)):
        assert (plain(bands)(given)["image"] == whole[:, [ALL.index(band) for band in bands]]).all()


def test_augmentation_turns_all_bands_alike():
    given, transform = batch(16), plain()
    draws = transform.draw(16, torch.Generator().manual_seed(3))
    assert len(draws.unique(dim=0)) > 4
    assert_close(transform(given, draws)["image"], dihedral(transform(given)["image"], draws), rtol=1e-5, atol=0.1)
    assert plain(augment=False).draw(16, torch.Generator()) is None


def test_normalisation_by_group_and_what_passes_through():
    mean, std = [[10.0, 20, 30, 40, 50], [1.0, 2, 3, 4, 5]], [[2.0, 3, 4, 5, 6], [7.0, 8, 9, 10, 11]]
    given = batch()
    before = {name: values.clone() for name, values in given.items()}
    found = BandTransform((FINE, COARSE), ALL, mean, std)(given)
    pixels = plain()(given)["image"].double()
    middle, deviation = (
        torch.tensor(mean)[given["group"], :, None, None],
        torch.tensor(std)[given["group"], :, None, None],
    )
    assert_close(found["image"].double(), (pixels - middle) / deviation, rtol=1e-5, atol=1e-2)
    assert set(found) == {"image", "label"}
    assert all((given[name].to(torch.float64) == values.to(torch.float64)).all() for name, values in before.items())


def test_resize_of_all_bands():
    found, whole = plain(image_size=6)(batch())["image"], plain()(batch())["image"]
    expected = torch.nn.functional.interpolate(whole, size=(6, 6), mode="bilinear", antialias=True, align_corners=False)
    assert (found == expected).all()
    assert plain(image_size=12)(batch())["image"].shape == whole.shape


def test_wrong_statistics_and_bands():
    with pytest.raises(ValueError, match="std > 0"):
        BandTransform((FINE, COARSE), ("f0",), [[0.0]], [[0.0]])
    with pytest.raises(ValueError, match="not all among the stored"):
        BandTransform((FINE, COARSE), ("f0", "x"), [[0.0, 0.0]], [[1.0, 1.0]])


def test_statistics_are_exact_and_cost_what_they_send():
    huge = Sums((3, 3), (2**62, 5), (2**123, 9))
    other = Sums((1, 1), (1, 2), (1, 4))
    found = statistics("federated", ([0.0, 0.0], [1.0, 1.0]), {"A": huge, "B": other}, ("b0", "b1"))
    assert huge + other == Sums((4, 4), (2**62 + 1, 7), (2**123 + 1, 13))
    assert found.mean == [[(2**62 + 1) / 4, 7 / 4]]
    assert found.std[0][1] == pytest.approx((13 / 4 - (7 / 4) ** 2) ** 0.5)
    assert found.setup_bytes == {"up": 2 * 8 * (1 + 2 * 2), "down": 2 * 8 * 2 * 2}
    for kind, rows in (("published", 1), ("per_client", 2)):
        varying = {"A": huge, "B": Sums((2, 2), (1, 3), (1, 5))}
        own = statistics(kind, ([0.0, 0.0], [1.0, 1.0]), varying, ("b0", "b1"))
        assert len(own.mean) == len(own.std) == rows
        assert own.setup_bytes == {"up": 0, "down": 0}
    with pytest.raises(DataError, match="client B: band b1 does not vary over the training samples; check"):
        statistics("per_client", ([0.0, 0.0], [1.0, 1.0]), {"A": huge, "B": Sums((2, 2), (1, 2), (1, 2))}, ("b0", "b1"))
    with pytest.raises(DataError, match="client B: band 1 does not vary"):  # a name that says "band" itself
        statistics("per_client", ([0.0], [1.0]), {"B": Sums((2,), (2,), (2,))}, ("band 1",))
    with pytest.raises(DataError, match="client B: no training samples"):
        statistics("per_client", ([0.0, 0.0], [1.0, 1.0]), {"A": huge, "B": Sums((0, 0), (0, 0), (0, 0))}, ("b0", "b1"))
