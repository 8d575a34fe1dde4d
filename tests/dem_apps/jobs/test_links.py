"""Grids and studies from strangers: nothing is written through a link that leaves the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dem_apps.errors import InputError
from dem_apps.jobs.benchmark import GridConfig, run_benchmark
from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.job import Job, JobFailed
from dem_apps.jobs.study import StudyFolder
from dem_apps.runtime.file_lock import FileLock

ANYWHERE = ["none/seed0.log", "none/seed0.lock", "none/seed0.failed", "none/seed0", "none", "report", "report/table.md",
            "none/seed0/metrics.jsonl", "none/seed0/checkpoints"]  # fmt: skip
OF_A_STUDY = ["journal.log", "journal.lock", "trials", "trials/0000.log", "trials/0000", "trials.csv", "study.yaml"]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A start-up file and a folder that nothing may change."""
    folder = tmp_path / "home"
    (folder / "projects").mkdir(parents=True)
    (folder / "bashrc").write_text("mine")
    yield folder
    assert sorted(file.name for file in folder.rglob("*")) == ["bashrc", "projects"]
    assert (folder / "bashrc").read_text() == "mine"


def link(entry: Path, to: Path) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.symlink_to(to)


@pytest.mark.parametrize("to", ["bashrc", "projects", "new"])
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_grid_with_a_way_out_is_not_continued(name: str, to: str, outside: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    link(grid / name, outside / to)
    job = Job("none", "none.such", (), grid / "none" / "seed0", 1, "score")
    with pytest.raises(InputError, match=r"is a link that leads out of .*grid, so that something outside could be"):
        run_benchmark(GridConfig(folder=str(grid)), {("", "none"): [job]}, {}, lambda *_: "", {})


@pytest.mark.parametrize("to", ["bashrc", "projects", "new"])
@pytest.mark.parametrize("name", OF_A_STUDY)
def test_a_study_with_a_way_out_is_not_continued(name: str, to: str, outside: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    link(study / name, outside / to)
    (study / "study.lock").touch()
    with pytest.raises(InputError, match=r"is a link that leads out of .*study, so that something outside could be"):
        StudyFolder(study, {})


def test_what_a_job_prints_follows_no_link(outside: Path, tmp_path: Path) -> None:
    """Also where the link was put there after the look at the folder."""
    job = Job("a", "none.such", (), tmp_path / "grid" / "seed0", 1, "score")
    link(job.log, outside / "bashrc")
    with pytest.raises(InputError, match=r"seed0.log: is a link, through which nothing is written; remove it$"):
        LocalExecutor({}).run(job, [])
    link(tmp_path / "grid" / "seed0.failed", outside / "bashrc")
    job.note_failure("failed")
    assert job.failure() == "failed"
    job.log.unlink()
    with pytest.raises(JobFailed):
        LocalExecutor({}).run(job, [])


def test_a_lock_file_follows_no_link(outside: Path, tmp_path: Path) -> None:
    link(tmp_path / "a.lock", outside / "new")
    with pytest.raises(InputError, match="is a link, through which nothing is written"):
        FileLock(tmp_path / "a.lock").acquire()
