"""One lock on a file, which the system releases when its holder is gone, however it ends.

It is ours because of who else holds it: a training that a search or a grid starts inherits the lock on its folder, so
the folder stays taken while the training lives, even if the command that started it was killed. A run folder needs the
opposite: the workers that read its images are forks, and must not keep it when the training is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO


class FileLock:
    """A lock that one process at a time has, and of the inherited kind one :class:`FileLock` at a time.

    Args:
        path: made if missing.
        inherited: True (``flock``): a child process that is given :meth:`fileno` holds the lock too, for as long as it
            lives. False (``lockf``): no child does, but opening and closing the file once more in this process ends it.
    """

    def __init__(self, path: Path, inherited: bool = True) -> None:
        self.path = path
        self._lock = fcntl.flock if inherited else fcntl.lockf
        self._file: IO[bytes] | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Take it; without ``wait``, False where somebody else has it.

        Raises:
            InputError: the file is a link.
            OSError: with a ``filename``, the file cannot be opened; without one, its file system has no locks.
        """
        file = open(self.path, "ab")  # noqa: SIM115 (closed in release())
        try:
            self._lock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Give it back; safe to call twice, and without the lock."""
        if self._file is not None:
            self._file.close()

    def in_place(self) -> bool:
        """Whether the file of that name is still the one that is locked; True where none is."""
        if self._file is None or self._file.closed:
            return True
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def fileno(self) -> int:
        """Of the open file, for a child process to inherit.

        Raises:
            ValueError: the lock is not held.
        """
        if self._file is None:
            raise ValueError(f"{self.path}: the lock is not held")
        return self._file.fileno()
