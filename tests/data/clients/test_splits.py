import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data.clients.splits import cut_by_class_shares, divide


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=80), fraction=st.floats(0, 1), stratify=st.booleans())
def test_divide_keeps_every_sample_and_the_share(labels, fraction, stratify):
    labels = np.asarray(labels)
    strata = labels if stratify else np.zeros_like(labels)
    indices = np.arange(len(labels))[::2]
    first, second = divide(indices, strata, fraction, np.random.default_rng(0))
    assert np.array_equal(np.sort(np.concatenate([first, second])), indices)
    groups = [indices[labels[indices] == label] for label in np.unique(labels[indices])] if stratify else [indices]
    assert all(abs(np.isin(first, group).sum() - fraction * len(group)) <= 0.5 for group in groups)


def test_own_test_sets_follow_the_clients_classes():
    labels = np.repeat([0, 1, 2], [1000, 1000, 500])
    rng = np.random.default_rng(0)
    trains = [
        np.r_[0:600, 1000:1100],
        np.r_[600:800, 1100:1700],
    ]  # class 0: 3 to 1; class 1: 1 to 6; nobody has class 2
    test = np.sort(rng.permutation(np.r_[800:1000, 1700:2000, 2000:2500]))
    first, second = cut_by_class_shares(labels, trains, test, rng)
    assert np.bincount(labels[first], minlength=3).tolist() == [150, 43, 0]
    assert np.bincount(labels[second], minlength=3).tolist() == [50, 257, 0]
    assert not np.intersect1d(first, second).size
    assert np.isin(np.concatenate([first, second]), test).all()


def test_a_client_without_own_test_data_has_none():
    labels = np.asarray([0, 0, 1, 0])
    assert (
        cut_by_class_shares(labels, [np.asarray([0]), np.asarray([2])], np.asarray([3]), np.random.default_rng(0))[1]
        is None
    )
