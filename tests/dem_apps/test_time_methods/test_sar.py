"""SAR against a loop written from the paper."""

import math

import pytest
import torch
from support import refuses
from support.tiny_networks import (
    CLASSES,
    assert_same,
    batches,
    entropy_of,
    moved,
    published,
    tented,
    tiny,
)

LR, RHO = 0.05, 0.05


class PlainSAR:
    def __init__(self, model, margin):
        self.model, self.margin = tented(model), margin
        self.weights = list(self.model.norm.parameters())
        self.steps = torch.optim.SGD(self.weights, LR, momentum=0.9)
        self.average: float | None = None
        self.kept: list[int] = []

    def entropies(self, images):
        return entropy_of(self.model(images))

    def step(self, images):
        h = self.entropies(images)
        first = h < self.margin
        self.kept.append(int(first.sum()))
        if not first.any():
            return
        gradients = torch.autograd.grad(h[first].mean(), self.weights)
        length = math.sqrt(sum(float((each**2).sum()) for each in gradients))
        saved = [value.detach().clone() for value in self.weights]
        with torch.no_grad():
            for value, gradient in zip(self.weights, gradients, strict=True):
                value += RHO * gradient / length
        h = self.entropies(images)
        second = h[first & (h < self.margin)].mean()
        assert second.isfinite()
        self.average = (
            second.item() if self.average is None else 0.9 * self.average + 0.1 * second.item()
        )
        self.steps.zero_grad()
        second.backward()
        with torch.no_grad():
            for value, old in zip(self.weights, saved, strict=True):
                value.copy_(old)
        self.steps.step()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("dense", [True, False])
def test_sar_is_the_papers(norm, dense):
    model, margin = tiny(norm, dense), None
    if not dense:
        plain = PlainSAR(model, 0.0)
        margin = torch.cat([plain.entropies(images) for images in batches(6)]).quantile(0.7).item()
    plain = PlainSAR(model, margin or 0.4 * math.log(CLASSES))
    adapter = published(model, "sar", lr=LR, rho=RHO, entropy_margin=margin, reset_below=0.0)
    for images in batches(6):
        plain.step(images)
        adapter(images)
    assert any(0 < number < (256 if margin is None else 4) for number in plain.kept), plain.kept
    assert moved(model, tiny(norm, dense))
    assert_same(model, plain.model, rtol=1e-7)
    assert adapter.state_dict()["memory"]["mean_entropy"] == pytest.approx(plain.average, rel=1e-7)


def run(surer=1.0, **options):
    """An adapter, and after which batches its network was as it began."""

    def network():
        model = tiny()
        model.last.weight.data.mul_(surer)
        return model

    adapter = published(network(), "sar", lr=0.3, **options)
    begun_anew = []
    for images in batches(8):
        adapter(images)
        begun_anew.append(not moved(adapter.model, network()))
    return adapter, begun_anew


def passed_by_the_fourth_batch():
    """A threshold that the moving average of a plain SAR falls below at the fourth of its batches."""
    plain = PlainSAR(tiny(), 0.4 * math.log(CLASSES))
    plain.steps.param_groups[0]["lr"] = 0.3
    averages = []
    for images in batches(8):
        plain.step(images)
        averages.append(plain.average)
    assert averages == sorted(averages, reverse=True)
    return (averages[2] + averages[3]) / 2


def test_it_resets_below_the_given_threshold():
    """The authors' code has 0.2 regardless of its argument, and of the number of classes."""
    assert not any(run(reset_below=0.0)[1])
    assert run(reset_below=0.2)[1][-1]
    assert not any(run()[1])
    assert all(run(surer=100.0)[1])
    assert not any(run(surer=100.0, reset_below=0.0)[1])
    assert all(run(reset_below=2.0)[1])
    _, begun_anew = run(reset_below=passed_by_the_fourth_batch())
    assert begun_anew[:5] == [False, False, False, True, False]  # the average began anew as well


def test_an_objective_with_a_memory_sees_a_batch_once():
    (images,) = batches(1)
    once, sar = (published(tiny("group"), method, "adadem", lr=LR) for method in ("tent", "sar"))
    mask = entropy_of(tiny("group")(images)) < 0.4 * math.log(CLASSES)
    once(images, mask)
    sar(images)
    assert torch.equal(once.objective.class_marginals, sar.objective.class_marginals)


def test_a_failed_climb_restores_the_weights():
    model = tiny()
    adapter = published(model, "sar", lr=LR)
    passes = []

    def second_breaks(_model, _inputs, output):
        passes.append(1)
        return output * torch.nan if len(passes) == 2 else output

    model.register_forward_hook(second_breaks)
    refuses("NaN", adapter, batches(1)[0])
    assert not moved(model, tiny())
