"""Several processes of one gloo group."""

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from seg.methods.optimization import leave_group


def together(work: Callable[[int], Any], folder: Path, world: int = 2) -> list[Any]:
    """What ``work(rank)`` returns in each: the first is this process, the others its forks, which import nothing."""

    def run(rank: int) -> None:
        torch.set_num_threads(1)
        method, patience = f"file://{folder}/group-{world}", timedelta(seconds=120)
        dist.init_process_group(
            "gloo", init_method=method, rank=rank, world_size=world, timeout=patience
        )
        try:
            torch.save(work(rank), folder / f"{rank}-of-{world}.pt")
            leave_group()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=run, args=(rank,), daemon=True) for rank in range(1, world)]
    for process in others:
        process.start()
    run(0)
    for process in others:
        process.join()
        assert process.exitcode == 0
    return [
        torch.load(folder / f"{rank}-of-{world}.pt", weights_only=True) for rank in range(world)
    ]
