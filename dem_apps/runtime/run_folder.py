"""The run folder: everything that one training command writes, and nothing outside it. Its reader is ``run_reader``.

``config.yaml`` (resolved settings), ``environment.json`` (versions, device, seed, git commit), ``metrics_info.json``
(what the metrics are), ``metrics.jsonl`` (one JSON object a line, each with ``step``), TensorBoard events,
``checkpoints/`` and what the application adds.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.tensorboard import SummaryWriter

from dem_apps.errors import UNWRITABLE, InputError, NotWritten, disk_error
from dem_apps.runtime.checkpoint import (
    load_checkpoint,
    make_folder,
    remove_leftovers,
    save_checkpoint,
    write_atomically,
)
from dem_apps.runtime.device import processor
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.metrics_info import FILE as METRICS_INFO
from dem_apps.runtime.metrics_info import MetricsInfo
from dem_apps.runtime.run_claim import (
    LINES as _LINES,
)
from dem_apps.runtime.run_claim import (
    locked,
    logged_lines,
    refuse_later_checkpoint,
    refuse_used,
    refuse_ways_out,
)
from dem_apps.runtime.run_reader import read_config as read_config
from dem_apps.runtime.run_reader import read_metrics as read_metrics
from dem_apps.runtime.signals import signals_held

_PACKAGES = (
    "torch", "torchvision", "segmentation-models-pytorch", "albumentations", "stable-baselines3",
    "gymnasium", "minigrid", "numpy",
)  # fmt: skip


class RunFolder:
    """An open run folder. Make one with :meth:`create` or :meth:`resume`; close it with :meth:`close`.

    A disk that is full while anything is written is a :class:`dem_apps.errors.NotWritten` that says what is safe.

    Args:
        path: the folder.
        lock: on the folder, held; released by :meth:`close`.
        start_step: metrics of later steps are dropped, since the run repeats them.

    Attributes:
        saved_step: the step of the checkpoint ``last``; None before the first.
    """

    def __init__(self, path: Path, lock: FileLock, start_step: int | None = None) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.saved_step: int | None = None
        self._lock = lock
        try:
            with self._writing():
                self._lines = self._drop_metrics_after(start_step or 0)
                self._metrics = open(self._metrics_file, "a", encoding="utf-8")  # noqa: SIM115 (closed in close())
                self._tensorboard = SummaryWriter(str(path), purge_step=None if start_step is None else start_step + 1)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def create(
        cls, path: Path, config: dict[str, Any], seed: int, device: str, info: MetricsInfo | None = None
    ) -> RunFolder:
        """Start a run in a new or empty folder.

        Args:
            path: made if missing.
            config: resolved settings.
            seed: recorded with the environment.
            device: likewise.
            info: what the run will log and write; without it a page names metrics as they are logged.

        Raises:
            InputError: the folder holds something already, cannot be made, or another process writes to it.
        """
        refuse_used(path)  # before the lock, whose file has no business among somebody's files
        try:
            make_folder(path)
            lock = locked(path)
            try:
                refuse_used(path)  # whoever had the lock before may have made a run of it meanwhile
                write_atomically(path / "environment.json", _json(environment(seed, device)))
                if info is not None:
                    write_atomically(path / METRICS_INFO, _json(info.document()))
                # config.yaml comes last: a folder that has it can be resumed
                write_atomically(path / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode())
            except BaseException:
                lock.release()
                raise
        except (PermissionError, NotADirectoryError) as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); give another --run-dir") from error
        return cls(path, lock)

    @classmethod
    def resume(cls, path: Path, start_step: int | None, info: MetricsInfo | None = None) -> RunFolder:
        """Continue a run after ``start_step``, the step of the checkpoint that was read; None: there was none yet.

        ``info`` is written where the run is older than such descriptions.

        Raises:
            InputError: another process writes to it or has done so since the checkpoint was read, or a link in the
                folder leads out of it, so that something outside would be written.
        """
        refuse_ways_out(path)
        lock = locked(path)
        try:
            refuse_later_checkpoint(path, start_step)
        except BaseException:
            lock.release()
            raise
        run = cls(path, lock, start_step or 0)
        run.saved_step = start_step
        run._say_what_is_missing(logged_lines(path))
        if info is not None and not (path / METRICS_INFO).exists():
            run.write_json(METRICS_INFO, info.document())
        for pointer in run.checkpoints.glob("*.json"):
            remove_leftovers(run.checkpoints, pointer.stem)
        return run

    def _say_what_is_missing(self, lines: int) -> None:
        """The checkpoint knows how many lines had been logged before it; fewer are no harm to the training."""
        if self._lines < lines:
            print(
                f"warning: {self._metrics_file} holds {self._lines:,} of the {lines:,} lines that were logged before "
                "the checkpoint; the training goes on, and its curves lack the others",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    @property
    def _metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def log(self, step: int, **values: float | str) -> None:
        """Append one line to ``metrics.jsonl``; numbers go to TensorBoard as well."""
        with self._writing():
            self._metrics.write(json.dumps({"step": step, **{k: _finite(v) for k, v in values.items()}}) + "\n")
            self._metrics.flush()
            self._lines += 1
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._tensorboard.add_scalar(name, value, step)

    def log_image(self, name: str, image_hwc: Any, step: int) -> None:
        """Show an (H, W, 3) uint8 image in TensorBoard."""
        with self._writing():
            self._tensorboard.add_image(name, image_hwc, step, dataformats="HWC")

    def write_json(self, name: str, document: dict[str, Any]) -> Path:
        """Write ``document`` as ``name`` in the folder, in one step."""
        path = self.path / name
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _json(document))
        return path

    def save_checkpoint(self, name: str, state: dict[str, Any], step: int) -> Path:
        """See :func:`dem_apps.runtime.checkpoint.save_checkpoint`; the metrics so far are on the disk first."""
        with signals_held(), self._writing():
            os.fsync(self._metrics.fileno())
            self._tensorboard.flush()
            if name == "last":
                state = {**state, _LINES: self._lines}
            pointer = save_checkpoint(self.checkpoints, name, state, tag=f"{step:08d}")
            if name == "last":
                self.saved_step = step
        return pointer

    def close(self) -> None:
        """Close the files; safe to call twice."""
        # what a full disk did not take has been reported when it was written
        with suppress(NotWritten), self._writing():
            self._metrics.close()
        with suppress(NotWritten), self._writing():
            self._tensorboard.close()
        self._lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._check_in_place()
            yield
        except InputError:
            raise
        except Exception as error:
            self._check_in_place()  # gone meanwhile, which TensorBoard's writer calls a TypeError
            if not isinstance(error, OSError):
                raise
            saved = "no checkpoint has been saved yet"
            if self.saved_step is not None:
                saved = f"the checkpoint of step {self.saved_step} is intact"
            where = Path(error.filename or self.path)
            if error.errno in UNWRITABLE:
                raise NotWritten(
                    f"{where}: can no longer be written to ({error.strerror}); {saved}", "mend that"
                ) from error
            raise disk_error(error, where, saved) from error

    def _check_in_place(self) -> None:
        if not self._lock.in_place():
            raise NotWritten(
                f"{self.path}: was moved or removed while it was written to", "put it back", "continue with --resume"
            )

    def _drop_metrics_after(self, step: int) -> int:
        """How many lines are left."""
        if not self._metrics_file.is_file():
            return 0
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        write_atomically(self._metrics_file, "".join(json.dumps(line) + "\n" for line in kept).encode())
        return len(kept)


def report_command(path: Path) -> str:
    """The command that makes a page of a run, as the end of a training says it."""
    return f"python -m dem_apps.report {shlex.quote(str(path))}"


def read_last_checkpoint(path: Path) -> dict[str, Any]:
    """The newest state of a run that is to be continued; a sentence if there is none yet."""
    read_config(path)
    return load_checkpoint(path / "checkpoints", "last")


def checkpoint_to_resume(path: Path, first_step: int) -> dict[str, Any] | None:
    """The newest state of a run; None where the run was stopped before it had saved any, and has to begin again.

    Args:
        path: the run folder.
        first_step: where the run saves for the first time.

    Raises:
        InputError: it is no run folder, or its last checkpoint is damaged or gone.
    """
    metrics = path / "metrics.jsonl"
    unsaved = not (path / "checkpoints" / "last.json").exists() and not (path / "eval.json").exists()
    if unsaved and (path / "config.yaml").is_file():
        logged = [line["step"] for line in read_metrics(path)] if metrics.is_file() else []
        # beyond that step there was a checkpoint, and to begin again would throw away what it stood for
        if max(logged, default=0) <= first_step:
            return None
    return read_last_checkpoint(path)


def environment(seed: int, device: str) -> dict[str, Any]:
    """Versions, device, seed and git commit: what somebody needs to repeat a run elsewhere."""
    device_name = torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()[0]
    return {
        "command": sys.argv,
        "seed": seed,
        "device": device,
        "device_name": device_name,
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git_commit": git_commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def git_commit() -> str | None:
    """The commit of this source tree, with ``-dirty`` if it has changes; None outside a git checkout of it."""
    source, own = Path(__file__).resolve().parent, Path(__file__).name
    try:
        # an installed copy may lie in the checkout of another project, whose commit says nothing
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", own], cwd=source, capture_output=True, timeout=10, check=True
        )
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=source, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _finite(value: Any) -> Any:
    # JSON has no NaN; a reader in another language must be able to open the file
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
