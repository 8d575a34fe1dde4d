"""Runs many training commands, a few at a time, so that a killed grid can be started again and goes on."""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One training: ``python -m MODULE *flags --run-dir FOLDER/NAME``."""

    name: str
    module: str
    flags: tuple[str, ...]

    def scores(self, folder: Path) -> dict[str, Any] | None:
        """The run's ``eval.json``, or None while it is not finished."""
        file = folder / self.name / "eval.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def execute(self, folder: Path) -> None:
        """Run it unless it is finished, from its last checkpoint if it has one; output goes beside the folder."""
        if self.scores(folder) is not None:
            return
        resume = ["--resume"] if (folder / self.name / "checkpoints" / "last.json").is_file() else []
        command = [sys.executable, "-m", self.module, *self.flags, "--run-dir", str(folder / self.name), *resume]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(folder / f"{self.name}.log", "a", encoding="utf-8") as log:
            status = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
        print(f"{self.name}: {'done' if status == 0 else f'failed with status {status}, see its .log'}", flush=True)


def run_grid(jobs: list[Job], folder: Path, workers: int, after_each: Callable[[], object]) -> None:
    """Run what is missing; ``after_each`` is called whenever a job has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda job: job.execute(folder), jobs):
            after_each()


def write_csv(rows: list[dict[str, str]], out: Path) -> None:
    """Write the rows, all with the same keys."""
    if not rows:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def mean_and_deviation(values: list[float], digits: int) -> str:
    """``mean ± sample standard deviation``."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"
