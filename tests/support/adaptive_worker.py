"""One of several processes that re-estimate statistics together; see seg/models/test_adaptive_batch_norm.py."""

from pathlib import Path

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from seg.inference.adaptive_batch_norm import re_estimated
from support.gloo_worker import in_group

#: Images per batch.
SIZES = (3, 1, 2)
#: The batches of each process: unequal numbers, and once none.
SHARES = (((0,), (1, 2)), ((), (0, 1, 2)))


def network() -> nn.Module:
    """Two normalised convolutions with a dropout between them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 5, 1), BatchNormAct2d(5)
    )


def batches() -> list[Tensor]:
    """Means far from 0, different for each batch."""
    generator = torch.Generator().manual_seed(1)
    return [10.0 * k + torch.randn(size, 3, 7, 6, generator=generator) for k, size in enumerate(SIZES)]


def run(_index: int, folder: str, rank: int) -> None:
    """Estimate together and save; the entry of a spawned process, whose first argument is its index."""
    with in_group(folder, rank):
        model = network()
        found = [re_estimated(model, [batches()[k] for k in share[rank]], 0.3) for share in SHARES]
        shares = [re_estimated(model, [batches()[k] for k in share[rank]]).share for share in SHARES]
    states = [
        {**each.network.state_dict(), "share": torch.tensor(share)} for each, share in zip(found, shares, strict=True)
    ]
    torch.save(states, Path(folder) / f"{rank}.pt")
