"""What stands between Ray and a training: the training saves when Ray is gone, and nobody starts it twice meanwhile."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dem_apps.jobs.cluster import supervise
from dem_apps.runtime.file_lock import FileLock

SAVES = "trap 'touch saved; exit 143' TERM; touch started; while true; do sleep 0.02; done"


def started(folder: Path, script: str, removed: str = "") -> subprocess.Popen[bytes]:
    """The supervisor of a shell script, once it holds the lock."""
    files = [str(folder / name) for name in ("lock", "log")]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", inspect.getsource(supervise), *files, removed],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(["sh", "-c", script]).encode() + b"\n")
    process.stdin.flush()
    return process


def said(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.read().decode().splitlines()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def free(lock: Path) -> bool:
    other = FileLock(lock)
    taken = other.acquire(wait=False)
    other.release()
    return taken


def test_a_training_runs_to_its_end_and_its_output_is_kept(tmp_path: Path) -> None:
    process = started(tmp_path, "echo there >&2; exit 3")
    assert said(process) == ["locked", "ended 3"]
    command, printed = (tmp_path / "log").read_text().splitlines()
    assert command == "$ sh -c 'echo there >&2; exit 3'"
    assert printed == "there"
    assert process.wait() == 0  # at once: what supervises is nobody's child


def test_a_training_whose_command_cannot_be_started_has_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", inspect.getsource(supervise), str(tmp_path / "l"), str(tmp_path / "o"), ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    answer, _ = process.communicate(b'["/no/such/program"]\n')
    assert answer == b"locked\nended 127\n"
    assert "No such file" in (tmp_path / "o").read_text()


def test_a_stop_reaches_the_training_and_its_status_is_told(tmp_path: Path) -> None:
    process = started(tmp_path, SAVES)
    until((tmp_path / "started").exists)
    assert process.stdin is not None
    process.stdin.write(b"stop\n")
    process.stdin.flush()
    assert said(process) == ["locked", "ended 143"]
    assert (tmp_path / "saved").exists()


def test_when_ray_is_gone_the_training_saves_under_its_lock_and_the_scratch_folder_goes(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = started(
        tmp_path, SAVES.replace("touch saved", "until [ -e go ]; do sleep 0.02; done; touch saved"), str(scratch)
    )
    until((tmp_path / "started").exists)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # as when its process is killed
    process.stdout.close()
    time.sleep(0.15)
    assert not free(tmp_path / "lock")
    (tmp_path / "go").touch()
    until(lambda: free(tmp_path / "lock"))
    assert (tmp_path / "saved").exists()
    until(lambda: not scratch.exists())


def test_the_next_start_waits_for_the_last_one_to_end(tmp_path: Path) -> None:
    first = started(tmp_path, SAVES)
    until((tmp_path / "started").exists)
    second = started(tmp_path, "test -e saved")
    assert first.stdin is not None
    first.stdin.close()
    assert said(second) == ["locked", "ended 0"], "it began before the other had saved"


def test_one_that_waits_and_is_given_up_begins_nothing(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.acquire()
    process = started(tmp_path, "touch begun")
    assert process.stdin is not None
    process.stdin.close()
    assert said(process) == []
    lock.release()
    assert not (tmp_path / "begun").exists()


def test_signals_of_a_terminal_do_not_end_it(tmp_path: Path) -> None:
    process = started(tmp_path, "echo $PPID > parent; sleep 0.3; exit 5")
    until(lambda: (tmp_path / "parent").exists() and (tmp_path / "parent").read_text() != "")
    os.kill(int((tmp_path / "parent").read_text()), signal.SIGINT)
    assert said(process) == ["locked", "ended 5"]
