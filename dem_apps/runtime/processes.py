"""The processes that a launcher such as torchrun has started a command in, for commands that share out a list.

Nothing that a process writes for its own items depends on how many there are; what is about all items is gathered, put
into the order of the list and written by the first.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dem_apps.runtime.processes import leave_group

Item = TypeVar("Item")
#: Seconds between looks for the others.
_LOOKS = 0.05
#: For the slowest share. The launcher ends all processes when one has ended, so nobody waits for one that is gone.
_LONGEST_WAIT = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """One of several processes, or the only one.

    Args:
        rank: which one this is, from 0.
        number: how many there are.
        store: of the launcher, by which they meet.
    """

    rank: int = 0
    number: int = 1
    store: Any = None
    _meetings: Iterator[int] = field(default_factory=count, repr=False)

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
        meeting = next(self._meetings)
        self.store.set(f"{meeting}/{self.rank}", pickle.dumps(value))
        # looked for and not waited for, so that a signal is heard
        keys = [f"{meeting}/{rank}" for rank in range(self.number)]
        while not self.store.check(keys):
            time.sleep(_LOOKS)
        # from processes of this very command
        return [pickle.loads(self.store.get(key)) for key in keys]

    def wait(self) -> None:
        """Until all processes have come this far."""
        self.gathered(None)


ONE_PROCESS = Processes()


@contextmanager
def launched_processes(joint: bool) -> Iterator[Processes]:
    """Those that this command was started in; without a launcher the only one.

    Args:
        joint: with ``torch.distributed`` for the duration: statistics and objectives are those of all processes' images
            together. Without it each process computes as if it was alone.
    """
    number = int(os.environ.get("WORLD_SIZE", "1"))
    if number == 1:
        yield ONE_PROCESS
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    store, rank, number = next(rendezvous("env://"))
    store.set_timeout(_LONGEST_WAIT)
    if joint:
        own = PrefixStore("group", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=number, timeout=_LONGEST_WAIT)
    processes = Processes(rank, number, PrefixStore("meetings", store))
    yield processes
    leave_group()
    processes.wait()
    # where the first process holds the store it is the last to leave
    store.set(f"left/{rank}", "")
    while processes.first and not store.check([f"left/{other}" for other in range(number)]):
        time.sleep(_LOOKS)
