"""What the tests of the core and of both applications share, and how many examples the property tests try.

A few, the same at every run; with ``HYPOTHESIS_PROFILE=soak`` many.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

#: A slow machine is no fault, and neither is a fixture that all examples share.
_SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's `make test &` makes it deaf to Ctrl-C, and every command with it that a test interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # for what fixtures of a module compute, before any test
settings.register_profile(
    "fast", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=_SUPPRESSED
)
settings.register_profile("soak", max_examples=3000, deadline=None, print_blob=True, suppress_health_check=_SUPPRESSED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders with the longest tests first: one that begins last would keep a single core busy at the end."""
    items.sort(key=lambda item: item.path, reverse=True)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """As in ``make test``; a test or a training before may have left another number."""
    torch.set_num_threads(1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``disk("64k")`` is a file system of its own, of that size; the test is skipped where none may be mounted."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            pytest.skip("mounting a small disk is not permitted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True, timeout=20)
