import math

import pytest
import torch
from torch.distributions import Categorical
from torch.nn import functional as F

from seg.scores.unsupervised_scores import LabelFreeScores

C = 5


def logits(seed, batch=3, height=6, width=7, scale=2.0):
    return torch.randn(batch, C, height, width, generator=torch.Generator().manual_seed(seed)) * scale


def scored(*batches):
    scores = LabelFreeScores(C)
    for batch in batches:
        scores.update(batch)
    return scores


def test_entropy_and_information_against_the_definition():
    batches = logits(0), logits(1, batch=1)
    p = torch.cat([batch.movedim(1, -1).reshape(-1, C) for batch in batches]).double().softmax(1)
    conditional = Categorical(p).entropy().mean() / math.log(C)
    marginal = Categorical(p.mean(0)).entropy() / math.log(C)
    result = scored(*batches).result()
    assert result["entropy"] == pytest.approx(-float(conditional), abs=1e-6)
    assert result["im"] == pytest.approx(float(marginal - conditional), abs=1e-6)
    share = p.argmax(1).bincount(minlength=C).max() / len(p)
    assert result["largest_class_share"] == pytest.approx(float(share))


def test_only_information_maximisation_sees_a_collapse():
    generator = torch.Generator().manual_seed(4)
    good = 8 * F.one_hot(torch.randint(C, (2, 8, 8), generator=generator), C).movedim(-1, 1).float()
    collapsed = torch.zeros(2, C, 8, 8)
    collapsed[:, 1] = 12.0
    good_scores, collapsed_scores = scored(good).result(), scored(collapsed).result()
    assert collapsed_scores["entropy"] > good_scores["entropy"]
    assert collapsed_scores["im"] < 0.01 < 0.9 < good_scores["im"]
    assert collapsed_scores["largest_class_share"] == 1.0


def test_sums_of_parts_add_up():
    together, first, second = scored(logits(0), logits(1)), scored(logits(0)), scored(logits(1))
    first.sums += second.sums
    assert first.result() == pytest.approx(together.result(), abs=1e-12)


def test_extreme_and_narrow_logits_give_finite_scores():
    for batch in (logits(5, scale=1e4), logits(6).bfloat16(), torch.zeros(1, C, 1, 1)):
        assert all(math.isfinite(value) for value in scored(batch).result().values())
    assert set(LabelFreeScores(C).result().values()) == {0.0}
