"""How many examples the property tests try: a few, the same at every run; with ``HYPOTHESIS_PROFILE=soak`` many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: A slow machine is no fault, and neither is a fixture that all examples share.
_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]

settings.register_profile(
    "fast", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=_SUPPRESSED
)
settings.register_profile("soak", max_examples=3000, deadline=None, print_blob=True, suppress_health_check=_SUPPRESSED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
