"""One loop for all that several commands work off together: the jobs of a grid, the trials of a search.

Whoever works on a piece holds a claim on it, and so does the training itself. A piece that is claimed elsewhere is
passed over and looked at again; a free claim on an unfinished piece means that it was never begun, or was killed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

Piece = TypeVar("Piece")


class SharedWork(Protocol[Piece]):
    """Pieces of work; all but :meth:`run` is called in the thread of :func:`work_off`."""

    def claim(self) -> Piece | None:
        """The next piece that nobody else has; None where there is none to begin now."""
        ...

    def run(self, piece: Piece) -> object:
        """Do it, in a thread of its own."""
        ...

    def settle(self, piece: Piece, outcome: Future[Any]) -> None:
        """Take the result, or the failure, of a piece that has ended."""
        ...

    def elsewhere(self) -> Sequence[str]:
        """What others are working on; empty when everything has ended."""
        ...

    def look(self, waiting_for: Sequence[str]) -> None:
        """Called once in a while, with what others still do once there is nothing else to wait for."""
        ...


def work_off(work: SharedWork[Piece], workers: int, poll: float) -> None:
    """Return when no piece is left, here or in another command.

    Args:
        work: the pieces.
        workers: pieces at a time.
        poll: seconds between looks at what other commands have done.
    """
    running: dict[Future[Any], Piece] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            while len(running) < workers and (piece := work.claim()) is not None:
                running[pool.submit(work.run, piece)] = piece
            others: Sequence[str] = ()
            if running:
                for future in wait(running, timeout=poll, return_when=FIRST_COMPLETED).done:
                    work.settle(running.pop(future), future)
            elif others := work.elsewhere():
                time.sleep(poll)
            else:
                return
            work.look(others)
    finally:
        # without waiting: after an interruption it is the caller who can end what runs
        pool.shutdown(wait=False, cancel_futures=True)
