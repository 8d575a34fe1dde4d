from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seg.metrics import SegmentationScores

NAMES = ("a", "b", "c", "d")


def logits_for(prediction, confidence_logit=5.0):
    return confidence_logit * torch.nn.functional.one_hot(prediction, len(NAMES)).movedim(-1, 1).float()


def test_scores_against_counting_by_hand():
    rng = np.random.default_rng(0)
    label = torch.from_numpy(rng.integers(0, 3, (2, 6, 7)))  # class d is never labelled
    prediction = torch.from_numpy(rng.integers(0, 3, (2, 6, 7)))
    label[0, 0] = 255
    scores = SegmentationScores(NAMES, 255)
    for index in range(2):  # accumulated by batch
        scores.update(logits_for(prediction[index : index + 1]), label[index : index + 1])
    result = scores.result()
    counted = label != 255
    for class_index, name in enumerate(NAMES[:3]):
        hit = ((prediction == class_index) & (label == class_index) & counted).sum()
        union = (((prediction == class_index) | (label == class_index)) & counted).sum()
        assert result["per_class_iu"][name] == pytest.approx(float(hit / union))
    assert result["per_class_iu"]["d"] is None
    present = [result["per_class_iu"][name] for name in NAMES[:3]]
    assert result["miou"] == pytest.approx(sum(present) / 3)
    accuracy = float((prediction == label)[counted].double().mean())
    assert result["pixel_accuracy"] == pytest.approx(accuracy)
    confidence = math.exp(5) / (math.exp(5) + 3)
    assert result["calibration_error"] == pytest.approx(abs(confidence - accuracy), abs=1e-6)
    p = np.array([confidence, *[(1 - confidence) / 3] * 3])
    assert result["mean_entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-6)
    assert result["mean_entropy_normalised"] == pytest.approx(result["mean_entropy"] / math.log(4))


def test_a_class_that_is_predicted_but_never_labelled_counts_as_zero():
    scores = SegmentationScores(NAMES, 255)
    scores.update(logits_for(torch.full((1, 2, 2), 3)), torch.zeros(1, 2, 2, dtype=torch.long))
    result = scores.result()
    assert result["per_class_iu"] == {"a": 0.0, "b": None, "c": None, "d": 0.0}
    assert result["miou"] == 0.0
