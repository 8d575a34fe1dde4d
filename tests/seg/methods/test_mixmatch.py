"""MixMatch: its loss against the equations, written out by image, head and pixel."""

from __future__ import annotations

from functools import partial

import pytest
import scipy.stats
import torch
from support.tiny_networks import CLASSES, TwoHeads, batches
from torch import Tensor

from seg.methods.head_objectives import HeadObjectives
from seg.methods.mixmatch import MixMatch, larger_shares, sharpened
from seg.methods.optimization import MicroBatch
from seg.methods.settings import MixMatchConfig
from seg.methods.views import generators, recoloured

SETTINGS = MixMatchConfig(views=3, temperature=0.7, alpha=0.6, guess_weight=5.0)
WEIGHTS = {"main": 0.7, "aux": 0.2}


def method(network: TwoHeads, loss: str = "none") -> MixMatch:
    objectives = partial(HeadObjectives, loss, CLASSES, {"main": 0.3, "aux": 0.1}, "mean", {})
    return MixMatch(network, CLASSES, objectives, mixmatch=SETTINGS, weights=WEIGHTS)


def both(**valid: Tensor) -> MicroBatch:
    """Two source images, with ignored labels, and two target images of 8 × 8 pixels."""
    source, target = batches(2, size=2)
    label = torch.randint(CLASSES, (2, 8, 8), generator=torch.Generator().manual_seed(2))
    label[0, :2] = label[1, :, 5] = 255
    labelled = {"image": source, "label": label, "draw": torch.tensor([3, 4])}
    return MicroBatch(labelled, {"image": target, "draw": torch.tensor([9, 5]), **valid})


def plain_loss(network: TwoHeads, batch: MicroBatch) -> Tensor:
    """Algorithm 1 and equations 2 to 5 and 8 to 14 of the paper, image by image."""
    (source, target), draws = (part["image"] for part in batch), [part["draw"] for part in batch]
    valid = batch.target.get("valid", torch.ones(2, 8, 8, dtype=torch.bool))
    views = [recoloured(target, generators(draws[1], 2 + view)) for view in range(3)]
    with torch.no_grad():
        mean = sum(network(view)["main"].softmax(1) for view in views) / 3
    guess = mean ** (1 / 0.7) / (mean ** (1 / 0.7)).sum(1, keepdim=True)
    items = [(image, torch.eye(CLASSES + 1).double()[label.clamp_max(CLASSES)][..., :-1].movedim(-1, 0), label != 255)
             for image, label in zip(source, batch.source["label"], strict=True)]  # fmt: skip
    items += [(view[i], guess[i], valid[i]) for view in views for i in range(2)]
    drawn = [torch.rand(1, generator=draw) for draw in generators(draws[0], 0)]
    of_target = [torch.rand(3, generator=draw) for draw in generators(draws[1], 0)]
    drawn += [of_target[i][view] for view in range(3) for i in range(2)]
    order = torch.randperm(8, generator=generators(draws[1], 1)[0])
    sums, counts = {"main": [0.0, 0.0], "aux": [0.0, 0.0]}, [0, 0]
    for place, (image, label, known) in enumerate(items):
        lam = scipy.stats.beta.ppf(float(drawn[place]), 0.6, 0.6)
        lam = max(lam, 1 - lam)
        other_image, other_label, other_known = items[order[place]]
        logits = network((lam * image + (1 - lam) * other_image)[None])
        for row, column in (known & other_known).nonzero().tolist():
            q = lam * label[:, row, column] + (1 - lam) * other_label[:, row, column]
            counts[place >= 2] += 1
            for head, parts in sums.items():
                p = logits[head][0, :, row, column].softmax(0)
                parts[place >= 2] += -(q * p.log()).sum() if place < 2 else (p - q).square().sum() / CLASSES
    return sum(
        weight * (sums[head][0] / counts[0] + 5.0 * sums[head][1] / counts[1])
        for head, weight in (("main", 0.7), ("aux", 0.2))
    )


@pytest.mark.parametrize(("masked", "loss"), [(False, "entropy"), (True, "none")])
def test_the_loss_is_that_of_the_equations(masked: bool, loss: str) -> None:
    valid = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.8
    network, batch = TwoHeads(), both(**({"valid": valid} if masked else {}))
    mixmatch, expected = method(network, loss), plain_loss(network, batch)
    loss, _ = mixmatch.target_loss(batch)
    first_view = recoloured(batch.target["image"], generators(batch.target["draw"], 2))
    objective, _ = mixmatch.objectives(network(first_view))
    expected = expected if objective is None else expected + objective
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for own, other in zip(network.gradients(loss), network.gradients(expected), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)


def test_sharpening_keeps_distributions() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(sharpened(p, 1.0), p)
    torch.testing.assert_close(sharpened(p, 0.5)[0], torch.tensor([25, 9, 4]).double() / 38)
    assert sharpened(p, 1e-3).round(decimals=6).tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("alpha", [0.4, 0.75, 4.0])
def test_shares_have_the_distribution_of_the_paper(alpha: float) -> None:
    shares = larger_shares((torch.arange(2000) + 0.5) / 2000, alpha)
    found = scipy.stats.kstest(shares, lambda share: 2 * scipy.stats.beta.cdf(share, alpha, alpha) - 1)
    assert found.statistic < 0.002
    assert float(shares.min()) >= 0.5
