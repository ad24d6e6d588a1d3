import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.data.transforms.dihedral import dihedral, draw_dihedral
from fedrs_lightning.seeding import torch_stream

ALL_DRAWS = torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(4)).to(torch.uint8)


def turn(image, draw):
    """The same with NumPy, one sample at a time."""
    horizontal, vertical, quarters = (int(value) for value in draw)
    if horizontal:
        image = np.flip(image, -1)
    if vertical:
        image = np.flip(image, -2)
    return np.rot90(image, quarters, axes=(-2, -1))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 20),
    channels=st.integers(1, 4),
    side=st.integers(1, 9),
    dtype=st.sampled_from([np.uint8, np.uint16, np.float32]),
    seed=st.integers(0, 2**32),
)
def test_augmentation_is_numpy_sample_by_sample(count, channels, side, dtype, seed):
    image = (
        np.random.default_rng(seed)
        .integers(0, 256 if dtype == np.uint8 else 65536, (count, channels, side, side))
        .astype(dtype)
    )
    draws = draw_dihedral(count, torch_stream(seed, "test"))
    wanted = np.stack([turn(one, draw) for one, draw in zip(image, draws, strict=True)])
    assert np.array_equal(dihedral(torch.from_numpy(image), draws).numpy(), wanted)


def test_every_combination_of_draws_and_uniform_draws():
    image = torch.arange(16 * 9, dtype=torch.uint8).reshape(16, 1, 3, 3)
    wanted = np.stack([turn(one, draw) for one, draw in zip(image.numpy(), ALL_DRAWS, strict=True)])
    assert np.array_equal(dihedral(image, ALL_DRAWS).numpy(), wanted)
    draws = draw_dihedral(16000, torch_stream(0, "test")).long()
    counts = torch.bincount(draws @ torch.tensor([8, 4, 1]), minlength=16).double()
    assert ((counts - 1000) ** 2 / 1000).sum() < 40  # chi square with 15 degrees of freedom: p = 0.0005


def test_quarter_turns_need_square_images():
    with pytest.raises(ValueError, match="square images, got 4 x 6"):
        dihedral(torch.zeros(1, 3, 4, 6), torch.zeros(1, 3, dtype=torch.uint8))
