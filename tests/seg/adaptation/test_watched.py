"""Early stopping and rollback: the kept state, and when learning stops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from seg.adaptation.evidence import Probe
from seg.adaptation.watched import WatchedAdapter, deployed_copy, plain_forward


def batches(number: int = 6, size: int = 2, seed: int = 0) -> list[Tensor]:
    """Images of a few flat patches, far from the statistics that the network has stored."""
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(number, size, 3, 4, 6, generator=generator)
    return list(nn.functional.interpolate(patches.flatten(0, 1), scale_factor=4).unflatten(0, (number, size)) + 0.3)


def network(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8) if norm else nn.GroupNorm(2, 8)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(8, 5, 1)).eval()
    with torch.no_grad():
        model[3].weight *= 8
    return model


def watched(model: nn.Module, lr: float, **options: Any) -> WatchedAdapter:
    probe = Probe(batches(3, seed=1))
    return WatchedAdapter(TestTimeAdapter(model, lr=lr, **options), probe, probe.look(plain_forward(model)))


def test_what_would_be_used_predicts_one_image_as_it_does_many() -> None:
    model = network()
    one = watched(model, 1e-2)
    one.learn(batches()[0])
    used = deployed_copy(one.adapter, one.probe)
    batch = batches(1, 4)[0]
    torch.testing.assert_close(torch.cat([used(image[None]) for image in batch]), used(batch))
    features = torch.cat([model[0](images) for images in one.probe.batches]).detach()
    torch.testing.assert_close(used[1].running_mean, features.mean((0, 2, 3)))
    assert torch.equal(model[1].running_mean, torch.zeros(8)), "the adapter's own statistics stay"


def test_a_loss_that_is_not_finite_stops_it() -> None:
    one = watched(network(norm=False), 1e-3)
    one.check()
    assert one.learn(torch.full((1, 3, 8, 8), float("nan"))) is None
    assert "not finite" in one.stopped
    assert one.best_check is one.checks[0]
