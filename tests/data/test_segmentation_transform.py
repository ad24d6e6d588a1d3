import numpy as np
import pytest
import torch

from fedrs_lightning.data.transforms.masks import SegmentationTransform


def batch_of(count=40, side=8, domains=2, dtype=torch.uint8):
    """Images whose three bands hold the row, the column and the sample; the mask holds row + column."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    image = torch.stack([torch.stack([rows, columns, torch.full_like(rows, number)]) for number in range(count)])
    mask = (rows + columns).expand(count, -1, -1)
    return {
        "image": image.to(dtype),
        "mask": mask.to(torch.uint8).contiguous(),
        "domain": torch.arange(count) % domains,
    }


def transform_of(crop=8, window=8, augment=True, **settings):
    return SegmentationTransform([[0.0] * 3] * 2, [[1.0] * 3] * 2, 1.0, settings.get("classes"), crop, window, augment)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
@pytest.mark.parametrize("window", [8, 13])
def test_image_and_mask_move_together(window, dtype):
    batch, transform = batch_of(side=window, dtype=dtype), transform_of(window=window)
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
    assert int(batch["image"].long().sum()) == int(batch_of(side=window)["image"].long().sum())  # input untouched


def test_random_crops_reach_every_place():
    transform = transform_of(crop=8, window=10, augment=False)
    draws = transform.draw(600, torch.Generator().manual_seed(1))
    corners = transform(batch_of(600, 10), draws)["image"][:, :2, 0, 0].long()
    places, counts = torch.unique(corners, dim=0, return_counts=True)
    assert len(places) == 9
    assert counts.min() > 35
    centre = transform(batch_of(4, 10))["image"]  # without draws
    assert (centre[:, 0, 0] == 1).all()
    assert transform(batch_of(4, 6))["image"].shape == (4, 3, 6, 6)  # test crops stay whole


def test_nothing_to_draw():
    assert transform_of(augment=False).draw(3, torch.Generator()) is None


def test_each_domain_has_its_statistics_and_classes():
    transform = SegmentationTransform(
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[1.0] * 3, [2.0] * 3], 0.5, [[True, False], [True, True]], 8, 8
    )
    batch = batch_of()
    result = transform(batch)
    pixels, domain = batch["image"].numpy().astype(np.float64), batch["domain"].numpy()
    mean, std = np.asarray([[1.0, 2, 3], [4, 5, 6]])[domain], np.asarray([1.0, 2.0])[domain]
    wanted = (0.5 * pixels - mean[..., None, None]) / std[:, None, None, None]
    assert result["image"].numpy() == pytest.approx(wanted, abs=1e-5)
    assert result["classes"].tolist() == [[True, bool(number % 2)] for number in range(40)]
    assert "classes" not in transform_of()(batch_of())


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="std > 0"):
        SegmentationTransform([[0.0]], [[0.0]], 1.0, None, 8, 8)
    with pytest.raises(ValueError, match="window >= crop"):
        SegmentationTransform([[0.0]], [[1.0]], 1.0, None, 8, 7)
