"""The run folder: everything that one training command writes. Its reader is ``run_reader``.

``config.yaml`` (resolved settings), ``environment.json`` (versions, device, …), ``metrics_info.json`` (what the metrics
are), ``metrics.jsonl`` (an object with ``step`` a line), TensorBoard events, ``checkpoints/``, the application's own.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from torch.utils.tensorboard import SummaryWriter

from dem_apps.errors import InputError, NotWritten, passed_on
from dem_apps.runtime.checkpoint import SUFFIX, load_checkpoint, save_checkpoint
from dem_apps.runtime.device import processor
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import DRAFT, sweep, write_atomically, write_json
from dem_apps.runtime.metrics_info import FILE as METRICS_INFO
from dem_apps.runtime.metrics_info import MetricsInfo
from dem_apps.runtime.run_reader import LOCK, read_config, read_metrics

#: Files of a run that was killed before it had its ``config.yaml``.
_NO_RUN_YET = {LOCK, "environment.json", METRICS_INFO}
_PACKAGES = (
    "torch",
    "torchvision",
    "segmentation-models-pytorch",
    "albumentations",
    "stable-baselines3",
    "gymnasium",
    "minigrid",
    "numpy",
)


class RunFolder:
    """An open run folder, locked for one process until that process ends.

    :meth:`create` and :meth:`resume` make it. ``saved_step`` is the step of the checkpoint
    ``last``, None before the first. A full disk is a :class:`dem_apps.errors.NotWritten` that says
    what is safe.
    """

    def __init__(self, path: Path, lock: FileLock, start_step: int | None = None) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.saved_step = start_step
        self._lock = lock
        with self._writing():
            for folder in {left.parent for left in path.rglob(f"{DRAFT}*")}:
                sweep(folder)
            log = path / "metrics.jsonl"
            if log.is_file():  # the run repeats later steps
                lines = [line for line in read_metrics(path) if line["step"] <= (start_step or 0)]
                write_atomically(log, "".join(json.dumps(line) + "\n" for line in lines).encode())
            self._metrics = open(log, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
            purge_step = None if start_step is None else start_step + 1
            self._tensorboard = SummaryWriter(str(path), purge_step=purge_step)

    @classmethod
    def create(
        cls,
        path: Path,
        config: Document,
        seed: int,
        device: str,
        info: MetricsInfo | None = None,
    ) -> RunFolder:
        """Start a run.

        Args:
            path: the folder, new or empty.
            config: the resolved settings.
            seed: the run's seed.
            device: torch's name of the device.
            info: what the metrics are.

        Returns:
            The open folder.

        Raises:
            InputError: the folder is used or cannot be made.
        """
        _refuse_used(path)
        with passed_on(f"--run-dir {path}", PermissionError, NotADirectoryError, FileExistsError):
            path.mkdir(parents=True, exist_ok=True)
            lock = _locked(path)
            # another process may have made a run of it before this one had the lock
            _refuse_used(path)
            write_json(path / "environment.json", environment(seed, device))
            if info is not None:
                write_json(path / METRICS_INFO, asdict(info))
            # last: a folder that has it can be resumed
            write_atomically(path / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode())
        return cls(path, lock)

    @classmethod
    def resume(cls, path: Path, start_step: int | None) -> RunFolder:
        """Continue a run after ``start_step``.

        It is the step of the checkpoint that was read, or None where there was none yet.
        """
        return cls(path, _locked(path), start_step)

    def log(self, step: int, **values: float | str) -> None:
        """Append one line to ``metrics.jsonl``, with null for NaN; numbers go to TensorBoard as well."""
        line: Document = {"step": step, **values}
        with self._writing():
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._tensorboard.add_scalar(name, value, step)
                    line[name] = value if math.isfinite(value) else None
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()
            self._tensorboard.flush()

    def log_image(self, name: str, image_hwc: Any, step: int) -> None:
        """Show an (H, W, 3) uint8 image in TensorBoard."""
        with self._writing():
            self._tensorboard.add_image(name, image_hwc, step, dataformats="HWC")

    def write_json(self, name: str, document: Document) -> None:
        """Write ``document`` as ``name`` in the folder, in one step."""
        with self._writing():
            write_json(self.path / name, document)

    def save_checkpoint(self, name: str, state: Document) -> None:
        """Save a checkpoint, after the metrics so far are on the disk.

        See :func:`dem_apps.runtime.checkpoint.save_checkpoint`.
        """
        with self._writing():
            os.fsync(self._metrics.fileno())
            save_checkpoint(self.checkpoints, name, state)
        if name == "last":
            self.saved_step = state["step"]

    def close(self) -> None:
        """Close the files; safe to call twice."""
        for file in (self._metrics, self._tensorboard):
            # a full disk has been reported by the write itself
            with suppress(NotWritten), self._writing():
                file.close()
        self._lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let an error of the disk, while the folder is written to inside, say what is safe."""
        try:
            yield
        except OSError as error:
            saved = "no checkpoint has been saved yet"
            if self.saved_step is not None:
                saved = f"the checkpoint of step {self.saved_step} is intact"
            where = error.filename or self.path
            raise NotWritten(f"{where}: {error.strerror}; {saved}") from error


def _refuse_used(path: Path) -> None:
    """Raise an InputError unless a new run can begin in the folder."""
    if (path / "config.yaml").is_file():
        raise InputError(
            f"{path}: holds another run, which is never overwritten; "
            "give another --run-dir, or continue it with --resume"
        )
    for entry in path.iterdir() if path.is_dir() else ():
        if entry.name not in _NO_RUN_YET and not entry.name.startswith(DRAFT):
            raise InputError(
                f"{path}: holds other files, which are never overwritten; give another --run-dir"
            )


def _locked(path: Path) -> FileLock:
    """The lock of a run folder, held; an InputError where another process holds it."""
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(
            f"{path}: another process is writing to this run; stop it, or wait for its end"
        ) from error
    return lock


def checkpoint_to_resume(path: Path) -> Document | None:
    """Return the newest state of a run, or None where it stopped before it had saved any.

    Raises:
        InputError: the state is gone.
    """
    read_config(path)
    checkpoints = path / "checkpoints"
    if not (path / "eval.json").exists() and not any(checkpoints.glob(f"[!.]*{SUFFIX}")):
        return None
    return load_checkpoint(checkpoints, "last")


def environment(seed: int, device: str) -> Document:
    """Versions, device, seed and git commit: what repeats a run elsewhere."""
    versions = dict[str, str]()
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "command": sys.argv,
        "seed": seed,
        "device": device,
        "device_name": (
            torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()[0]
        ),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "git_commit": git_commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_commit() -> str | None:
    """The commit of this source tree, with ``-dirty`` if it has changes; None outside a git checkout of it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed copy may lie in the checkout of another project
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    return None
