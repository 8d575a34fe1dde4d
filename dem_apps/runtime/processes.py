"""The processes that a launcher such as torchrun has started a command in, for commands that share out a list.

Nothing that a process writes for its own items depends on how many there are; what is about all items is gathered, put
into the order of the list and written by the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dem_apps.runtime.launcher import leave_group

Item = TypeVar("Item")
#: For the slowest share. The launcher ends all processes when one has ended, so nobody waits for one that is gone.
_LONGEST_WAIT = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """One of several processes, or the only one.

    Args:
        rank: which one this is, from 0.
        number: how many there are.
    """

    rank: int = 0
    number: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks and writes for all."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Every n-th of a list that is the same in all processes."""
        return items[self.rank :: self.number]

    def gathered(self, value: Item) -> list[Item]:
        """What each process brings, by rank; a point that all have to come to."""
        if self.number == 1:
            return [value]
        values: list[Any] = [None] * self.number
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Until all processes have come this far."""
        if self.number > 1:
            dist.barrier()


ONE_PROCESS = Processes()


@contextmanager
def launched_processes() -> Iterator[Processes]:
    """The process group of a command, for the duration; without a launcher there is none."""
    number = int(os.environ.get("WORLD_SIZE", "1"))
    if number == 1:
        yield ONE_PROCESS
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=_LONGEST_WAIT)
    yield Processes(dist.get_rank(), number)
    leave_group()
