"""What a job costs beside its training, and what a folder costs to look through as a grid or a search grows.

    python benchmarks/scale.py [--jobs 10 100 1000] [--workers 8] [--runs 10 100 1000] [--out docs/results/scale.json]

Jobs are empty: a shell writes ``eval.json``. They go through :func:`dem_apps.jobs.grid.run_grid`, on this machine and
on a cluster of Ray's of one worker, which is started and stopped here; without Ray only the first. Folders hold
finished runs as ``rl.train`` writes them, without checkpoints.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.distributions import FloatDistribution
from rich.console import Console

from dem_apps.jobs.executor import Executor, LocalExecutor
from dem_apps.jobs.grid import Cells, run_grid
from dem_apps.jobs.job import Job
from dem_apps.jobs.progress import GridProgress
from dem_apps.jobs.search import Space, TPEPlan
from dem_apps.jobs.study import StudyFolder
from dem_apps.runtime.device import processor
from dem_apps.runtime.extras import is_installed
from dem_apps.runtime.run_claim import refuse_ways_out
from dem_apps.runtime.run_folder import read_config

SCRIPT = """mkdir -p "$1" && echo '{"score": 0.5}' > "$1/eval.json" """
#: As many settings as rl.train's config.yaml has, and lines of metrics of a run of 100 evaluations.
SETTINGS, LINES = 40, 100
POINTS = Space({"x": FloatDistribution(0.0, 100.0, step=0.01)})


@dataclass(frozen=True)
class Empty(Job):
    """Writes its result and ends."""

    def command_from(self, resumed: bool) -> list[str]:
        """A shell, the cheapest process."""
        return ["sh", "-c", SCRIPT, "sh", str(self.run)]


def cells(folder: Path, count: int) -> Cells:
    """A grid of empty jobs."""
    return {("row", "arm"): [Empty(f"job {n}", "", (), folder / f"seed{n}", 1, "score") for n in range(count)]}


def overhead(executor: Executor, folder: Path, jobs: int, workers: int) -> dict[str, Any]:
    """Seconds of a whole grid, and of the same command again, which finds everything done."""
    grid = cells(folder, jobs)
    began = time.perf_counter()
    failures = run_grid(grid, executor, workers, GridProgress(grid, Console(file=io.StringIO())))
    seconds = time.perf_counter() - began
    if failures:
        raise SystemExit(f"error: {next(iter(failures.values()))}")
    return {"jobs": jobs, "seconds": round(seconds, 3), "milliseconds_per_job": round(1000 * seconds / jobs, 1)}


def executors(work: Path, stack: ExitStack) -> dict[str, Callable[[Path], Executor]]:
    """By name, each made anew for a folder."""
    made: dict[str, Callable[[Path], Executor]] = {"local": lambda _folder: LocalExecutor({})}
    if is_installed("ray"):
        from ray.cluster_utils import Cluster

        from dem_apps.jobs.cluster.executor import RayExecutor

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        small = {"object_store_memory": 80_000_000}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
        stack.callback(cluster.shutdown)
        cluster.add_node(num_cpus=2, **small)
        made["ray"] = lambda folder: RayExecutor({}, cluster.address, 1, 0.0, folder, False)
        made["ray, collected"] = lambda folder: RayExecutor({}, cluster.address, 1, 0.0, folder, True)
    return made


def write_runs(folder: Path, count: int) -> list[Job]:
    """Finished runs."""
    config = yaml.safe_dump({f"setting_{n}": n for n in range(SETTINGS)})
    metrics = "".join(
        json.dumps({"step": n, "eval/mean_return": n / 7, "train/loss": 0.1}) + "\n" for n in range(LINES)
    )
    jobs: list[Job] = [Empty(f"{n}", "", (), folder / f"seed{n}", LINES, "score") for n in range(count)]
    for job in jobs:
        (job.run / "checkpoints").mkdir(parents=True)
        for name, text in {
            "config.yaml": config, "metrics.jsonl": metrics, "eval.json": '{"score": 0.5}', "environment.json": "{}",
            "metrics_info.json": "{}", "run.lock": "", "checkpoints/last.json": "{}", "checkpoints/best.json": "{}",
        }.items():  # fmt: skip
            (job.run / name).write_text(text)
    return jobs


def median_of(repeats: int, work: Callable[[], object]) -> float:
    """Seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times), 5)


def scans(folder: Path, count: int, repeats: int) -> dict[str, Any]:
    """Seconds that a command of a grid of so many finished runs spends on its folder before it starts anything."""
    jobs = write_runs(folder, count)
    grid = {("row", "arm"): jobs}
    return {
        "runs": count,
        "links": median_of(repeats, lambda: refuse_ways_out(folder)),
        "settings": median_of(repeats, lambda: [read_config(job.run) for job in jobs]),
        "scores": median_of(repeats, lambda: GridProgress(grid, Console(file=io.StringIO()))),
    }


def study(folder: Path, count: int, repeats: int) -> dict[str, Any]:
    """Seconds to open a study of so many finished trials, and to enter one more, without the plan's own thinking."""
    plan = TPEPlan(POINTS, 10**6, first=tuple({"x": round(n / 100, 2)} for n in range(count + repeats)))
    opened = StudyFolder(folder, {})
    times = []
    for _ in range(count):
        began = time.perf_counter()
        claim = opened.claim(POINTS, plan, set())
        assert claim is not None
        opened.settle(claim, 0.5)
        times.append(time.perf_counter() - began)
    return {
        "trials": count,
        "open": median_of(repeats, lambda: StudyFolder(folder, {})),
        "claim_and_settle": round(statistics.median(times[-10:]), 5),
        "journal_bytes": (folder / "journal.log").stat().st_size,
    }


def environment() -> dict[str, Any]:
    """The machine and the versions."""
    packages = {name: metadata.version(name) for name in ("ray", "optuna") if is_installed(name)}
    return {
        "cpu": processor()[0], "cpu_count": os.cpu_count(), "load_before": os.getloadavg()[0], **packages,
        "python": platform.python_version(), "platform": platform.platform(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python", "benchmarks/scale.py", *sys.argv[1:]]),
    }  # fmt: skip


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1000], help="sizes of the grids of empty jobs")
    parser.add_argument("--workers", type=int, default=8, help="jobs at a time")
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000], help="sizes of the folders")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each scan")
    parser.add_argument("--out", type=Path, help="file for the raw values")
    options = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "overhead": {}, "scans": [], "studies": []}
    with tempfile.TemporaryDirectory(prefix="scale-") as folder, ExitStack() as stack:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        work = Path(folder)
        for count in options.runs:
            result["scans"].append(scans(work / f"runs{count}", count, options.repeats))
            result["studies"].append(study(work / f"study{count}", count, options.repeats))
            print(result["scans"][-1], result["studies"][-1], flush=True)
        for name, make in executors(work, stack).items():
            rows = []
            for jobs in options.jobs:
                place = work / name.replace(", ", "-") / str(jobs)
                began = time.perf_counter()
                executor = make(place)
                connected = round(time.perf_counter() - began, 3)
                rows.append({"connect_seconds": connected, **overhead(executor, place, jobs, options.workers)})
                print(name, rows[-1], flush=True)
            result["overhead"][name] = rows
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
