"""An adapter under watch: what is kept of it, when it is stopped, and that it goes on to the same bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from seg.adaptation.evidence import gathered
from seg.adaptation.rounds import Probe, Rounds, as_it_would_be_used, plain_forward


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


def rounds(model: nn.Module, lr: float, method: str = "tent", **options: Any) -> Rounds:
    probe = Probe(batches(3, seed=1))
    before = gathered(plain_forward(model), probe.batches)
    return Rounds(TestTimeAdapter(model, method, lr=lr, **options), probe, before)


def run(one: Rounds, given: list[Tensor], looks: int = 2) -> None:
    if not one.checks:
        one.check()
    for batch in given:
        if one.stopped:
            return
        one.learn(batch)
        if one.step % looks == 0:
            one.check()


def test_what_would_be_used_predicts_one_image_as_it_does_many() -> None:
    model = network()
    one = rounds(model, 1e-2)
    one.learn(batches()[0])
    used = as_it_would_be_used(one.adapter, one.probe)
    batch = batches(1, 4)[0]
    together = used(batch)
    torch.testing.assert_close(torch.cat([used(image[None]) for image in batch]), together)
    features = torch.cat([model[0](images) for images in one.probe.batches]).detach()
    torch.testing.assert_close(used[1].running_mean, features.mean((0, 2, 3)))
    assert torch.equal(model[1].running_mean, torch.zeros(8)), "the adapter's own statistics stay"


def test_without_batch_norm_it_is_the_network_itself() -> None:
    one = rounds(network(norm=False), 1e-2)
    one.learn(batches()[0])
    used = as_it_would_be_used(one.adapter, one.probe).state_dict()
    assert all(torch.equal(value, used[name]) for name, value in one.adapter.model.state_dict().items())


def test_a_ruinous_rate_is_stopped_and_nothing_of_it_is_kept() -> None:
    model = network(norm=False)
    start = copy.deepcopy(model.state_dict())
    one = rounds(model, 1e3, parameters="all")
    run(one, batches())
    assert one.stopped
    assert one.step < 6
    assert one.best_step == 0
    assert all(torch.equal(value, start[name]) for name, value in one.best.items())
    one.adapter.reset()
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())


def test_a_loss_that_is_not_finite_stops_it() -> None:
    one = rounds(network(norm=False), 1e-3)
    one.check()
    assert one.learn(torch.full((1, 3, 8, 8), float("nan"))) is None
    assert "not finite" in one.stopped
    assert one.best_step == 0


def test_a_rate_of_zero_changes_nothing_but_statistics() -> None:
    one = rounds(network(norm=False), 0.0)
    run(one, batches())
    assert not one.stopped
    assert one.best_step == 6
    assert [check.evidence for check in one.checks] == [one.before] * 4


@pytest.mark.parametrize("method", ["tent", "cotta", "sar"])
def test_it_goes_on_to_the_same_bits(method: str) -> None:
    whole = rounds(network(), 1e-2, method, seed=3)
    run(whole, batches())
    first = rounds(network(), 1e-2, method, seed=3)
    run(first, batches()[:3])
    second = rounds(network(), 1e-2, method, seed=3)
    second.load_state_dict(first.state_dict())
    run(second, batches()[3:])
    assert second.checks == whole.checks
    assert second.best_step == whole.best_step
    assert (second.best is None) == (whole.best is None)
    for name, value in (whole.best or {}).items():
        assert torch.equal(value, second.best[name]), name
