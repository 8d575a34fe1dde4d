"""ETA and EATA against loops written from the paper, image by image."""

import copy
import math

import pytest
import torch
from support import cases, refuses
from support.tiny_networks import (
    CLASSES,
    adapter_of,
    assert_same,
    batches,
    entropy_of,
    moved,
    published,
    tented,
    tiny,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from dem_apps import TestTimeAdapter

LR = 0.05


def rows_of(logits):
    """The filter's input: (N, C) probabilities and (N,) entropies."""
    p, h = logits.softmax(1), entropy_of(logits)
    return p.movedim(1, -1).reshape(-1, CLASSES), h.flatten()


class PlainEATA:
    """One row after the other."""

    def __init__(self, model, margin, similarity, sources, beta):
        self.model = tented(model)
        self.margin, self.similarity, self.beta = margin, similarity, beta
        self.average: Tensor | None = None
        self.start = [value.detach().clone() for value in self.model.norm.parameters()]
        self.omega = [torch.zeros_like(value) for value in self.start]
        for images in sources:
            self.model.zero_grad()
            logits = self.model(images)
            cross_entropy(logits, logits.argmax(1)).backward()
            for total, value in zip(self.omega, self.model.norm.parameters(), strict=True):
                total += value.grad**2 / len(sources)
        self.steps = torch.optim.SGD(self.model.norm.parameters(), LR, momentum=0.9)
        self.kept: list[int] = []

    def step(self, images):
        p, h = rows_of(self.model(images))
        chosen = []
        for i in range(len(h)):
            alike = 0.0
            if self.average is not None:
                alike = float(
                    p[i].detach() @ self.average / (p[i].detach().norm() * self.average.norm())
                )
            if h[i].item() < self.margin and abs(alike) < self.similarity:
                chosen.append(i)
        self.kept.append(len(chosen))
        if not chosen:
            return
        loss = sum(h[i] * math.exp(self.margin - h[i].item()) for i in chosen) / len(chosen)
        for omega, value, first in zip(
            self.omega, self.model.norm.parameters(), self.start, strict=True
        ):
            loss = loss + self.beta * (omega * (value - first) ** 2).sum()
        self.steps.zero_grad()
        loss.backward()
        self.steps.step()
        mean = p[chosen].detach().mean(0)
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean


def thresholds(model):
    """With which some are kept and some are not."""
    rows = [rows_of(tented(model)(images)) for images in batches(6)]
    p, h = torch.cat([each for each, _ in rows]), torch.cat([each for _, each in rows])
    return h.quantile(0.7).item(), torch.cosine_similarity(p, p.mean(0, keepdim=True)).quantile(
        0.7
    ).item()


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("dense", [True, False])
def test_eta_and_eata_are_the_papers(dense, norm):
    margin, similarity = thresholds(tiny(norm, dense))
    sources = batches(3, seed=9)
    for method, beta in (("eta", 0.0), ("eata", 30.0)):
        model = tiny(norm, dense)
        plain = PlainEATA(model, margin, similarity, sources, beta)
        options = {"entropy_margin": margin, "similarity": similarity}
        options |= (
            {"source_images": iter(sources), "fisher_weight": beta} if method == "eata" else {}
        )
        adapter = published(model, method, lr=LR, **options)
        assert not moved(model, plain.model)  # making ω has moved nothing
        for images in batches(6):
            plain.step(images)
            adapter(images)
        rows = 4 * 64 if dense else 4
        assert any(0 < number < rows for number in plain.kept), plain.kept
        assert moved(model, tiny(norm, dense))
        assert_same(model, plain.model, rtol=1e-6)


def test_thresholds_follow_the_number_of_classes():
    model = tiny("group")
    plain = PlainEATA(
        model,
        0.4 * math.log(CLASSES),
        min(1.0, 0.05 * math.sqrt(1000 / CLASSES)),
        [],
        0.0,
    )
    adapter = published(model, "eta", lr=LR)
    for images in batches(3):
        plain.step(images)
        adapter(images)
    assert_same(model, plain.model, rtol=1e-6)
    assert 0 < plain.kept[1] < 256


@cases(
    ("eta", "entropy_margin", 0.0, 1),
    ("sar", "entropy_margin", 0.0, 1),
    ("deyo", "entropy_margin", 0.0, 1),
    ("deyo", "plpd_above", 1.0, 2),
)
def test_a_batch_that_is_filtered_away_costs_no_backward(
    method, threshold, value, forwards, monkeypatch
):
    model = tiny()
    adapter = adapter_of(method, model, entropy_margin=1.2)
    adapter(batches(1)[0])
    before, marginals = copy.deepcopy(model), adapter.objective.class_marginals.clone()
    assert moved(model, tiny())
    monkeypatch.setattr(torch.Tensor, "backward", None)
    counted = []
    model.register_forward_hook(lambda *_: counted.append(1))
    setattr(adapter._method, threshold, value)
    adapter(batches(1)[0])
    assert not moved(model, before)
    assert torch.equal(adapter.objective.class_marginals, marginals)
    assert len(counted) == forwards


def test_masked_elements_are_not_learnt_from_nor_remembered():
    mask = torch.zeros(4, 8, 8, dtype=torch.bool)
    mask[:2, :4] = True
    (images,) = batches(1)
    changed = images.clone()
    changed[2:] += 1.0  # images that the mask leaves out
    changed[:, :, 6:] += 1.0  # and rows
    options = {"lr": LR, "parameters": "last"}
    first, second = (TestTimeAdapter(tiny("none"), "eta", **options) for _ in range(2))
    first(images, mask)
    second(changed, mask)
    assert moved(first.model, tiny("none")) == {"last.weight", "last.bias"}
    assert_same(first.model, second.model, rtol=1e-12)
    torch.testing.assert_close(first.state_dict()["memory"], second.state_dict()["memory"])


def test_eata_without_source_images_is_one_sentence():
    refuses(r"needs source_images=.*use 'eta'", published, tiny(), "eata")
    without, eta = (
        published(tiny(), "eata", source_images=(), lr=LR),
        published(tiny(), "eta", lr=LR),
    )
    for images in batches():
        assert torch.equal(without(images), eta(images))
