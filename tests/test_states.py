"""Arithmetic on states against NumPy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning import states
from fedrs_lightning.flat import FlatLayout, flat_copy
from fedrs_lightning.states import (
    add_to,
    digest,
    dot,
    first_not_finite,
    flat_sum,
    nbytes,
    numerators,
    ordered_sum,
    summing,
    total_dtype,
    weighted_sum,
)
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


def test_flat_states_hold_the_same_bits_as_the_tensors_they_were_made_of():
    state = some_state()
    flat = flat_copy(state)
    assert list(flat) == list(state)
    for key, value in state.items():
        assert torch.equal(flat[key], value), key
        assert flat[key].dtype == value.dtype
        assert flat[key].stride() == value.stride() or value.numel() == 0
        assert flat[key].data_ptr() % 64 == 0
    assert nbytes(flat) == nbytes(state)
    assert digest(flat) == digest(state)
    flat["model/a"].fill_(2.5)
    singles = next(run for run in flat.layout.runs() if run.dtype == torch.float32)
    assert (singles.of(flat.data) == 2.5).sum() == 15


def test_weights_of_samples_are_summed_as_whole_numbers_and_divided_once():
    uploads = [Upload(Client(number, size), {}) for number, size in enumerate((7, 300, 11))]
    values = [torch.from_numpy(np.random.default_rng(seed).normal(size=999).astype(np.float32)) for seed in range(3)]
    for weights, expected in (
        (torch.tensor([7, 300, 11], dtype=torch.float64) / 318, ([7, 300, 11], 318)),
        (torch.ones(3, dtype=torch.float64) / 3, ([1, 1, 1], 3)),
        (torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), ([0.2, 0.3, 0.5], 1)),
    ):
        factors, divisor = numerators(weights, uploads)
        assert (factors.tolist(), divisor) == expected
        total = sum(
            factor * value.numpy().astype(np.float64) for factor, value in zip(expected[0], values, strict=True)
        )
        found = weighted_sum(values, factors, divisor=divisor)
        np.testing.assert_array_equal(found.numpy(), (total / divisor).astype(np.float32))


def test_a_tensor_with_two_names_lies_in_a_flat_state_once():
    tied = torch.ones(3)
    flat = flat_copy({"first": tied, "second": tied, "other": torch.zeros(3)})
    flat["first"][0] = 7
    assert flat["second"][0] == 7
    assert flat.layout.size == 128


def test_a_slice_of_a_larger_tensor_is_laid_out_row_by_row():
    column = torch.arange(12.0).view(3, 4)[:, 1]
    assert flat_copy({"column": column})["column"].tolist() == [1, 5, 9]


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_flat_states_and_running_sums_are_those_of_single_tensors(threads, monkeypatch):
    monkeypatch.setattr(states, "CHUNK", 7)
    parts, weights = [some_state(seed) for seed in range(4)], torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    expected = {key: weighted_sum([part[key] for part in parts], weights) for key in parts[0]}
    layout = FlatLayout.of(parts[0])
    flats = [flat_copy(part, layout) for part in parts]
    with summing(threads):
        assert digest(flat_sum(flats, expected, weights)) == digest(expected)
        running = flat_copy({}, layout)
        for run in layout.runs():
            vectors = [run.of(flat.data) for flat in flats]
            total = torch.full((len(vectors[0]),), 9, dtype=total_dtype(run.dtype))
            add_to(total, vectors[:1], [0.1], fresh=True)
            add_to(total, vectors[1:3], [0.2, 0.3], fresh=False)
            add_to(total, vectors[3:], [0.4], fresh=False)
            run.of(running.data).copy_(total)
    assert digest(running) == digest(expected)


def test_memory_formats_that_differ_are_summed_element_by_element():
    values = torch.randn(2, 3, 4, 4)
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for first, second in ((values, values), (values.to(memory_format=torch.channels_last), values)):
        for pair in ([first, second], [second, first]):
            assert torch.equal(weighted_sum(pair, weights), values)
    last = values.to(memory_format=torch.channels_last)
    both = weighted_sum([last, 3 * last], weights)
    assert torch.equal(both, 2 * values)
    assert both.is_contiguous(memory_format=torch.channels_last)


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
    assert first_not_finite({}, flat_copy(state)) == "x/channels_last"
