"""Ctrl-C and SIGTERM: a training saves before it stops, a write is never cut in two, and the user hears how to go on.

The first signal only asks. The training finishes the step that it is in, saves, and ends with 130 or 143 and the line
that continues it. The second signal ends it at once, with what the last checkpoint has.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from dem_apps.errors import Interrupted, NotWritten
from dem_apps.reduction import world_size

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Signals this close together are one: torchrun and ``timeout`` send theirs to a process that the terminal's or the
#: group's signal has reached already.
_SAME_SECONDS = 0.5


class Stopped(Interrupted):
    """An interruption that has told everything there is to tell."""


class StopRequest:
    """While it is open, the first signal is kept for :meth:`asked` and the second one raises :class:`Stopped`.

    Args:
        resume: the command that continues the run; empty in processes that leave the talking to another.
        saved_step: the step of the last checkpoint; None before the first.
    """

    def __init__(self, resume: str, saved_step: Callable[[], int | None]) -> None:
        self._resume, self._saved_step = resume, saved_step
        self._received = self._agreed = 0
        self._since = 0.0
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> StopRequest:
        self._process = os.getpid()
        self._before = _install(self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def asked(self, device: torch.device | None = None) -> bool:
        """Whether to save and stop now.

        Every process of a training has to ask at the same steps: they agree, since the signal reaches each at another
        moment and one that went on would wait for the others forever.

        Args:
            device: of this process's tensors; needed with several processes.
        """
        if world_size() == 1:
            self._agreed = self._received
        else:
            number = torch.tensor(self._received, device=device)
            dist.all_reduce(number, op=dist.ReduceOp.MAX)
            self._agreed = int(number)
        return self._agreed != 0

    def stopped(self, step: int) -> Stopped:
        """What to raise once everything is saved."""
        return self._exception(self._agreed, f"interrupted at step {step}, everything is saved; continue with")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child that inherited this handler has nothing to save
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._received:
            self._received, self._since = number, time.monotonic()
            if self._resume and sys.stderr.isatty():
                # not print(), which the signal may have interrupted
                os.write(2, b"\nsaving after this step; once more stops at once, without saving\n")
        elif time.monotonic() - self._since >= _SAME_SECONDS:
            saved = self._saved_step()
            at = "before the first checkpoint" if saved is None else f"the last checkpoint is of step {saved}"
            raise self._exception(number, f"stopped at once, {at}; continue with")

    def _exception(self, number: int, text: str) -> Stopped:
        return Stopped(number, f"{text}: {self._resume}" if self._resume else "")


@contextmanager
def going_on_with(text: str) -> Iterator[None]:
    """Whoever interrupts the block, or whose disk is full in it, is told how to go on.

    Args:
        text: such as ``continue with: COMMAND``.
    """
    try:
        yield
    except NotWritten as error:
        raise NotWritten(error.problem, error.remedy, text) from error
    except Stopped:
        raise
    except KeyboardInterrupt as interruption:
        number = interruption.number if isinstance(interruption, Interrupted) else signal.SIGINT
        raise Stopped(number, f"interrupted; {text}") from interruption


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that come inside are delivered at the end, so that what is written is written to its end."""
    came: list[int] = []
    before = _install(lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        _restore(before)
        for number in came:
            signal.raise_signal(number)


@contextmanager
def signals_kept() -> Iterator[None]:
    """Handlers that a library installs in the block for itself are gone at its end."""
    before = _handlers()
    try:
        yield
    finally:
        _restore(before)


def command_line(module: str, arguments: Sequence[str]) -> str:
    """``python -m MODULE ARGUMENTS``, to be typed into a shell."""
    return shlex.join(["python", "-m", module, *arguments])


def resume_command(module: str, run: Path) -> str:
    """What continues a training, started as this one was: with as many processes."""
    arguments = ["--run-dir", str(run), "--resume"]
    if world_size() == 1:
        return command_line(module, arguments)
    if os.environ.get("LOCAL_WORLD_SIZE") == str(world_size()):
        return shlex.join(["torchrun", "--standalone", "--nproc-per-node", str(world_size()), "-m", module, *arguments])
    return f"the launcher of this run and -m {module} {shlex.join(arguments)}"


Handler = Callable[[int, FrameType | None], object] | int | None


def _handlers() -> dict[signal.Signals, Handler]:
    """The handlers that there are; none outside the main thread, where Python lets none be changed."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in SIGNALS}


def _install(handler: Callable[[int, FrameType | None], object]) -> dict[signal.Signals, Handler]:
    """The handlers that were there."""
    before = _handlers()
    for number in before:
        signal.signal(number, handler)
    return before


def _restore(before: dict[signal.Signals, Handler]) -> None:
    for number, handler in before.items():
        # None is a handler that did not come from Python, and cannot be put back
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
