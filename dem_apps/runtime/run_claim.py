"""Who may write to a run folder: one process at a time, and a new run only into a folder that holds nothing else.

What is checked before the lock is taken may have changed by then; so the lock comes first and the check after it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.metrics_info import FILE as METRICS_INFO
from dem_apps.runtime.safe_io import read_json

#: Locked by whoever writes to the folder; empty, and never renamed or removed: a lock is on a file, not on its name.
LOCK = "run.lock"
#: Of the checkpoint ``last``: how many lines of metrics there were.
LINES = "logged_lines"
#: What a folder holds whose run was killed before it was one, that is before it had its ``config.yaml``.
_NO_RUN_YET = {
    LOCK, "environment.json", "environment.json.tmp", METRICS_INFO, f"{METRICS_INFO}.tmp", "config.yaml.tmp",
}  # fmt: skip


def locked(path: Path) -> FileLock:
    """A lock that ends with this process, however it ends, and that no process it forks inherits.

    Raises:
        InputError: another process has it.
    """
    # opening and closing this file once more in this process would end the lock, and nothing does: nothing reads it
    lock = FileLock(path / LOCK, inherited=False)
    try:
        taken = lock.acquire(wait=False)
    except OSError as error:
        if error.filename is not None:
            raise
        return lock  # a file system without locks: nothing is checked there
    if not taken:
        raise InputError(f"{path}: another process is writing to this run; stop it, or wait for its end")
    return lock


def refuse_used(path: Path) -> None:
    """Refuse a folder for a new run that holds anything but what a start left that was killed at once.

    Raises:
        InputError: naming what is there.
    """
    if path.exists() and not (path.is_dir() and all(map(_of_no_run_yet, path.iterdir()))):
        what = "another run" if (path / "config.yaml").is_file() else "other files"
        raise InputError(
            f"{path}: holds {what}, which is never overwritten; give another --run-dir"
            + (", or continue it with --resume" if what == "another run" else "")
        )


def _of_no_run_yet(entry: Path) -> bool:
    return entry.name in _NO_RUN_YET and entry.is_file() and not entry.is_symlink()


def refuse_later_checkpoint(path: Path, step: int | None) -> None:
    """Refuse to continue from a checkpoint that is not the last any more: it was read before the lock was taken.

    Args:
        path: the run folder, locked.
        step: of the checkpoint that was read; None where there was none.

    Raises:
        InputError: another process has gone on with the run meanwhile.
    """
    if _number(path, "step") > (step or 0):
        raise InputError(
            f"{path}: another process has gone on with this run since its checkpoint of step {step or 0} was read; run "
            "the command again"
        )


def logged_lines(path: Path) -> int:
    """Lines of ``metrics.jsonl`` that stood there when the last checkpoint was saved; 0 where it does not say."""
    return _number(path, LINES)


def _number(path: Path, key: str) -> int:
    """Of the last checkpoint, whose tensors are not read; 0 without one."""
    pointer = path / "checkpoints" / "last.json"
    document = read_json(pointer) if pointer.is_file() else None
    state = document.get("state") if isinstance(document, dict) else None
    value = state.get(key) if isinstance(state, dict) else None
    return value if isinstance(value, int) else 0


def refuse_ways_out(path: Path) -> None:
    """The folder of a run, a grid or a study may come from somebody else, and what is written to it must stay in it.

    Raises:
        InputError: a link in the folder leads out of it.
    """
    inside = path.resolve()
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
                raise InputError(
                    f"{entry}: is a link that leads out of {path}, so that something outside could be written; put "
                    "what it leads to in its place"
                )


def new_run_dir(*parts: str) -> Path:
    """Make ``runs/<parts>-<date>-<time>`` below the current folder, with ``-2``, ``-3``, … behind it where it is there.

    Raises:
        InputError: it cannot be made.
    """
    first = Path("runs") / "-".join([*parts, time.strftime("%Y%m%d-%H%M%S")])
    path, number = first, 1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not _made(path):  # another start of the same second has it
            number += 1
            path = first.with_name(f"{first.name}-{number}")
    except OSError as error:
        raise InputError(f"{path}: cannot be made ({error.strerror}); name the folder yourself") from error
    return path


def _made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
