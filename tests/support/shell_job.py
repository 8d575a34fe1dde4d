"""Jobs that are scripts."""

import sys
from pathlib import Path

import pytest

from dem_apps.jobs.executor import Job


def train_by(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every job run a Python file in place of its training command."""

    def command(job: Job) -> list[str]:
        return [sys.executable, str(script), *job.flags, "--run-dir", str(job.run)]

    monkeypatch.setattr(Job, "command", command)


class Shell(Job):
    """``module`` is the script; RUN is its run folder, which is there and counts its starts."""

    def command(self) -> list[str]:
        return [
            "sh",
            "-c",
            f'RUN={self.run}; mkdir -p "$RUN"; echo $$ >> "$RUN/starts"; {self.module}',
        ]
