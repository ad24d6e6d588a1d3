"""How many examples: a hundred in a normal run, `FEDRS_FUZZ` times as many when it is set."""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("FEDRS_FUZZ", "1"))
checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile(
    "fuzz", max_examples=100 * FACTOR, deadline=timedelta(seconds=20), suppress_health_check=checks
)
