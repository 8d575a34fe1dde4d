"""Between a process of Ray's and a training: it starts the training, passes a stop on, and says how it ended.

Ray kills its processes and their children without notice: when a command ends, when a task is given up. So this process
leaves that family before it starts a training, and takes the end of the pipe for the order to stop: the training gets
SIGTERM, saves, and ends. It holds the lock on the job meanwhile, so whoever is to run it next waits for that.

    python -I -S -c SOURCE LOCK LOG REMOVED

``LOCK`` is the file that is locked while the training lives, ``LOG`` takes what it prints, ``REMOVED`` is a folder that
goes with it if nobody is left to collect it, or empty. On standard input comes one line, the command as JSON, once
``locked`` was said on standard output; any byte after it, or the end, asks to stop. ``ended STATUS`` is said last.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

_LOOKS = 0.1  # seconds between looks at the training and at the pipe


class Orders:
    """Standard input, read without waiting longer than asked."""

    def __init__(self) -> None:
        self._bytes = b""
        self.closed = False

    def read(self, seconds: float) -> None:
        """Take what comes within that time."""
        if self.closed:
            select.select([], [], [], seconds)
        elif select.select([0], [], [], seconds)[0]:
            got = os.read(0, 65536)
            self._bytes += got
            self.closed = not got

    def command(self) -> list[str] | None:
        """The first line, once it is whole."""
        line, end, _ = self._bytes.partition(b"\n")
        return list(json.loads(line)) if end else None

    def stop(self) -> bool:
        """Whether anything came after the first line, or whoever gave it is gone."""
        return self.closed or bool(self._bytes.partition(b"\n")[2])


def supervise(lock_path: str, log_path: str, removed: str) -> None:
    """One training, from the lock to its end."""
    orders = Orders()
    lock = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o666)
    while not _locked(lock):
        orders.read(_LOOKS)
        if orders.closed:
            return
    _say("locked")
    while (command := orders.command()) is None and not orders.closed:
        orders.read(_LOOKS)
    if command is None:
        return
    log = os.open(log_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    os.write(log, f"$ {shlex.join(command)}\n".encode())
    try:
        training = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock], start_new_session=True
        )
    except OSError as error:
        os.write(log, f"{error}\n".encode())
        _say("ended 127")
        return
    _say(f"ended {_watched(training, orders)}")
    if removed and orders.closed:
        shutil.rmtree(removed, ignore_errors=True)


def _watched(training: subprocess.Popen[bytes], orders: Orders) -> int:
    """Its exit status; minus the signal's number if a signal killed it."""
    asked = False
    while training.poll() is None:
        orders.read(_LOOKS)
        if not asked and orders.stop():
            asked = True
            training.terminate()
    return training.returncode


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # whoever asked is gone, and the lock says the rest
        os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal that is none of the training's
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    supervise(*sys.argv[1:4])
