"""The short form of fuzz_readers.py, and a fault that it has to find."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from fuzz_readers import Tried, mutations
from fuzz_targets import TARGETS

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_are_read_or_refused_in_one_line(target: str, tmp_path: Path) -> None:
    tried = Tried(TARGETS[target], tmp_path / "faults")
    for content in itertools.islice(mutations(HERE / "seeds" / target, 1), 60):
        tried(content)
    assert tried.count == 60
    assert not (tmp_path / "faults").exists()


def test_a_fault_is_kept_once_with_the_input_that_shows_it(tmp_path: Path) -> None:
    def reader(content: bytes) -> None:
        if b"7" in content:
            raise KeyError(content.decode())

    tried = Tried(reader, tmp_path)
    for content in (b"1", b"17", b"71"):
        tried(content)
    (kept,) = tmp_path.glob("*.bin")
    assert kept.read_bytes() == b"17"
    assert "KeyError: '17'" in kept.with_suffix(".txt").read_text()
