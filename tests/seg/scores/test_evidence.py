"""What is measured without labels: definitions against numpy and torch, known networks, checkpoints chosen by it."""

import math

import numpy as np
import pytest
import torch
from support import cases
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from dem_apps.errors import NotFiniteError
from seg.scores.checkpoints import CheckpointSelector
from seg.scores.evidence import SCALE, Evidence, Probe
from seg.scores.segmentation_scores import label_free_scores, label_free_sums

CLASSES = 4


def images(number=3, seed=0):
    return torch.randn(number, 3, 16, 24, generator=torch.Generator().manual_seed(seed))


def network(kernel=3, seed=0):
    torch.manual_seed(seed)
    return nn.Conv2d(3, CLASSES, kernel, padding=kernel // 2)


def iou(first, second):
    values = []
    for index in range(CLASSES):
        both, either = (
            ((first == index) & (second == index)).sum(),
            ((first == index) | (second == index)).sum(),
        )
        values.append(both / either if either else None)
    return values


def test_the_numbers_are_their_definitions():
    model, batch = network(), images()
    evidence = Probe([(batch[:2], None), (batch[2:], None)]).look(model)
    with torch.no_grad():
        p = model(batch).softmax(1).double().numpy()
        classes = p.argmax(1)
        mirrored = model(batch.flip(3)).flip(3).argmax(1).numpy()
        size = (round(16 * SCALE), round(24 * SCALE))
        small = nn.functional.interpolate(batch, size=size, mode="bilinear", antialias=True)
        scaled = (
            nn.functional.interpolate(model(small), size=(16, 24), mode="bilinear")
            .argmax(1)
            .numpy()
        )
    entropy = -(p * np.log(p)).sum(1).mean()
    assert evidence.images == 3
    assert evidence.shares == pytest.approx(
        np.bincount(classes.ravel(), minlength=CLASSES) / classes.size
    )
    assert evidence.entropy == pytest.approx(entropy / math.log(CLASSES), rel=1e-5)
    expected = [
        (a + b) / 2 for a, b in zip(iou(classes, mirrored), iou(classes, scaled), strict=True)
    ]
    assert evidence.stability == pytest.approx(expected)


def test_pixels_without_data_are_no_evidence():
    model, batch, valid = network(1), images(), torch.ones(3, 16, 24, dtype=torch.bool)
    valid[:, :, 12:] = False
    filled = torch.where(valid[:, None], batch, 3.0)
    for resizes in (True, False):
        looks = [Probe([(each, valid)], resizes=resizes).look(model) for each in (batch, filled)]
        expected = Probe([(batch[..., :12], None)], resizes=resizes).look(model)
        assert looks[0].shares == looks[1].shares == expected.shares
        assert looks[1].entropy == pytest.approx(expected.entropy)
        assert looks[1].shares != Probe([(filled, None)], resizes=resizes).look(model).shares


def test_a_collapse_is_certain_and_steady_and_seen_all_the_same():
    model = network()
    before = Probe([(images(), None)]).look(model)
    with torch.no_grad():
        model.bias[2] += 100
    after = Probe([(images(), None)]).look(model)
    assert max(after.shares) == 1.0
    assert after.effective_classes == pytest.approx(1.0)
    assert after.stability == (None, None, 1.0, None)
    # the classes that are gone count
    assert after.stability_on(before) == pytest.approx(1 / CLASSES)


def test_rare_classes_are_left_out_of_stability():
    one = Evidence(1, (0.5, 0.4995, 0.0005, 0.0), 0.1, (0.8, 0.4, 0.0, None))
    assert one.stability_on(one) == pytest.approx(0.6)


@cases(
    ((192, 256), 1, (128, 192)),
    ((200, 300), 1, (160, 224)),
    ((64, 80), 1, (48, 60)),
    ((192, 192), 48, (144, 144)),
)
def test_smaller_views_lie_on_the_grid_of_the_encoders(size, multiple, smaller):
    seen = list[tuple[int, ...]]()
    batches, model = [(torch.randn(1, 3, *size), None)], network()
    Probe.of(model, batches, multiple).look(
        lambda batch: seen.append(tuple(batch.shape[2:])) or model(batch)
    )
    assert seen == [size, size, smaller]


def test_nan_is_refused():
    with pytest.raises(NotFiniteError):
        Probe([(images(1), None)]).look(lambda batch: torch.full((1, CLASSES, 4, 4), float("nan")))


C = 5


def logits(seed, batch=3, height=6, width=7, scale=2.0):
    return (
        torch.randn(batch, C, height, width, generator=torch.Generator().manual_seed(seed)) * scale
    )


def scored(*batches):
    return label_free_scores(sum(map(label_free_sums, batches)))


def test_entropy_and_information_against_the_definition():
    batches = logits(0), logits(1, batch=1)
    p = torch.cat([batch.movedim(1, -1).reshape(-1, C) for batch in batches]).double().softmax(1)
    conditional = Categorical(p).entropy().mean() / math.log(C)
    marginal = Categorical(p.mean(0)).entropy() / math.log(C)
    result = scored(*batches)
    assert result["entropy"] == pytest.approx(-float(conditional), abs=1e-6)
    assert result["im"] == pytest.approx(float(marginal - conditional), abs=1e-6)
    share = p.argmax(1).bincount(minlength=C).max() / len(p)
    assert result["largest_class_share"] == pytest.approx(float(share))


def test_only_information_maximisation_sees_a_collapse():
    generator = torch.Generator().manual_seed(4)
    good = 8 * F.one_hot(torch.randint(C, (2, 8, 8), generator=generator), C).movedim(-1, 1).float()
    collapsed = torch.zeros(2, C, 8, 8)
    collapsed[:, 1] = 12.0
    good_scores, collapsed_scores = scored(good), scored(collapsed)
    assert collapsed_scores["entropy"] > good_scores["entropy"]
    assert collapsed_scores["im"] < 0.01 < 0.9 < good_scores["im"]
    assert collapsed_scores["largest_class_share"] == 1.0


def test_sums_of_parts_add_up():
    together = scored(torch.cat([logits(0), logits(1)]))
    assert scored(logits(0), logits(1)) == pytest.approx(together, abs=1e-12)


def test_extreme_and_narrow_logits_give_finite_scores():
    for batch in (logits(5, scale=1e4), logits(6).bfloat16(), torch.zeros(1, C, 1, 1)):
        assert all(math.isfinite(value) for value in scored(batch).values())
    assert set(label_free_scores(torch.zeros(2 * C + 2)).values()) == {0.0}


SOURCE = {"road": 0.5, "sky": 0.49, "rider": 0.01}


def found(im, miou=0.3, share=0.4, entropy=0.2, rider=0.01):
    return {
        "miou": miou,
        "mean_entropy_normalised": entropy,
        "label_free": {"im": im},
        "predicted_share": {"road": share, "sky": 1.0 - share - rider, "rider": rider},
    }


def test_selected_follows_the_label_free_score_and_best_the_labels():
    selector = CheckpointSelector()
    assert selector.update(10, found(im=0.5, miou=0.1), None) == ["selected", "best"]
    assert selector.update(20, found(im=0.6, miou=0.05), None) == ["selected"]
    # an alarm selects nothing
    assert selector.update(25, found(im=0.9, miou=0.05), "rare classes swell") == []
    assert selector.update(30, found(im=0.4, miou=0.2), None) == ["best"]
    assert selector.update(40, found(im=0.6, miou=0.2), None) == []  # the earlier of equals stays
    table = selector.table(40, 0.2)
    columns = [
        tuple(row[key] for key in ("step", "miou", "used_target_labels")) for row in table.values()
    ]
    expected = {"last": (40, 0.2, False), "selected": (20, 0.05, False), "best": (30, 0.2, True)}
    assert dict(zip(table, columns, strict=True)) == expected


@cases(
    (found(im=0.5), found(im=0.4), None),
    (found(im=0.1), found(im=0.2, share=0.97), "97.0 % of the pixels are predicted as one class"),
    (found(im=0.5), found(im=0.4, entropy=0.001), "'im' falls (0.5000 to 0.4000)"),
    (found(im=0.4), found(im=0.5, entropy=0.001), None),
    (
        found(im=0.4),
        found(im=0.5, rider=0.031),
        "rare classes swell: rider 3.1 % of the pixels, over 3 times",
    ),
    # so much a class has for a while without an objective
    (found(im=0.4), found(im=0.5, rider=0.029), None),
)
def test_alarm(before, now, said):
    selector = CheckpointSelector()
    assert selector.alarm(before, SOURCE) is None
    selector.update(10, before, None)
    alarm = selector.alarm(now, SOURCE)
    assert alarm is None if said is None else said in alarm


def test_a_class_that_is_nearly_all_of_the_labels_as_well_is_no_alarm():
    """Background, of cracks: a collapse leaves less than a quarter of the labels' other pixels."""
    source = {"road": 0.985, "rider": 0.015}
    for share, alarmed in ((0.994, False), (0.998, True)):
        said = CheckpointSelector().alarm(found(im=0.1, share=share, rider=1 - share), source)
        assert (said is not None) == alarmed


def test_classes_that_swell_count_together_where_each_has_a_hundredth():
    selector = CheckpointSelector()
    for train, alarmed in ((0.015, True), (0.009, False)):
        now = found(im=0.5) | {"predicted_share": {"road": 0.9, "rider": 0.022, "train": train}}
        assert ("rider 2.2 %, train 1.5 %" in str(selector.alarm(now, {"road": 1.0}))) == alarmed
        assert selector.alarm(now, {}) is None  # before a label was seen
