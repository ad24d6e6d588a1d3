"""How many examples fuzz tests try: a hundred, times the environment variable `FEDRS_FUZZ`."""

import os

from hypothesis import HealthCheck, settings

from fedrs_lightning.errors import FedrsError

EXAMPLES = 100 * int(os.environ.get("FEDRS_FUZZ", "1"))
SLOW = 20_000.0  # milliseconds: more is a hang


def tried(share: float = 1.0):
    """Settings of a test that is to try this share of the examples."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    count = max(1, round(EXAMPLES * share))
    return settings(max_examples=count, deadline=SLOW, suppress_health_check=checks, derandomize=True, database=None)


def answer(call, *named):
    """What a call gives, or None where it refuses in one line that holds all of `named`; anything else passes."""
    try:
        return call()
    except FedrsError as error:
        text = str(error)
    assert text.strip()
    assert "\n" not in text
    assert len(text) < 1500
    assert all(str(name) in text for name in named)
    return None
