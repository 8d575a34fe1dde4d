"""Jobs on two nodes of a real cluster on this host: results, failures, stops, and runs that come home."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dem_apps.jobs.cluster.executor import RayExecutor
from dem_apps.jobs.job import Job, JobFailed, JobKilled

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[cluster]'")
DONE = """; echo '{"score": 0.5}' > "$RUN/eval.json" """
#: Saves at SIGTERM, and ends at once where it was saved.
SAVES = (
    'if [ -e "$RUN/checkpoints/last.json" ]; then echo resumed; '
    """echo '{"score": 0.7}' > "$RUN/eval.json"; exit 0; fi; """
    """trap 'mkdir "$RUN/checkpoints"; echo saved > "$RUN/checkpoints/last.json"; exit 143' TERM; """
    "touch started.$NAME; while true; do sleep 0.05; done"
)


@dataclass(frozen=True)
class Shell(Job):
    """A job whose ``module`` is a shell script; RUN is its run folder, the next argument after ``--run-dir``."""

    def command_from(self, resumed: bool) -> list[str]:
        script = f'RUN="$1"; NAME={self.name}; mkdir -p "$RUN"; {self.module}'
        return ["sh", "-c", script, "sh", str(self.run)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    cluster.add_node(num_cpus=2, **small)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def make(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RayExecutor]]:
    monkeypatch.chdir(tmp_path)
    made = []

    def executor(collect: bool = False) -> RayExecutor:
        made.append(RayExecutor({"GREETING": "hello"}, cluster.address, 1, 0.0, Path("grid"), collect))
        return made[-1]

    yield executor
    for each in made:
        each.stop()


def job(name: str, script: str) -> Shell:
    return Shell(name, script, (), Path("grid") / name, 10, "score")


def stopped(executor: RayExecutor, piece: Job, started: Path) -> str:
    """How a job ends that is stopped once it has begun."""
    ends: list[str] = []

    def run() -> None:
        try:
            executor.run(piece, [])
        except JobKilled as error:
            ends.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    executor.stop()
    thread.join(60)
    return ends[0]


def test_jobs_on_a_shared_folder(make: Callable[..., RayExecutor], tmp_path: Path) -> None:
    executor = make()
    claim = executor.claim(Path("grid/good.lock"))
    assert claim is not None
    executor.run(job("good", f"echo $GREETING; echo $PPID > parent{DONE}"), [claim])
    assert job("good", "").score() == 0.5
    assert Path("grid/good.log").read_text().splitlines()[1:] == ["hello"]
    assert int(Path("parent").read_text()) not in (os.getpid(), os.getppid())
    executor.run(job("good", "exit 3"), [])  # it has a result
    with pytest.raises(JobFailed, match=r"status 3, unlucky \(all of its output: grid/bad\.log\)"):
        executor.run(job("bad", "echo unlucky; exit 3"), [])
    assert stopped(executor, job("long", SAVES), tmp_path / "started.long").startswith("signal 15")
    with pytest.raises(JobKilled, match="stopped"):
        executor.run(job("late", "true"), [])
    assert [file.name for file in Path("grid").iterdir() if file.name.startswith(".")] == []
    again = make()
    again.run(job("long", SAVES), [])
    assert job("long", "").score() == 0.7


@pytest.mark.slow
def test_runs_come_home(make: Callable[..., RayExecutor], tmp_path: Path) -> None:
    executor = make(collect=True)
    assert stopped(executor, job("long", SAVES), tmp_path / "started.long").startswith("signal 15")
    assert Path("grid/long/checkpoints/last.json").read_text() == "saved\n"
    assert "dem-apps-job-" in Path("grid/long.log").read_text()  # where it ran
    make(collect=True).run(replace(job("long", SAVES), run=tmp_path / "grid" / "long"), [])
    assert job("long", "").score() == 0.7
    assert Path("grid/long.log").read_text().splitlines()[-1] == "resumed"
    assert Path("grid/long/checkpoints/last.json").is_file()
    assert sorted(path.name for path in Path("grid").iterdir()) == ["long", "long.log"]


@pytest.mark.slow
def test_a_job_of_a_node_that_dies_is_run_by_another(
    make: Callable[..., RayExecutor], cluster: Any, tmp_path: Path
) -> None:
    script = f'echo x >> starts; if [ -e "$RUN/config.yaml" ]; then true{DONE}; exit 0; fi; '
    script += f'touch "$RUN/config.yaml"; {SAVES}'
    first = next(node for node in cluster.list_all_nodes() if not node.head)
    executor = make()
    thread = threading.Thread(target=executor.run, args=(job("moved", script), []))
    thread.start()
    while not (tmp_path / "started.moved").exists():
        time.sleep(0.02)
    cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
    cluster.remove_node(first, allow_graceful=False)
    thread.join(120)
    assert job("moved", "").score() == 0.5
    assert Path("starts").read_text() == "x\nx\n"
