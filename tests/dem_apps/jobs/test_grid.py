"""Several commands on one grid: they share the work, no job runs twice, and all end when everything has a result."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

from rich.console import Console

from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.grid import Cells, run_grid
from dem_apps.jobs.job import Job
from dem_apps.jobs.progress import GridProgress

START = 'mkdir -p "$RUN"; echo $$ >> "$RUN/starts"; '
DONE = """echo '{"score": 0.5}' > "$RUN/eval.json" """
TRAIN = f"{START} sleep 0.2; {DONE}"


def until_started(count: int) -> str:
    """Shell that waits until that many jobs of the grid have begun."""
    return f'until [ "$(cat "$RUN"/../*/starts | wc -l)" -ge {count} ]; do sleep 0.02; done; '


@dataclass(frozen=True)
class Shell(Job):
    """A job whose ``module`` is a shell script; RUN is its run folder."""

    def command(self) -> list[str]:
        return ["sh", "-c", f"RUN={self.run}; {self.module}"]


def cells(folder: Path, scripts: list[str]) -> Cells:
    jobs = [Shell(f"job {n}", script, (), folder / f"{n}", 10, "score") for n, script in enumerate(scripts)]
    return {("row", "arm"): list(jobs)}


def grid(folder: Path, scripts: list[str], workers: int = 2) -> tuple[dict[str, str], str]:
    """What failed, and what was printed."""
    text = io.StringIO()
    return grid_that_says(text, folder, scripts, workers), text.getvalue()


def grid_that_says(text: TextIO, folder: Path, scripts: list[str], workers: int) -> dict[str, str]:
    jobs = cells(folder, scripts)
    return run_grid(jobs, LocalExecutor({}), workers, GridProgress(jobs, Console(file=text, width=200)), poll=0.02)


def command(folder: Path, scripts: list[str], name: str, workers: int = 2) -> BaseProcess:
    """The same in a process of its own, in a group of its own; what it says, and what failed, goes to that file."""

    def work() -> None:
        os.setsid()
        with (folder / name).open("w", buffering=1) as said:
            failures = grid_that_says(said, folder, scripts, workers)
            print(sorted(failures), file=said)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def starts(folder: Path) -> list[int]:
    return [len(file.read_text().splitlines()) for file in sorted(folder.glob("*/starts"))]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill(process: BaseProcess, with_trainings: bool) -> None:
    (os.killpg if with_trainings else os.kill)(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
    process.join()


def test_two_commands_divide_a_grid(tmp_path: Path) -> None:
    scripts = [f"{START} {until_started(4)} sleep 0.2; {DONE}"] * 8  # both commands have two jobs before one ends
    commands = [command(tmp_path, scripts, name) for name in ("first", "second")]
    for process in commands:
        process.join(60)
    assert starts(tmp_path) == [1] * 8
    said = [(tmp_path / name).read_text() for name in ("first", "second")]
    assert all("8 of 8 runs done" in text for text in said), "each waits for the other's last job"
    begun = [text.count("starts at step") for text in said]
    assert sum(begun) == 8
    assert min(begun) >= 2, "neither had to wait for the other"


def test_the_rest_of_a_command_that_was_killed_is_done_by_the_other(tmp_path: Path) -> None:
    scripts = [TRAIN] * 8
    killed = command(tmp_path, scripts, "killed")
    other = command(tmp_path, scripts, "other")
    wait_for(lambda: len(list(tmp_path.glob("*/eval.json"))) >= 2)
    kill(killed, with_trainings=True)
    other.join(60)
    assert "8 of 8 runs done" in (tmp_path / "other").read_text()
    assert sorted(starts(tmp_path))[:6] == [1] * 6, "at most the two that were killed with it ran again"


def test_a_training_that_outlived_its_command_is_waited_for_and_said_once(tmp_path: Path) -> None:
    scripts = [f'{START} while [ ! -e "{tmp_path}/go" ]; do sleep 0.02; done; {DONE}']
    killed = command(tmp_path, scripts, "killed")
    wait_for(lambda: starts(tmp_path) == [1])
    kill(killed, with_trainings=False)
    waiting, said = command(tmp_path, scripts, "waiting"), tmp_path / "waiting"
    wait_for(lambda: said.exists() and "waiting for what" in said.read_text())
    time.sleep(0.1)  # five looks at what the other has done
    assert waiting.is_alive()
    (tmp_path / "go").touch()
    waiting.join(60)
    assert starts(tmp_path) == [1]
    assert said.read_text().count("waiting for what another command runs: job 0") == 1
    assert "1 of 1 runs done" in said.read_text()


def test_a_job_that_failed_in_one_command_is_not_tried_by_the_other_but_by_the_next_start(tmp_path: Path) -> None:
    # it fails only once the other command has begun, and so knows that it had not failed before
    scripts = [f"{START} {until_started(2)} echo unlucky; exit 1", TRAIN, TRAIN, TRAIN]
    commands = [command(tmp_path, scripts, name, workers=1) for name in ("first", "second")]
    for process in commands:
        process.join(60)
    assert starts(tmp_path) == [1] * 4
    for name in ("first", "second"):
        said = (tmp_path / name).read_text()
        assert said.endswith("['job 0']\n")
        assert "job 0  failed: status 1, unlucky" in said
    failures, _ = grid(tmp_path, scripts)
    assert list(failures) == ["job 0"]
    assert starts(tmp_path) == [2, 1, 1, 1]
    assert grid(tmp_path, [TRAIN] * 4)[0] == {}
    assert not (tmp_path / "0.failed").exists()


def test_a_killed_job_is_listed_and_run_by_the_next_start(tmp_path: Path) -> None:
    failures, printed = grid(tmp_path, [f"{START} kill -9 $$", TRAIN])
    assert failures["job 0"].startswith("signal 9")
    assert "1 of 2 runs done, 1 failed" in printed
    assert grid(tmp_path, [TRAIN] * 2)[0] == {}
    assert starts(tmp_path) == [2, 1]
