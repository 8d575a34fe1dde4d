"""The processes that a launcher such as torchrun started a command in: accelerate's ``PartialState`` and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from dem_apps.runtime.files import new_folder, refuse_used_folder

#: For the slowest share of the work; a launcher ends all processes when one has ended.
_LONGEST_WAIT = timedelta(days=7)
#: Seconds after which gloo's threads have let go of their last tensors.
_GLOO_LETS_GO = 0.5


@contextmanager
def launched_processes(device: str) -> Iterator[PartialState]:
    """Those of this command, as one process group. Call ``torch_device`` inside, where each has its GPU."""
    yield PartialState(cpu=device == "cpu" or not torch.cuda.is_available(), timeout=_LONGEST_WAIT)
    leave_group()


@contextmanager
def shared_folder(path: Path, flag: str, processes: PartialState) -> Iterator[Path]:
    """A :func:`dem_apps.runtime.files.new_folder` that all processes write to."""
    refuse_used_folder(path, flag)
    processes.wait_for_everyone()  # until all have seen that it is new
    with new_folder(path, flag) if processes.is_main_process else nullcontext(path) as part:
        (part,) = broadcast_object_list([part])
        yield part
        processes.wait_for_everyone()


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
