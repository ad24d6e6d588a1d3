"""Arithmetic on states against NumPy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning import states
from fedrs_lightning.states import digest, dot, entries, first_not_finite, ordered_sum, pack, piece, weighted_sum
from fedrs_lightning.types import Client, Upload


def some_state(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model/a": torch.randn(3, 5, generator=generator),
        "model/scalar": torch.randn((), generator=generator, dtype=torch.float64),
        "model/count": torch.tensor(7 + seed),
        "model/empty": torch.empty(0, 2),
        "x/half": torch.randn(4, generator=generator).bfloat16(),
        "x/channels_last": torch.randn(2, 3, 4, 4, generator=generator).to(memory_format=torch.channels_last),
    }


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 6),
    shape=st.lists(st.integers(0, 9), max_size=3),
    seed=st.integers(0, 99),
    chunk=st.sampled_from([1, 7, 64, 10**6]),
)
def test_weighted_sum_is_the_ordered_float64_sum(count, shape, seed, chunk):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
    weights = rng.dirichlet(np.ones(count))
    expected = np.zeros(shape)
    for weight, array in zip(weights, arrays, strict=True):
        expected = expected + weight * array.astype(np.float64)
    before, states.CHUNK = states.CHUNK, chunk
    try:
        result = weighted_sum([torch.from_numpy(array) for array in arrays], torch.from_numpy(weights))
    finally:
        states.CHUNK = before
    assert result.dtype == torch.float32
    np.testing.assert_array_equal(result.numpy(), expected.astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)), dim=st.sampled_from([0, 1, -1]), seed=st.integers(0, 99)
)
def test_ordered_sums_are_plain_loops_to_the_last_bit(shape, dim, seed):
    first, second = np.random.default_rng(seed).normal(size=(2, *shape))
    total = np.zeros(shape[1 - dim % 2])
    for row in np.moveaxis(first, dim, 0):
        total = total + row
    np.testing.assert_array_equal(ordered_sum(torch.from_numpy(first), dim).numpy(), total)
    products = np.zeros(shape[0])
    for left, right in zip(first.T, second.T, strict=True):
        products = products + left * right
    np.testing.assert_array_equal(dot(torch.from_numpy(first), torch.from_numpy(second)).numpy(), products)


def test_integer_buffers_keep_the_largest_value_and_half_precision_is_summed_wide():
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert weighted_sum([torch.tensor([3, 9]), torch.tensor([5, 1])], weights).tolist() == [5, 9]
    halves = [torch.tensor([1.0, 256.0]).bfloat16(), torch.tensor([256.0, 1.0]).bfloat16()]
    exact = (0.25 * halves[0].double() + 0.75 * halves[1].double()).bfloat16()
    assert torch.equal(weighted_sum(halves, weights), exact)


def test_inputs_are_left_alone():
    tensors = [torch.ones(3), torch.full((3,), 2.0)]
    weighted_sum(tensors, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert tensors[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("spooled", [False, True])
def test_packed_states_read_back_whole_and_in_pieces(spooled, tmp_path):
    state = some_state()
    packed = pack(state)
    if spooled:
        in_memory, packed = packed, packed.spool(tmp_path / "upload.safetensors")
        buffer = torch.zeros(packed.size, dtype=torch.uint8)
        assert torch.equal(packed.bytes_into(buffer), in_memory.bytes_into(buffer))
        assert torch.equal(piece(packed.entry("x/channels_last"), 7, 60), state["x/channels_last"].reshape(-1)[7:60])
    assert list(packed) == list(state)
    for key, value in state.items():
        assert torch.equal(packed[key], value), key
        assert packed[key].dtype == value.dtype
    assert states.nbytes(packed) == states.nbytes(state)
    assert digest(packed) == digest(state)
    other = pack(some_state(1))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    for key in ("model/a", "model/count", "x/channels_last"):
        assert torch.equal(
            weighted_sum(entries([Upload(Client(0, 1), packed), Upload(Client(1, 1), other)], key), weights),
            weighted_sum([state[key], some_state(1)[key]], weights),
        )
    packed.close()


def test_a_buffer_is_reused_when_it_is_large_enough():
    buffer = torch.zeros(10_000, dtype=torch.uint8)
    packed = pack(some_state(), out=buffer)
    assert packed["model/a"].untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def test_digest_sees_names_types_shapes_and_bits_but_not_order():
    state = some_state()
    assert digest(state) == digest(dict(reversed(state.items())))
    changed = {**state, "model/a": state["model/a"].clone()}
    assert digest(changed) == digest(state)
    changed["model/a"].view(-1)[0] = torch.nextafter(changed["model/a"].view(-1)[0], torch.tensor(9.0))
    variants = [
        changed,
        {**state, "model/a": state["model/a"].view(5, 3)},
        {**state, "model/b": state["model/a"]},
        {**state, "model/count": state["model/count"].int()},
    ]
    assert len({digest(state), *(digest(variant) for variant in variants)}) == 5
    assert digest(state, state) != digest(state)


def test_first_not_finite_names_the_entry_and_forgives_large_sums():
    state = some_state()
    assert first_not_finite(state) is None
    assert first_not_finite({"big": torch.full((4,), 3e38)}) is None
    state["x/channels_last"][0, 0, 0, 0] = float("inf")
    assert first_not_finite(state) == "x/channels_last"
