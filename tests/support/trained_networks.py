"""Checks of networks that others bring: opened, given back and opened again."""

import copy
from pathlib import Path

import torch
from torch import nn

from seg.trained.open import open_network
from seg.trained.settings import NetworkSettings
from seg.trained.trained_network import TrainedNetwork

IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
ODD = IMAGES[:, :, :45, :70]


def open_trained(spec: str, weights: str | None = None) -> TrainedNetwork:
    """The network of a SPEC, with what its own files say of it."""
    return open_network(NetworkSettings(model=spec, weights=weights))


def shake(network: nn.Module) -> None:
    """Weights and statistics that no initialisation gives."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.mul_(1 + 0.2 * torch.rand(value.shape, generator=generator))
                if value.ndim == 1:
                    value.add_(0.05 * torch.rand(value.shape, generator=generator))


@torch.no_grad()
def assert_comes_back(opened: TrainedNetwork, folder: Path) -> TrainedNetwork:
    """A copy that is saved and opened again gives the same logits and describes itself alike."""
    opened = copy.deepcopy(opened)
    shake(opened.network)
    opened.save(folder)
    again = open_trained(str(folder))
    assert torch.equal(again.logits(IMAGES), opened.logits(IMAGES))
    assert again.description == opened.description
    return opened
