"""Of several processes of a launcher, one prints the error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command


def fail() -> None:
    raise InputError("the file is damaged")


def lose() -> None:
    raise RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:55. This is "
        "typically caused by a remote worker crashing."
    )


def test_one_of_several_processes_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(rank: int, main: Callable[[], None]) -> object:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0" / str(rank) / "error.json"))
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        (tmp_path / "attempt_0" / str(rank)).mkdir(parents=True, exist_ok=True)
        with pytest.raises(SystemExit) as end:
            run_command(main)
        return end.value.code

    assert [ended(1, fail), ended(0, fail), ended(2, lose)] == [2, 2, 1]
    assert capsys.readouterr().err == "error: the file is damaged\n"
    (tmp_path / "attempt_0" / "said").unlink()
    assert ended(2, lose) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: process 2 of 3 lost its connection to another one (Connection closed by peer [10.0.0.2]:55), which"
    )


def test_a_process_without_a_launcher_always_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (None, "/proc/none/0/error.json"):
        monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
        if file is not None:
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", file)
        with pytest.raises(SystemExit):
            run_command(fail)
        assert capsys.readouterr().err == "error: the file is damaged\n"
