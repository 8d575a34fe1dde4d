"""Fixtures of all tests, and hypothesis profiles: a few examples, the same at every run, or ``soak`` with many."""

import os
import signal
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

from dem_apps.runtime.command import run_command as run_main

#: A slow machine and fixtures that all examples share are no faults.
_SUPPRESSED = [
    HealthCheck.too_slow,
    HealthCheck.function_scoped_fixture,
    HealthCheck.differing_executors,
]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # `make test &` ignores Ctrl-C, and so would every command that a test interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # fixtures of a module run before any test
common = {"deadline": None, "suppress_health_check": _SUPPRESSED}
settings.register_profile("fast", max_examples=40, derandomize=True, database=None, **common)
settings.register_profile("soak", max_examples=3000, print_blob=True, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_collection_modifyitems(items):
    """The folders with the longest tests first, so that no core waits at the end; a GPU last, since others fork."""
    items.sort(key=lambda item: (item.path.name != "test_gpu.py", item.path), reverse=True)


@pytest.fixture(autouse=True)
def _one_thread():
    """As in ``make test``; an earlier test may have set another number."""
    torch.set_num_threads(1)


@pytest.fixture
def run_here(monkeypatch, capsys):
    """Run a command, given its ``main``, in this process: without the seconds of importing torch.

    Returns what it printed (``out``, ``err``). It has to end with that status; a mistake, status 2, is one line.
    """

    def run(main, *arguments, status=0):
        monkeypatch.setattr(sys, "argv", [main.__module__, *map(str, arguments)])
        ended = 0
        try:
            run_main(main)
        except SystemExit as left:
            ended = left.code
        said = capsys.readouterr()
        assert ended == status, said
        assert status != 2 or said.err.count("\n") == 1, said.err
        return said

    return run
