"""Where Optuna keeps a study: a journal file that survives kills, or an SQL database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from dem_apps.errors import InputError
from dem_apps.runtime.file_lock import FileLock


def open_study(journal: Path, storage: str | None, name: str) -> optuna.Study:
    """The study of that name, begun or continued.

    Args:
        journal: the file that holds it unless a storage is named; may be damaged.
        storage: an SQLAlchemy database URL, or None.
        name: of the study.

    Raises:
        InputError: the storage cannot be opened, or holds something else.
    """
    try:
        backend = _journal(journal) if storage is None else _database(storage)
        return optuna.create_study(storage=backend, study_name=name, direction="maximize", load_if_exists=True)
    except (InputError, OSError):
        raise
    # Optuna trusts its journal, so a line that it did not write ends in whatever error comes first
    except (AssertionError, LookupError, RecursionError, SQLAlchemyError, TypeError, ValueError) as error:
        where = journal if storage is None else f"storage {without_password(storage)}"
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(f"{where}: holds something else than the study of this folder ({reason})") from error


def _journal(file: Path) -> BaseStorage:
    # Optuna's own lock files stay behind when a process is killed and block the next one for half a minute
    lock: Any = FileLock(file.with_suffix(".lock"))
    if file.is_file():
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a record that a kill cut short would spoil the one written after it
            with open(file, "r+b") as journal:
                journal.truncate(whole)
    return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))


def _database(url: str) -> BaseStorage:
    try:
        return RDBStorage(url)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise InputError(
            f"storage: {without_password(url)} cannot be opened ({' '.join(str(error).split())[:200]}); "
            "expected a database URL such as sqlite:///study.db"
        ) from error


def without_password(url: str | None) -> str | None:
    """A storage's URL without its password."""
    if url is None:
        return None
    try:
        return make_url(url).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError) as error:
        raise InputError("storage: not a database URL; expected one such as sqlite:///study.db") from error
