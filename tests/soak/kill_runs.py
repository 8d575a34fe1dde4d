"""Trainings that are killed and continued until they finish, beside one that was never killed: the files must agree."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kill_child import Moment, train

from dem_apps.checkpoint import load_checkpoint

NEVER = Moment()


@dataclass
class Tally:
    """What a training went through. Faults are sentences: a run that ended in another way, or with other files."""

    random_kills: int = 0
    targeted_kills: int = 0
    resumes: int = 0
    compared: int = 0
    faults: list[str] = field(default_factory=list)
    stages: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, negative for a signal, and what it printed."""

    status: int
    printed: str


class Training:
    """One set of flags, run as often as wanted in folders of its own.

    Processes are forked off a server that has torch and the trainings imported: a start takes a fraction of a second.

    Args:
        module: ``seg.train`` or ``rl.train``.
        flags: without ``--run-dir``.
        folder: for everything it writes.
    """

    def __init__(self, module: str, flags: Sequence[str], folder: Path) -> None:
        self.module, self._flags, self.folder = module, list(flags), folder
        folder.mkdir(parents=True, exist_ok=True)
        self._stages = folder / "stages.txt"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["seg.train", "rl.train"])

    def start(self, run: Path, moment: Moment = NEVER) -> multiprocessing.process.BaseProcess:
        """Start or, where the folder holds a run, continue it."""
        resume = (run / "config.yaml").is_file()
        arguments = ["--run-dir", str(run), *(["--resume"] if resume else self._flags)]
        log = run.with_name(f"{run.name}.log")
        process = self._context.Process(target=train, args=(self.module, arguments, log, self._stages, moment))
        process.start()
        return process

    def run(self, run: Path, moment: Moment = NEVER) -> Ended:
        """Start or continue a run, and wait for its end."""
        log = run.with_name(f"{run.name}.log")
        before = log.stat().st_size if log.is_file() else 0
        process = self.start(run, moment)
        process.join()
        assert process.exitcode is not None
        return Ended(process.exitcode, log.read_bytes()[before:].decode())

    def finish(self, run: Path, whole: Path, tally: Tally) -> None:
        """Continue a run to its end and compare it."""
        ended = self.run(run)
        if ended.status:
            tally.faults.append(f"{run.name}: status {ended.status}: {ended.printed[-300:]}")
        else:
            tally.faults += differences(run, whole)
            tally.compared += 1

    def stages(self) -> list[str]:
        """Where the targeted kills so far fell."""
        return self._stages.read_text().splitlines() if self._stages.is_file() else []


def killed_at_random(
    training: Training,
    whole: Path,
    seconds: float,
    kills: int,
    seed: int,
    tally: Tally,
    until: float = float("inf"),
) -> None:
    """Kill runs at random moments, several times each, until there were enough kills; compare every one that ends.

    Args:
        training: what is killed.
        whole: a run of it that was not.
        seconds: how long that took; a kill comes after a random part of it.
        kills: how many.
        seed: of the moments.
        tally: is added to.
        until: begin no other run after this time of ``time.monotonic()``.
    """
    moments, number, left = random.Random(seed), 0, kills
    while left and time.monotonic() < until:
        run = training.folder / f"random-{number}"
        while left:
            process = training.start(run)
            process.join(moments.uniform(0, seconds))
            if not process.is_alive():
                break  # a training that was faster than the moment is compared all the same
            os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
            process.join()
            left -= 1
            tally.random_kills += 1
            tally.resumes += 1
        training.finish(run, whole, tally)
        shutil.rmtree(run)
        number += 1


def killed_at_every_stage(training: Training, whole: Path, tally: Tally) -> None:
    """Kill one run at its first stage of writing, continue it to the second, and so on until it ends."""
    run, stage = training.folder / "stages", 1
    while (ended := training.run(run, Moment(stage=stage))).status == -signal.SIGKILL:
        tally.targeted_kills += 1
        tally.resumes += 1
        stage += 1
    if ended.status:
        tally.faults.append(f"{run.name}, stage {stage}: status {ended.status}: {ended.printed[-300:]}")
    else:
        training.finish(run, whole, tally)  # it is finished: once more must change nothing
    tally.stages.update(training.stages())
    shutil.rmtree(run)


def differences(run: Path, whole: Path) -> list[str]:
    """In what a run differs from one that was never killed, and what it left behind."""
    found = [
        f"{run.name}: {name} differs"
        for name in _compared_files(run) | _compared_files(whole)
        if _content(run / name) != _content(whole / name)
    ]
    checkpoints = sorted(path.name.split(".")[0] for path in (whole / "checkpoints").glob("*.json"))
    for name in checkpoints:
        mine, other = (load_checkpoint(folder / "checkpoints", name) for folder in (run, whole))
        if not same(mine, other):
            found.append(f"{run.name}: checkpoint {name} differs")
    if len(list((run / "checkpoints").iterdir())) != 2 * len(checkpoints):
        found.append(f"{run.name}: files left in checkpoints/")
    found += [f"{run.name}: {path.name} was left" for path in run.rglob("*.tmp")]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two states of a training are equal, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return torch.equal(torch.as_tensor(one), torch.as_tensor(other)) if hasattr(one, "shape") else bool(one == other)


def _compared_files(run: Path) -> set[str]:
    pictures = {str(path.relative_to(run)) for path in run.rglob("*.png")}
    return {"metrics.jsonl", "eval.json"} | pictures


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
