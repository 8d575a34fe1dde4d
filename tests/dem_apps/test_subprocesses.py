from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from dem_apps.jobs.job_processes import NotStarted, Subprocesses, ending_signal
from dem_apps.jobs.study import FileLock


@pytest.fixture
def processes() -> Subprocesses:
    return Subprocesses({**os.environ, "GREETING": "hello"})


def test_a_command_leaves_its_status_and_what_it_printed(processes: Subprocesses, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    assert processes.run(["sh", "-c", "echo $GREETING; echo there >&2; exit 3"], log, []) == 3
    before, command, *printed = log.read_text().splitlines()
    assert (before, command) == ("before", "$ sh -c 'echo $GREETING; echo there >&2; exit 3'")
    assert printed == ["hello", "there"]


def test_stop_ends_what_runs_after_it_has_saved_and_starts_no_more(processes: Subprocesses, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/saved; exit 143' TERM; touch {tmp_path}/started; while true; do sleep 0.05; done"
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(processes.run(["sh", "-c", script], tmp_path / "log", [])))
    thread.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    processes.stop()
    assert (tmp_path / "saved").exists()
    thread.join(timeout=60)
    assert statuses == [143]
    with pytest.raises(NotStarted):
        processes.run(["touch", str(tmp_path / "late")], tmp_path / "log", [])
    assert not (tmp_path / "late").exists()


def test_a_process_holds_the_locks_that_it_was_given(processes: Subprocesses, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire(wait=False)
    # what it leaves running has them, too, when the process and the owner have let go
    processes.run(["sh", "-c", f"(while [ ! -e {tmp_path}/end ]; do sleep 0.05; done) &"], tmp_path / "log", [lock])
    lock.release()
    other = FileLock(tmp_path / "lock")
    assert not other.acquire(wait=False)
    (tmp_path / "end").touch()
    assert other.acquire(wait=True)
    other.release()


@pytest.mark.parametrize(
    ("status", "number"), [(0, None), (1, None), (2, None), (-9, 9), (-15, 15), (130, 2), (143, 15), (129, None)]
)
def test_what_ended_a_training(status: int, number: int | None) -> None:
    assert ending_signal(status) == number
