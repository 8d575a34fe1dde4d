"""Ctrl-C and SIGTERM: after the first a training saves and prints how to continue, the second stops it at once."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dem_apps.errors import Interrupted, NotWritten

if TYPE_CHECKING:
    import torch

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Signals this close together are one: the terminal and torchrun both send theirs.
_SAME_SECONDS = 0.5


class Stopped(Interrupted):
    """An interruption whose message is complete."""


class StopRequest:
    """The handling of Ctrl-C and SIGTERM while it is open.

    The first signal is kept for :meth:`asked`, and the second one raises :class:`Stopped`.
    ``resume`` is the command that continues the run; empty in ranks other than the main one, which print nothing.
    """

    def __init__(self, resume: str) -> None:
        self._resume = resume
        self._received = self._agreed = 0
        self._since = 0.0
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python changes handlers nowhere else
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self, device: torch.device | None = None) -> bool:
        """Return whether to save and stop now.

        Ranks call it at the same steps with their ``device``. One signal stops all.
        """
        import torch

        from dem_apps.reduction import world_size

        self._agreed = self._received
        if world_size() > 1:
            number = torch.tensor(self._received, device=device)
            torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX)
            self._agreed = int(number)
        return self._agreed != 0

    def stopped(self, step: int) -> Stopped:
        """The exception to raise once everything is saved."""
        return self._exception(self._agreed, f"interrupted at step {step}, everything is saved")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # a worker that inherited this handler ends with the training
        if os.getpid() != self._process:
            return
        if not self._received:
            self._received, self._since = number, time.monotonic()
            if self._resume and sys.stderr.isatty():
                # not print(), which the signal may have interrupted
                os.write(2, b"\nsaving after this step; once more stops at once, without saving\n")
        elif time.monotonic() - self._since >= _SAME_SECONDS:
            raise self._exception(number, "stopped at once, without saving")

    def _exception(self, number: int, text: str) -> Stopped:
        return Stopped(number, f"{text}; continue with: {self._resume}" if self._resume else "")


@contextmanager
def going_on_with(text: str) -> Iterator[None]:
    """Add how to continue, such as ``continue with: COMMAND``, to the message of an interruption or a full disk."""
    try:
        yield
    except NotWritten as error:
        raise NotWritten(error.problem, text) from error
    except Stopped:
        raise
    except KeyboardInterrupt as interruption:
        number = getattr(interruption, "number", signal.SIGINT)
        raise Stopped(number, f"interrupted; {text}") from interruption


def command_line(module: str, arguments: Sequence[str]) -> str:
    """``python -m MODULE ARGUMENTS``, to be typed into a shell."""
    return shlex.join(["python", "-m", module, *arguments])


def resume_command(module: str, run: Path) -> str:
    """The command that continues a training, with the launcher that it was started with."""
    from dem_apps.reduction import world_size

    command = command_line(module, ["--run-dir", str(run), "--resume"])
    if world_size() == 1:
        return command
    return f"the launcher of this run and {command.removeprefix('python ')}"
