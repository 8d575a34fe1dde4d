"""The processes that a launcher such as torchrun started a command in: accelerate's ``PartialState`` and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

#: For the slowest share of the work; a launcher ends all processes when one has ended.
_LONGEST_WAIT = timedelta(days=7)
#: Seconds after which gloo's threads have let go of their last tensors.
_GLOO_LETS_GO = 0.5


@contextmanager
def launched_processes(device: str) -> Iterator[PartialState]:
    """Those of this command, as one process group. Call ``torch_device`` inside, where each has its GPU."""
    yield PartialState(cpu=device == "cpu" or not torch.cuda.is_available(), timeout=_LONGEST_WAIT)
    leave_group()


def leave_group() -> None:
    """Leave the process group, if there is one, when every process has come this far.

    One that exits within the group may be aborted, or hang another that still sends; so may gloo's threads (torch 2.6).
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    dist.barrier()
    if dist.get_backend() == "gloo":
        time.sleep(_GLOO_LETS_GO)
    dist.destroy_process_group()
