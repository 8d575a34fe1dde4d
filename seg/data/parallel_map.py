"""The same work on many files: in this process or several, in order, with progress in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

from dem_apps.errors import InputError
from dem_apps.runtime.progress import track

Result = TypeVar("Result")


def in_order(function: Callable[[int], Result], count: int, workers: int, title: str) -> Iterator[Result]:
    """``function(0)``, ``function(1)``, … with a progress bar, or plain lines where the output is no terminal.

    Args:
        function: picklable where processes are spawned; what it returns is sent between processes.
        count: how many numbers it is called with.
        workers: processes that work; 0 works in this one.
        title: shown beside the bar.

    Raises:
        InputError: the first one that ``function`` raises.
    """
    loader = DataLoader(_Calls(function, count), batch_size=None, num_workers=min(workers, count), collate_fn=_as_it_is)
    for result in track(loader, count, title):
        if isinstance(result, InputError):
            raise result
        yield result


class _Calls(Dataset[Result | InputError], Generic[Result]):
    def __init__(self, function: Callable[[int], Result], count: int) -> None:
        self._function = function
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Result | InputError:
        # returned, not raised: a loader whose worker raised takes 5 s per worker to shut down, and its sentence
        # would arrive within a stack trace
        try:
            return self._function(index)
        except InputError as error:
            return error


def _as_it_is(item: Result) -> Result:
    return item
