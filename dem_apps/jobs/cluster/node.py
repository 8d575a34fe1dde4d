"""A job on the node that Ray gave it: what :class:`dem_apps.jobs.cluster.executor.RayExecutor` sends there.

The functions are sent as they are, so that a process of Ray's imports neither torch nor this package, and a node whose
installation differs can still say so. A job is a process of its own under :mod:`dem_apps.jobs.cluster.supervise`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dem_apps.jobs.cluster.transfer import pack, unpack

#: What has to be the same on all machines, or one grid would mix the numbers of two programs.
_COMPARED = (
    "torch", "numpy", "dem-apps", "segmentation-models-pytorch", "albumentations", "stable-baselines3", "gymnasium",
)  # fmt: skip
#: Bytes of a part of an archive: a few of them fit into a small object store.
_PART = 4 << 20
#: Seconds from one copy of a running job to the next, and how many times longer than the copy itself took.
_BETWEEN_COPIES, _SHARE_OF_COPIES = 20.0, 20.0
#: Seconds between looks at the training.
_LOOKS = 0.2


@dataclass(frozen=True)
class Order:
    """What a node is told about a job, in plain values.

    Args:
        begin: the command that starts the training.
        resume: the command that continues it.
        python: the interpreter in these commands, which is another path on another node.
        run: the run folder in these commands.
        folder: the folder that the command was started in.
        environment: variables of the training, over those of Ray's process.
        versions: of :func:`versions` where the command was started.
        token: a file beside the runs, which a node that shares their disk can see; None if they are collected.
        supervisor: source of :mod:`dem_apps.jobs.cluster.supervise`.
        home: the actor that takes a collected run, None on a shared path.
    """

    begin: list[str]
    resume: list[str]
    python: str
    run: str
    folder: str
    environment: dict[str, str]
    versions: dict[str, str]
    token: str | None
    supervisor: str
    home: Any = field(default=None)


class Home:
    """Where the command was started: takes collected run folders, and gives them out again; an actor of Ray's."""

    def __init__(self) -> None:
        self._archives = Path(tempfile.mkdtemp(prefix="dem-apps-home-"))

    def size(self, run: str) -> int:
        """Bytes of the archive of what is here of a run; :meth:`part` gives it out."""
        archive = self._archive(run, "out")
        pack(Path(run), archive)
        return archive.stat().st_size

    def part(self, run: str, start: int) -> bytes:
        """Some of the archive, from a byte on."""
        with open(self._archive(run, "out"), "rb") as file:
            file.seek(start)
            return file.read(_PART)

    def take(self, run: str, start: int, part: bytes) -> None:
        """Some of an archive that arrives, in order."""
        with open(self._archive(run, "in"), "wb" if not start else "ab") as file:
            file.write(part)

    def place(self, run: str) -> None:
        """All of it has arrived."""
        archive = self._archive(run, "in")
        unpack(archive, Path(run))
        archive.unlink()

    def log(self, run: str, text: bytes) -> None:
        """What a training has printed, behind what its earlier starts have."""
        # through no link that somebody put there
        number = os.open(f"{run}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        with os.fdopen(number, "ab") as file:
            file.write(text)

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._archives, ignore_errors=True)

    def _archive(self, run: str, way: str) -> Path:
        return self._archives / f"{hashlib.sha256(run.encode()).hexdigest()}.{way}.tar"


def versions() -> dict[str, str]:
    """Of what the numbers of a training depend on, as far as it is installed here."""
    found = dict[str, str]()
    for package in _COMPARED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # on a path, as a checkout is
    return found


def refusal(order: Order) -> str | None:
    """Why this node cannot do what it is told, and what would be right; None if it can."""
    here = versions()
    for name, version in order.versions.items():
        if name in here and here[name] != version:
            return f"has {name} {here[name]}, this machine {version}; install the same versions on all nodes"
    if order.token is None:
        return None
    if not Path(order.folder).is_dir():
        return f"has no folder {order.folder}, where this command was started; start it in one that all nodes have"
    if not (Path(order.folder) / order.token).is_file():
        folder = Path(order.folder, order.token).parent
        return f"does not see the files in {folder}; put the runs on a disk that all nodes share, or give --collect"
    return None


def run_job(order: Order) -> dict[str, Any]:
    """Run a job to its end, or until Ray is asked to cancel it, and the training has saved.

    Returns:
        ``status`` of the training, minus the signal's number if one killed it, and whether it has ``finished``; or why
        this ``node`` has ``refused``.
    """
    asked: list[int] = []
    # Ray cancels a task by this signal; as an exception it could come anywhere
    before = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    try:
        why = refusal(order)
        if why is not None:
            return {"refused": why, "node": platform.node()}
        if order.home is not None:
            return _collected(order, lambda: bool(asked))
        run = Path(order.folder, order.run)
        return _ended(run, _supervised(order, run, "", lambda: bool(asked), lambda: None))
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(run: Path, status: int) -> dict[str, Any]:
    return {"status": status, "finished": (run / "eval.json").is_file()}


def _collected(order: Order, stop: Callable[[], bool]) -> dict[str, Any]:
    """Run it in a folder of this node, from what the last node has sent home, and send the rest home."""
    scratch = Path(tempfile.mkdtemp(prefix="dem-apps-job-"))
    run = scratch / Path(order.run).name
    copies = _Copies(order, run, scratch / "archive.tar")
    try:
        copies.fetch()
        status = _supervised(order, run, str(scratch), stop, copies.look)
        copies.send()
        copies.send_log()
        return _ended(run, status)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Copies:
    """Brings a run here, and home again: at its end, and now and then before it, in case this node dies."""

    def __init__(self, order: Order, run: Path, archive: Path) -> None:
        self._home, self._name = order.home, str(Path(order.folder, order.run))
        self._run, self._archive = run, archive
        self._sent: bytes | None = None
        self._next = time.monotonic() + _BETWEEN_COPIES

    def fetch(self) -> None:
        """What has come home of earlier starts."""
        size, start = _wait_for(self._home.size.remote(self._name)), 0
        with open(self._archive, "wb") as file:
            while start < size:
                part = _wait_for(self._home.part.remote(self._name, start))
                file.write(part)
                start += len(part)
        unpack(self._archive, self._run)
        self._sent = self._checkpoint()

    def look(self) -> None:
        """Send a copy if there is a new checkpoint and the last copy is a while ago."""
        if time.monotonic() >= self._next and self._checkpoint() not in (None, self._sent):
            began = time.monotonic()
            self.send()
            took = time.monotonic() - began
            self._next = time.monotonic() + max(_BETWEEN_COPIES, _SHARE_OF_COPIES * took)

    def send(self) -> None:
        """The run as it is now."""
        self._sent = self._checkpoint()
        if not self._run.is_dir():
            return
        pack(self._run, self._archive)
        start = 0
        with open(self._archive, "rb") as file:
            while part := file.read(_PART):
                _wait_for(self._home.take.remote(self._name, start, part))
                start += len(part)
        _wait_for(self._home.place.remote(self._name))

    def send_log(self) -> None:
        """What the training has printed, after its end."""
        with suppress(FileNotFoundError):  # it never began
            _wait_for(self._home.log.remote(self._name, Path(f"{self._run}.log").read_bytes()))

    def _checkpoint(self) -> bytes | None:
        try:
            return (self._run / "checkpoints" / "last.json").read_bytes()
        except FileNotFoundError:
            return None


def _wait_for(reference: Any) -> Any:
    import ray  # only on a node, where it is there

    return ray.get(reference)


def _supervised(order: Order, run: Path, removed: str, stop: Callable[[], bool], look: Callable[[], None]) -> int:
    """The exit status of the training in ``run``, an absolute path; ``look`` is called once in a while."""
    run.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", order.supervisor, f"{run}.node.lock", f"{run}.log", removed],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **order.environment},
        cwd=order.folder if Path(order.folder).is_dir() else str(run.parent),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.wait()  # it goes on as nobody's child
    with process.stdin as pipe, process.stdout as answers:
        asked, said = False, b""
        while not said.endswith(b"\n") or b"ended" not in said:
            if stop() and not asked:
                asked = True
                if not said:
                    return -signal.SIGTERM  # nothing has begun, and without the pipe nothing will
                _write(pipe.fileno(), b"stop\n")
            if select.select([answers], [], [], _LOOKS)[0]:
                got = os.read(answers.fileno(), 4096)
                if not got:
                    return -signal.SIGKILL  # of the process between
                if not said:
                    _write(pipe.fileno(), json.dumps(_command(order, run)).encode() + b"\n")
                said += got
            look()
    return int(said.split()[-1])


def _command(order: Order, run: Path) -> list[str]:
    command = order.resume if (run / "config.yaml").is_file() else order.begin
    changed = {order.python: sys.executable}
    if order.home is not None:
        changed[order.run] = str(run)
    return [changed.get(part, part) for part in command]


def _write(descriptor: int, content: bytes) -> None:
    with suppress(BrokenPipeError):  # its end is read on the other pipe
        os.write(descriptor, content)
