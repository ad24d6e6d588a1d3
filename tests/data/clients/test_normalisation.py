"""Statistics of training pixels are exact, and cost what they send."""

import numpy as np
import pytest

from fedrs_lightning.data.clients.normalisation import published, statistics
from fedrs_lightning.data.packs.fields import mean_std
from fedrs_lightning.errors import DataError

KNOWN = {
    (0,): (3, [[2**62, 5], [2**123, 9]]),
    (1,): (1, [[1, 2], [1, 4]]),
    (0, 1): (4, [[2**62 + 1, 7], [2**123 + 1, 13]]),
    (2,): (2, [[1, 3], [1, 5]]),
}


def measured(samples):
    return list(zip(*mean_std(*KNOWN[tuple(samples.tolist())]), strict=True))


def found(kind, groups, bands=("b0", "b1"), scale=1.0):
    indices = {name: np.asarray(samples, np.int64) for name, samples in groups.items()}
    return statistics(kind, indices, measured, bands, scale, 2)


def test_sums_are_exact_and_cost_what_they_send():
    together = found("federated", {"all clients together": (0, 1)})
    assert together.mean == [[(2**62 + 1) / 4, 7 / 4]]
    assert together.std[0][1] == pytest.approx((13 / 4 - (7 / 4) ** 2) ** 0.5)
    assert together.setup_bytes == {"up": 2 * 8 * (1 + 2 * 2), "down": 2 * 8 * 2 * 2}
    apart = found("per_client", {"client A": (0,), "client B": (2,)}, scale=0.5)
    assert [mean[1] for mean in apart.mean] == [0.5 * 5 / 3, 0.5 * 3 / 2]
    assert apart.std[1] == [0.25, 0.25]  # of 0 and 1, and of 1 and 2
    assert apart.setup_bytes == {"up": 0, "down": 0}
    assert list(apart.described["of"]) == ["client A", "client B"]
    domains = found("per_domain", {"domain a": (0,), "domain b": (2,)})
    assert domains.setup_bytes == together.setup_bytes


def test_published_statistics_are_sent_to_nobody():
    given = published({"a": ((0.5,), (0.25,))}, 1 / 255)
    assert (given.mean, given.std, given.setup_bytes) == ([[0.5]], [[0.25]], {"up": 0, "down": 0})
    assert given.described["of"] == {"a": {"mean": [0.5], "std": [0.25]}}
    assert (given.described["statistics"], given.described["scale"]) == ("published", 1 / 255)


def test_bands_that_do_not_vary_are_named():
    with pytest.raises(DataError, match="client B: band b0 does not vary over the training samples; check"):
        found("per_client", {"client A": (0,), "client B": (1,)})
    with pytest.raises(DataError, match="client B: band 1 does not vary"):  # a name that says "band" itself
        found("per_client", {"client B": (1,)}, ("band 1", "band 2"))
    with pytest.raises(DataError, match="client B: no training samples"):
        found("per_client", {"client A": (0,), "client B": ()})
