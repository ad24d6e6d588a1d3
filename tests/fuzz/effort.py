"""How many examples fuzz tests try: a hundred, times the environment variable `FEDRS_FUZZ`."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = 100 * int(os.environ.get("FEDRS_FUZZ", "1"))
SLOW = 20_000.0  # milliseconds: more is a hang


def tried(share: float = 1.0):
    """Settings of a test that is to try this share of the examples."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    count = max(1, round(EXAMPLES * share))
    return settings(max_examples=count, deadline=SLOW, suppress_health_check=checks, derandomize=True, database=None)


def one_line(error: BaseException) -> bool:
    """Whether an error says something, in one line."""
    text = str(error)
    return bool(text.strip()) and "\n" not in text and len(text) < 1500
