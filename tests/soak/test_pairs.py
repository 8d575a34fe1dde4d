"""The short form of pair_soak.py, and a fault that it has to find."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pair_kinds import KINDS, Kind
from pair_soak import pair


@pytest.mark.parametrize("name", KINDS)
def test_two_commands_at_once_leave_one_whole_or_share(name: str, tmp_path: Path) -> None:
    assert pair(KINDS[name], tmp_path / "pair", seed=1, slowest=0.01) == []


def test_what_is_checked_before_it_is_done_is_found(tmp_path: Path) -> None:
    """A file that is made where there was none, with the look and the write apart."""

    def attempt(folder: Path, who: int) -> None:
        if (folder / "file").exists():
            raise AssertionError("the other one was faster")
        time.sleep(0.3)
        (folder / "file").write_text(str(who))

    kind = Kind(lambda folder: folder.mkdir(), attempt, lambda _, done: [] if done.count(True) == 1 else ["both"])
    assert pair(kind, tmp_path / "pair", seed=1, slowest=0.01) == ["both"]


def test_a_crash_and_a_refusal_without_a_sentence_are_faults(tmp_path: Path) -> None:
    def attempt(folder: Path, _who: int) -> None:
        raise KeyError("x")

    faults = pair(Kind(lambda folder: folder.mkdir(), attempt, lambda *_: []), tmp_path / "pair", 1, 0.01)
    assert len(faults) == 2
    assert all("KeyError: 'x'" in fault for fault in faults)
