from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.job import Job, JobFailed, JobKilled
from dem_apps.runtime.file_lock import FileLock

DONE = """; mkdir -p "$RUN"; echo '{"score": 0.5}' > "$RUN/eval.json" """


@dataclass(frozen=True)
class Shell(Job):
    """A job whose ``module`` is a shell script; RUN is its run folder."""

    def command(self) -> list[str]:
        return ["sh", "-c", f"RUN={self.run}; {self.module}"]


@pytest.fixture
def executor() -> LocalExecutor:
    return LocalExecutor({"GREETING": "hello"})


def job(tmp_path: Path, script: str) -> Shell:
    return Shell("a job", script, (), tmp_path / "run", 10, "score")


def test_a_job_leaves_its_result_and_what_it_printed(executor: LocalExecutor, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("before\n")
    done = job(tmp_path, f"echo $GREETING; echo there >&2{DONE}")
    executor.run(done, [])
    assert done.score() == 0.5
    before, command, *printed = done.log.read_text().splitlines()
    assert before == "before"
    assert command.startswith("$ sh -c ")
    assert printed == ["hello", "there"]
    executor.run(job(tmp_path, "exit 3"), [])  # it has a result


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo first; echo second; exit 3", JobFailed, "status 3, second"),
        ("exit 0", JobFailed, "ended without an eval.json"),
        ("exit 129", JobFailed, "status 129"),
        ("kill -9 $$", JobKilled, "signal 9"),
        ("exit 130", JobKilled, "signal 2"),
        ("exit 143", JobKilled, "signal 15"),
    ],
)
def test_a_signal_is_told_from_a_failure(
    script: str, error: type, message: str, executor: LocalExecutor, tmp_path: Path
) -> None:
    with pytest.raises(JobFailed, match=message) as caught:
        executor.run(job(tmp_path, script), [])
    assert type(caught.value) is error
    assert f"(all of its output: {tmp_path / 'run.log'})" in str(caught.value)


def test_stop_ends_what_runs_after_it_has_saved_and_starts_no_more(executor: LocalExecutor, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/saved; exit 143' TERM; touch {tmp_path}/started; while true; do sleep 0.05; done"
    ends: list[str] = []

    def run() -> None:
        try:
            executor.run(job(tmp_path, script), [])
        except JobKilled as error:
            ends.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    executor.stop()
    assert (tmp_path / "saved").exists()
    thread.join(timeout=60)
    assert ends[0].startswith("signal 15")
    with pytest.raises(JobKilled, match="stopped"):
        executor.run(job(tmp_path, f"touch {tmp_path}/late"), [])
    assert not (tmp_path / "late").exists()


def test_a_job_holds_the_claims_that_it_was_given(executor: LocalExecutor, tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    claim = executor.claim(lock)
    assert claim is not None
    assert executor.claim(lock) is None
    # what it leaves running has them, too, when the process and the owner have let go
    executor.run(job(tmp_path, f"(while [ ! -e {tmp_path}/end ]; do sleep 0.05; done) & true{DONE}"), [claim])
    claim.release()
    assert executor.claim(lock) is None
    (tmp_path / "end").touch()
    other = FileLock(lock)
    assert other.acquire(wait=True)
    other.release()
