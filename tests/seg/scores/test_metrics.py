"""Scores against torchmetrics."""

import math

import pytest
import torch
from torchmetrics.functional import classification as theirs

from seg.scores.segmentation_scores import SegmentationScores

NAMES = ("a", "b", "c", "d")


def logits_for(prediction, confidence_logit=5.0):
    return (
        confidence_logit
        * torch.nn.functional.one_hot(prediction, len(NAMES)).movedim(-1, 1).float()
    )


def test_a_class_that_is_predicted_but_never_labelled_counts_as_zero():
    scores = SegmentationScores(NAMES)
    scores.update(logits_for(torch.full((1, 2, 2), 3)), torch.zeros(1, 2, 2, dtype=torch.long))
    result = scores.result()
    assert result["per_class_iu"] == {"a": 0.0, "b": None, "c": None, "d": 0.0}
    assert result["miou"] == 0.0


def drawn(seed, scale, height=40, width=50):
    """Logits, and labels that agree with them more often where they are sure."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, len(NAMES), height, width, generator=generator)
    p = (logits / scale).softmax(1).movedim(1, -1).reshape(-1, len(NAMES))
    label = torch.multinomial(p, 1, generator=generator).view(2, height, width)
    label[:, :5] = 255
    return logits, label


def scored(*batches):
    scores = SegmentationScores(NAMES)
    for logits, label in batches:
        scores.update(logits, label)
    return scores


def test_another_number_may_mean_that_a_pixel_is_not_labelled():
    logits, label = drawn(0, 2.0)
    other = SegmentationScores(NAMES, ignore_index=99)
    other.update(logits, label.masked_fill(label == 255, 99))
    assert other.result() == scored((logits, label)).result()


def test_scores_against_torchmetrics():
    logits, label = drawn(0, 2.0)
    result = scored((logits, label)).result()
    confusion = theirs.multiclass_confusion_matrix(
        logits.argmax(1), label, len(NAMES), ignore_index=255
    ).double()
    union = confusion.sum(0) + confusion.sum(1) - confusion.diag()
    assert list(result["per_class_iu"].values()) == pytest.approx(
        (confusion.diag() / union).tolist(), abs=1e-12
    )
    expected = theirs.multiclass_calibration_error(
        logits, label, len(NAMES), n_bins=15, norm="l1", ignore_index=255
    )
    assert result["calibration_error"] == pytest.approx(float(expected), abs=1e-6)
    counted = label != 255
    assert result["pixel_accuracy"] == pytest.approx(
        float((logits.argmax(1) == label)[counted].double().mean())
    )
    shares = [float((label == k).sum() / counted.sum()) for k in range(len(NAMES))]
    assert list(result["per_class_label_share"].values()) == pytest.approx(shares)


def test_entropy_by_predicted_class_counts_ignored_pixels_too():
    logits, label = drawn(2, 1.0)
    logits[:, 3] = -50.0
    result = scored((logits, label)).result()
    entropy = torch.distributions.Categorical(
        logits=logits.double().movedim(1, -1)
    ).entropy() / math.log(len(NAMES))
    for index, name in enumerate(NAMES[:3]):
        expected = float(entropy[logits.argmax(1) == index].mean())
        assert result["per_class_entropy"][name] == pytest.approx(expected, abs=1e-6)
    assert result["per_class_entropy"]["d"] is None
    assert result["mean_entropy_normalised"] == pytest.approx(float(entropy.mean()), abs=1e-6)


@pytest.mark.parametrize("wrong", [4, 254, -1])
def test_a_label_that_is_no_train_id_is_refused(wrong):
    label = torch.zeros(1, 2, 2, dtype=torch.long)
    label[0, 1, 1] = wrong
    with pytest.raises(ValueError, match="train ids are 0 to 3, or 255 where nothing counts"):
        scored((logits_for(torch.zeros(1, 2, 2, dtype=torch.long)), label))


def test_sums_of_two_processes_are_those_of_one():
    whole, parts = (
        scored(drawn(3, 1.0), drawn(4, 2.0)),
        [scored(drawn(3, 1.0)), scored(drawn(4, 2.0))],
    )
    torch.testing.assert_close(parts[0].sums + parts[1].sums, whole.sums)
