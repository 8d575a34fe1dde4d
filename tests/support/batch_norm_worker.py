"""One of several processes that share batch statistics; see seg/test_batch_norm.py."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from dem_apps.runtime.processes import leave_group
from seg.models.batch_norm import feed_batch_norm, set_up_batch_norm

POLICIES = ("trainable", "source", "affine-frozen")
STEPS = 3
IMAGES = 5
#: Images per process: unequal, and one process may have none.
SHARDS = ((4, 1), (0, 5))


def cases() -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Policy, number format and shards of each computation."""
    return list(itertools.product(POLICIES, (torch.float64, torch.float32), SHARDS))


def network(dtype: torch.dtype) -> nn.Module:
    """A network with a plain batch normalisation, one of timm's with an activation, one that averages its batches."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), BatchNormAct2d(4), nn.Conv2d(4, 2, 1),
        nn.BatchNorm2d(2, momentum=None),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


def images(step: int) -> Tensor:
    """The joined batch of a step, far from mean 0: (5, 3, 9, 10)."""
    return 20.0 + torch.randn(IMAGES, 3, 9, 10, generator=torch.Generator().manual_seed(step))


def train(policy: str, dtype: torch.dtype, rank: int, shards: tuple[int, ...]) -> dict[str, Tensor]:
    """Outputs and gradients of the own images, gradients of all steps and the state at the end."""
    model = set_up_batch_norm(network(dtype), policy, synchronised=len(shards) > 1)
    own = slice(sum(shards[:rank]), sum(shards[: rank + 1]))
    results: dict[str, Tensor] = {}
    for step in range(STEPS):
        model.train()
        feed_batch_norm(model, policy, "source" if step != 1 else "target")
        batch = images(step)[own].to(dtype).requires_grad_()
        output = model(batch)
        factors = torch.randn(IMAGES, 2, *output.shape[2:], generator=torch.Generator().manual_seed(100 + step))
        (output * factors[own]).sum().backward()
        assert batch.grad is not None
        results |= {f"output {step}": output.detach(), f"image gradient {step}": batch.grad}
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    results |= {f"gradient {name}": value for name, value in gradients.items()}
    return results | {f"state {name}": value for name, value in model.state_dict().items()}


def run(_index: int, folder: str, rank: int) -> None:
    """Join the other process, compute, save; the entry of a spawned process, which gets an index first."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    try:
        results = {case: train(case[0], case[1], rank, case[2]) for case in cases()}
        leave_group()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    torch.save(results, Path(folder) / f"{rank}.pt")
