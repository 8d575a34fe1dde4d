"""One of several processes that compute a loss together; see dem_apps/test_several_processes.py."""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dem_apps import TestTimeAdapter, build_objective
from dem_apps.runtime.signals import StopRequest
from seg.methods.optimization import leave_group

C, FEATURES, STEPS = 5, 4, 3
NAMES = ("entropy", "adadem", "adadem-mec", "adadem-norm", "max-squares", "info-max", "robust-entropy")
REDUCTIONS = ("mean", "balanced")
#: Elements per process: unequal; of three processes one has none.
SHARDS = {1: [29], 2: [20, 9], 3: [17, 0, 12]}


@contextmanager
def in_group(folder: str, rank: int, world: int = 2) -> Iterator[None]:
    """Join the other processes, and leave them at the end."""
    torch.set_num_threads(1)
    method = f"file://{folder}/group-{world}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    try:
        yield
        leave_group()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, mask and weights of the joined batch: (29, FEATURES), (29,), (FEATURES, C)."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(29, FEATURES, generator=generator) * 2
    mask = torch.rand(29, generator=generator) < 0.7
    return inputs, mask, torch.randn(FEATURES, C, generator=generator)


def losses_and_gradients(backend: str, rank: int, world: int) -> dict[str, list[Tensor]]:
    """Per case, [loss, gradient of the weights] of each step and the class marginals at the end."""
    results: dict[str, list[Tensor]] = {}
    start = sum(SHARDS[world][:rank])
    own = slice(start, start + SHARDS[world][rank])
    for name, reduction, masked in itertools.product(NAMES, REDUCTIONS, (False, True)):
        objective = build_objective(name, C, backend=backend)
        parts: list[Tensor] = []
        if masked:
            for step in (STEPS, STEPS + 1):
                inputs, mask, weights = batch(step)
                objective.start(inputs[own] @ weights, mask=mask[own], further=True)
        for step in range(STEPS):
            inputs, mask, weights = batch(step)
            weights.requires_grad_()
            loss = objective(inputs[own] @ weights, mask=mask[own] if masked else None, reduction=reduction)
            loss.backward()
            assert weights.grad is not None
            parts += [loss.detach(), weights.grad]
        results[f"{name} {reduction} {masked}"] = [*parts, *objective.state_dict().values()]
    return results


def adapted(method: str) -> Tensor:
    """A weight after one step of an adapter, which nothing averages over processes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), torch.nn.GroupNorm(2, 8), torch.nn.Conv2d(8, C, 1))
    options = {"eta": {"entropy_margin": 9.0}, "cotta": {"objective_weight": 1.0}}.get(method, {})
    TestTimeAdapter(model, method, "adadem", lr=0.1, **options)(torch.randn(4, 3, 8, 8))
    return model[1].weight.detach()


def stopping_step(rank: int, world: int) -> int:
    """The step after which this process stops: the last rank gets a signal at step 3, each before it two later."""
    with StopRequest("") as stop:
        for step in itertools.count(1):
            if step == 3 + 2 * (world - 1 - rank):
                os.kill(os.getpid(), signal.SIGTERM)
            if stop.asked():
                return step
    raise AssertionError


def run(rank: int, worlds: list[int], backends: list[str], folder: str) -> None:
    """Entry of a spawned process: join each group that it is part of, compute, save."""
    for world in worlds:
        if rank < world:
            with in_group(folder, rank, world):
                results: dict[str, Any] = {backend: losses_and_gradients(backend, rank, world) for backend in backends}
                results["adapted"] = [adapted(method) for method in ("tent", "eta", "cotta")[: 3 - rank]]
                results["stopping step"] = stopping_step(rank, world)
            torch.save(results, Path(folder) / f"{rank}-of-{world}.pt")


def score(rank: int, folder: str) -> None:
    """Scores of two processes, of which each has seen one image of its own size."""
    from seg.scores.metric import SegmentationMetric

    metric = SegmentationMetric(C)
    generator = torch.Generator().manual_seed(rank)
    metric.update(torch.randn(1, C, 8, 9 + rank, generator=generator), torch.full((1, 8, 9 + rank), rank))
    with in_group(folder, rank):
        torch.save(metric.compute(), f"{folder}/scores-{rank}.pt")
