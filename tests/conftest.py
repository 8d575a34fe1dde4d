"""Fixtures of all tests, and hypothesis profiles: a few examples, the same at every run, or ``soak`` with many."""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

#: A slow machine and fixtures that all examples share are no faults.
_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # `make test &` ignores Ctrl-C, and so would every command that a test interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # fixtures of a module run before any test
settings.register_profile(
    "fast", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=_SUPPRESSED
)
settings.register_profile("soak", max_examples=3000, deadline=None, print_blob=True, suppress_health_check=_SUPPRESSED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders with the longest tests first, so that no core waits at the end."""
    items.sort(key=lambda item: item.path, reverse=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As in ``make test``; an earlier test may have set another number."""
    torch.set_num_threads(1)
