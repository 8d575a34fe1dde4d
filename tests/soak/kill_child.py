"""A training in a process of its own, which may kill itself at a chosen moment: between two writes, or in one."""

from __future__ import annotations

import fnmatch
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Where a training takes its steps; a signal is sent to it in the middle of one.
STEPS = {"seg.train": "seg.train:training_step", "rl.train": "rl.envs.make:StackedEnvs.step_wait"}


@dataclass(frozen=True)
class Moment:
    """When a training ends itself, or gets a signal.

    Args:
        at: SIGKILL at the first stage of its writes whose name is like this pattern: a file half written, written,
            flushed, renamed, removed, a line of metrics half written. A checkpoint's stages end with ``@STEP``.
        nth: not at the first such stage but at this one.
        call: a signal during this call, counted from 1, of its function ``of``.
        of: ``module:name``; none takes what makes a training step.
        number: which signal.
        group: send it to its own process group, workers included, as ``timeout`` and a terminal do.
        fill: make this file as large as the disk allows instead of sending a signal.
    """

    at: str = ""
    nth: int = 1
    call: int = 0
    of: str = ""
    number: int = signal.SIGTERM
    group: bool = False
    fill: Path | None = None


def train(module: str, arguments: Sequence[str], log: Path, stages: Path, moment: Moment) -> None:
    """What ``python -m MODULE ARGUMENTS`` does; prints go to ``log``, the names of its stages to ``stages``."""
    os.setpgid(0, 0)
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # as in a process of its own; a server for each training's workers would import torch once more
    multiprocessing.set_start_method("fork", force=True)
    sys.argv = [module, *arguments]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from dem_apps.runtime.command import run_command

    training = importlib.import_module(module)
    if module == "seg.adapt":  # it saves twice a minute, and here it lasts seconds
        importlib.import_module("seg.adaptation.flow")._SAVE_EVERY = 0.0
    _Stages(moment, stages).listen()
    if moment.call:
        _at_call(moment, moment.of or STEPS[module])
    run_command(training.main if hasattr(training, "main") else training._main)


class _Stages:
    """Writes down the stages of writing as they come, and ends this process at one of them."""

    def __init__(self, moment: Moment, journal: Path) -> None:
        self._at, self._left = moment.at, moment.nth
        self._journal = open(journal, "a", buffering=1)  # noqa: SIM115 (open until the process ends)
        self._latest, self._step = "", ""

    def listen(self) -> None:
        """Wrap every function through which a run folder is written."""
        from dem_apps.runtime import checkpoint
        from dem_apps.runtime.run_folder import RunFolder

        self._wrap(os, "replace", lambda _old, new: ("", f"renamed to {self._name(new)}"))
        self._wrap(os, "unlink", lambda path, **_: ("", f"removed {self._name(path)}"))
        self._wrap(os, "mkdir", lambda path, *_, **__: ("", f"made {self._name(path)}"))
        self._wrap(os, "fsync", lambda _file: ("", f"{self._latest}, flushed"))
        self._wrap(
            checkpoint, "write_bytes",
            lambda path, _: (f"half of {self._name(path)}", f"wrote {self._name(path)}"),
            lambda path, content: Path(path).write_bytes(content[: len(content) // 2]),
        )  # fmt: skip
        self._wrap(RunFolder, "log", lambda _run, step, **_: (f"half a line of metrics@{step}", ""), _half_a_line)

    def _wrap(
        self,
        owner: Any,
        name: str,
        stages: Callable[..., tuple[str, str]],
        halve: Callable[..., object] = lambda *_, **__: None,
    ) -> None:
        genuine = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            before, after = stages(*arguments, **named)
            self._reached(before, lambda: halve(*arguments, **named))
            result = genuine(*arguments, **named)
            self._reached(after)
            return result

        setattr(owner, name, wrapped)

    def _reached(self, stage: str, halve: Callable[[], object] = lambda: None) -> None:
        if not stage:
            return
        self._latest = stage
        self._journal.write(stage + "\n")
        if fnmatch.fnmatchcase(stage, self._at):
            self._left -= 1
            if self._left == 0:
                halve()
                os.kill(os.getpid(), signal.SIGKILL)

    def _name(self, path: Any) -> str:
        """A file's name without what differs from run to run; a checkpoint's with its step."""
        name = Path(path).name
        ending = ".tmp" if name.endswith(".tmp") else ""
        if ".safetensors" in name:
            checkpoint, self._step, *_ = name.split(".")
            return f"{checkpoint} tensors{ending}@{int(self._step)}"
        if Path(path).parent.name == "checkpoints" and self._step:
            return f"{name}@{int(self._step)}"
        return name if Path(name).suffix else "a folder"


def _half_a_line(run: Any, step: int, **_: Any) -> None:
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write(f'{{"step": {step}, "lo')


def _at_call(moment: Moment, function: str) -> None:
    module, _, path = function.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    genuine, calls = getattr(owner, name), iter(range(1, sys.maxsize))

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = genuine(*arguments, **named)
        if next(calls) == moment.call:
            _strike(moment)
        return result

    setattr(owner, name, wrapped)


def _strike(moment: Moment) -> None:
    if moment.fill is not None:
        _fill(moment.fill)
    elif moment.group:
        # by another process: what the main one sends its workers itself is an order to end
        subprocess.run(["kill", f"-{int(moment.number)}", "--", f"-{os.getpgrp()}"], start_new_session=True, check=True)
    else:
        os.kill(os.getpid(), moment.number)


def _fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(512))
        except OSError:
            return
