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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kill_child import Moment, train

from dem_apps.runtime.checkpoint import load_checkpoint

NEVER = Moment()


@dataclass
class Tally:
    """What a training went through. Faults are sentences: a run that ended in another way, or with other files."""

    signals: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    faults: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "random_kills": self.signals["SIGKILL"], "random_sigterms": self.signals["SIGTERM"],
            "kills_in_writes": self.stages.total(), "resumes": self.signals.total() + self.stages.total(),
            "runs_compared": self.compared, "faults": self.faults, "stages": dict(self._kinds()),
        }  # fmt: skip

    def _kinds(self) -> Counter[str]:
        """Of stages, without files and steps."""
        kinds: Counter[str] = Counter()
        for stage, count in self.stages.items():
            words = stage.partition("@")[0].split()
            kinds[
                "flushed" if stage.endswith("flushed") else " ".join(words[:3] if words[1] == "a" else words[:1])
            ] += count
        return kinds


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, negative for a signal, what it printed, and the stages of its writes."""

    status: int
    printed: str
    stages: list[str]


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
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["seg.train", "rl.train", "seg.export", "seg.adapt", "rl.benchmark", "rl.tune"]
        )

    def arguments(self, run: Path) -> list[str]:
        """Those that start or, where the folder holds a run, continue it."""
        resume = (run / "config.yaml").is_file()
        return ["--run-dir", str(run), *(["--resume"] if resume else self._flags)]

    def differences(self, run: Path, whole: Path) -> list[str]:
        """In what a run that has ended differs from one that nothing happened to."""
        return differences(run, whole)

    def start(self, run: Path, moment: Moment = NEVER) -> multiprocessing.process.BaseProcess:
        """Start or, where it was begun, continue it."""
        arguments = self.arguments(run)
        files = (run.with_name(f"{run.name}.log"), run.with_name(f"{run.name}.stages"))
        process = self._context.Process(target=train, args=(self.module, arguments, *files, moment))
        process.start()
        return process

    def run(self, run: Path, moment: Moment = NEVER) -> Ended:
        """Start or continue a run, and wait for its end."""
        files = (run.with_name(f"{run.name}.log"), run.with_name(f"{run.name}.stages"))
        before = [file.stat().st_size if file.is_file() else 0 for file in files]
        process = self.start(run, moment)
        process.join()
        assert process.exitcode is not None
        printed, stages = (file.read_bytes()[size:].decode() for file, size in zip(files, before, strict=True))
        return Ended(process.exitcode, printed, stages.splitlines())

    def finish(self, run: Path, whole: Path, tally: Tally) -> None:
        """Continue a run to its end and compare it."""
        ended = self.run(run)
        if ended.status:
            tally.faults.append(f"{run.name}: status {ended.status}: {ended.printed[-300:]}")
        else:
            tally.faults += self.differences(run, whole)
            tally.compared += 1


def ended_at_random(
    training: Training,
    whole: Path,
    seconds: float,
    count: int,
    seed: int,
    tally: Tally,
    number: int = signal.SIGKILL,
    groups: bool = False,
) -> None:
    """End runs at random moments, several times each, until it was often enough; compare every run that finishes.

    Args:
        training: what is ended.
        whole: a run of it that was left alone.
        seconds: how long that took; a signal comes after a random part of it.
        count: of signals.
        seed: of the moments.
        tally: is added to.
        number: SIGKILL, or SIGTERM for a training that may save first.
        groups: every other signal goes to what the command has started as well.
    """
    moments, name, left = random.Random(seed), signal.Signals(number).name, count
    while left:
        run = training.folder / f"{name}-{left}"
        while left:
            started = time.monotonic()
            process = training.start(run)
            process.join(moments.uniform(0, seconds))
            if not process.is_alive():  # it was faster than the moment, and is compared all the same
                seconds = min(seconds, time.monotonic() - started)
                break
            _signal(process, number, groups and left % 2 == 1)
            process.join()
            # a SIGTERM finds it before the command has begun, in its work, or in its last words
            if number != signal.SIGKILL and process.exitcode not in (-number, 128 + number, 0):
                tally.faults.append(f"{run.name}: status {process.exitcode} after {name}")
            left -= 1
            tally.signals[name] += 1
        training.finish(run, whole, tally)
        shutil.rmtree(run)


def _signal(process: multiprocessing.process.BaseProcess, number: int, group: bool) -> None:
    assert process.pid is not None
    if group:
        # it has no group of its own in its first moments
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    os.kill(process.pid, number)


def killed_at_every_stage(training: Training, whole: Path, stages: Sequence[str], tally: Tally) -> None:
    """Kill a run at the first stage of its writes, continue it to the second, and so on; compare it when it ends.

    Args:
        training: what is killed.
        whole: a run of it that was left alone.
        stages: those of the latter, in order.
        tally: is added to.
    """
    run, saved = training.folder / "stages", next(stage for stage in stages if stage.startswith("renamed to last.json"))
    training.run(run, Moment(at=saved))
    continued = training.run(run).stages
    shutil.rmtree(run)
    for stage in dict.fromkeys([*stages, *continued]):
        # a stage may lie behind what the run has come to, and those of reading a checkpoint again before it
        for before in (None, None, saved):
            if before is not None:
                training.run(run, Moment(at=before))
            if training.run(run, Moment(at=stage)).status == -signal.SIGKILL:
                tally.stages[stage] += 1
                break
            training.finish(run, whole, tally)
            shutil.rmtree(run)
        else:
            tally.faults.append(f"{training.module}: never came to '{stage}'")
    training.finish(run, whole, tally)


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
