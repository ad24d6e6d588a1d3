"""Random streams depend on their words and on nothing else."""

import random

import numpy as np
import pytest
import torch

from fedrs_lightning.seeding import numpy_stream, rng_stream, stream_seed, torch_stream


def test_words_are_told_apart_by_type_and_place():
    seeds = [
        stream_seed(1, 2),
        stream_seed(2, 1),
        stream_seed("1", 2),
        stream_seed(12),
        stream_seed("12"),
        stream_seed("1", "2"),
        stream_seed(1, 2, 0),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed(0, "local", 3, 7) == 4172412126550955600
    for word in (1.0, None, True):
        with pytest.raises(TypeError, match="named by int and str"):
            stream_seed(word)


def test_a_stream_leaves_the_global_generators_as_they_were():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = (torch.rand(1).item(), random.random(), np.random.rand())
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with rng_stream(5, "x"):
        inside = (torch.rand(1).item(), random.random(), np.random.rand())
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected
    torch.rand(100)

    def fail():
        with rng_stream(5, "x"):
            assert (torch.rand(1).item(), random.random(), np.random.rand()) == inside
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside != expected


def test_generators_repeat():
    assert numpy_stream(1, "a").integers(1 << 40) == numpy_stream(1, "a").integers(1 << 40)
    assert torch.equal(torch.rand(4, generator=torch_stream(1, "a")), torch.rand(4, generator=torch_stream(1, "a")))
    assert not torch.equal(torch.rand(4, generator=torch_stream(1, "a")), torch.rand(4, generator=torch_stream(1, "b")))
