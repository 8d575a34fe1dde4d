"""The acceptance test on evidence that is known, and scores by a few labels."""

import dataclasses

import numpy as np
import pytest
import torch
from support import cases
from torchmetrics.classification import MulticlassJaccardIndex

from seg.adaptation import decision
from seg.adaptation.decision import (
    LabelScore,
    Verdict,
    decide,
    decide_with_labels,
    label_score,
    mean_iou,
)
from seg.scores.evidence import Evidence

BEFORE = Evidence(8, (0.4, 0.3, 0.3), 0.3, (0.6, 0.6, 0.6))


def with_(**changes):
    return dataclasses.replace(BEFORE, **changes)


@cases(
    ({}, ""),
    ({"entropy": 0.3 * decision.LEAST_ENTROPY + 0.01}, ""),
    ({"entropy": 0.3 * decision.LEAST_ENTROPY - 0.01}, "certain everywhere"),
    ({"entropy": 0.9}, ""),
    ({"stability": (0.6 * decision.LEAST_SCORE**0.5 + 0.01,) * 3}, ""),
    ({"stability": (0.6 * decision.LEAST_SCORE**0.5 - 0.01,) * 3}, "less stable"),
    ({"shares": (0.34, 0.33, 0.33), "stability": (0.7, 0.7, 0.7)}, ""),
    (
        {"shares": (1.0, 0.0, 0.0), "stability": (1.0, None, None), "entropy": 0.0},
        "fewer classes",
    ),
)
def test_what_is_accepted(changes, said):
    verdict = decide(BEFORE, with_(**changes))
    assert verdict.adapt == (not said)
    assert said in verdict.reason


@pytest.mark.parametrize(("share", "adapt"), [(1.0, True), (0.98, True), (0.9, False)])
def test_a_network_that_predicts_next_to_one_class_is_steady_for_no_merit(share, adapt):
    rest = (1 - share) / 2
    constant = with_(
        shares=(share, rest, rest), stability=(1.0, None, None) if share == 1 else (1.0, 0.9, 0.9)
    )
    after = with_(shares=(0.7, 0.15, 0.15), stability=(0.6, 0.3, 0.3))
    verdict = decide(constant, after)
    assert verdict.adapt == adapt
    assert ("lost classes again" in verdict.reason) == adapt
    assert not decide(after, constant).adapt


def test_a_rare_class_that_is_lost_is_caught():
    rare = with_(shares=(0.5, 0.49, 0.01), stability=(0.6, 0.6, 0.6))
    lost = with_(shares=(0.505, 0.495, 0.0), stability=(0.62, 0.62, None))
    assert lost.effective_classes > decision.LEAST_CLASSES * rare.effective_classes
    assert not decide(rare, lost).adapt


def test_labels_decide_where_they_can():
    yes, no = Verdict(True, "yes"), Verdict(False, "no")
    up, down, unclear = (
        LabelScore(5, 0.3, 0.4, *ends) for ends in ((0.05, 0.2), (-0.2, -0.01), (-0.1, 0.2))
    )
    assert decide_with_labels(no, up).adapt
    assert not decide_with_labels(yes, down).adapt
    assert decide_with_labels(yes, unclear) == yes
    assert decide_with_labels(no, unclear) == no
    assert decide_with_labels(no, LabelScore(1, 0.3, 0.4, None, None)) == no


def test_miou_is_the_one_of_torchmetrics():
    truth, predicted = (
        torch.from_numpy(np.random.default_rng(seed).integers(0, 3, (8, 12))) for seed in (0, 1)
    )
    # the fourth class is nowhere
    pairs = np.bincount((truth * 4 + predicted).flatten(), minlength=16).reshape(4, 4)
    metric = MulticlassJaccardIndex(3)
    assert mean_iou(pairs) == pytest.approx(float(metric(predicted, truth)), abs=1e-6)


def test_few_labelled_images_refuse_and_do_not_promise():
    no, yes = Verdict(False, "no"), Verdict(True, "yes")
    for images, promised in ((2, False), (3, False), (4, True)):
        assert decide_with_labels(no, LabelScore(images, 0.3, 0.4, 0.05, 0.2)).adapt == promised
        assert not decide_with_labels(yes, LabelScore(images, 0.4, 0.3, -0.2, -0.05)).adapt


@pytest.mark.parametrize("images", [2, 4, 16])
def test_the_interval_of_networks_that_are_alike_excludes_0_as_rarely_as_it_says(images):
    """5 % of the simulations are meant, with heavy tails of an image's accuracy: 400 simulations give 2 to 9 %."""
    random = np.random.default_rng(images)

    def confusion(pixels):
        accuracy = np.clip(0.6 + 0.1 * random.standard_t(2), 0.02, 0.98)
        wrong = (1 - accuracy) / 4
        shares = np.full((5, 5), wrong) + (accuracy - wrong) * np.eye(5)
        return np.stack([random.multinomial(*row) for row in zip(pixels, shares, strict=True)])

    def excludes():
        pixels = [
            random.multinomial(2000, random.dirichlet(np.full(5, 0.3))) for _ in range(images)
        ]
        before, after = ([confusion(each) for each in pixels] for _ in range(2))
        score = label_score(before, after)
        return score.low > 0 or score.high < 0

    assert 0.02 <= np.mean([excludes() for _ in range(400)]) <= 0.09


def test_the_interval():
    right, wrong = np.diag([50, 30, 20]), np.array([[10, 40, 0], [30, 0, 0], [0, 20, 0]])
    mixed = np.array([[40, 10, 0], [5, 25, 0], [0, 5, 15]])
    same = label_score([mixed, right], [mixed, right])
    assert (same.gain, same.low, same.high) == (0.0, 0.0, 0.0)
    better = label_score([wrong] * 5, [right] * 5)
    assert better.gain == pytest.approx(1 - mean_iou(wrong))
    assert (better.low, better.high) == pytest.approx((better.gain, better.gain))
    torn = label_score([wrong, right, wrong, right], [right, wrong, right, wrong])
    assert torn.low < 0 < torn.high
    assert label_score([wrong], [right]).low is None
    assert "[" not in label_score([wrong], [right]).sentence
