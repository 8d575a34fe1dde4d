"""Scores by a few labels: against torchmetrics, and intervals that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.classification import MulticlassJaccardIndex

from dem_apps.errors import InputError
from seg.adaptation.labelled import Labels, label_score, mean_iou
from seg.data.labels import IGNORE_INDEX, named_classes

CLASSES = named_classes(["a", "b", "c"])


def labels_in(folder: Path, number: int = 3) -> tuple[Labels, list[np.ndarray]]:
    truths = []
    for index in range(number):
        truth = np.random.default_rng(index).integers(0, 3, (8, 12)).astype(np.uint8)
        truth[0, :4] = IGNORE_INDEX
        (folder / "deep").mkdir(exist_ok=True)
        Image.fromarray(truth).save(folder / "deep" / f"{index}.png")
        truths.append(truth)
    images = [Path("deep") / f"{index}.jpg" for index in range(number)]
    return Labels(folder, [*images, Path("other.jpg")], CLASSES), truths


def test_miou_is_the_one_of_torchmetrics(tmp_path: Path) -> None:
    labels, truths = labels_in(tmp_path)
    metric = MulticlassJaccardIndex(3, ignore_index=IGNORE_INDEX)
    total = np.zeros((3, 3), np.int64)
    for index, truth in enumerate(truths):
        predicted = np.random.default_rng(10 + index).integers(0, 3, truth.shape).astype(np.uint8)
        table = labels.confusion(Path("deep") / f"{index}.jpg", predicted)
        total += np.asarray(table)
        metric.update(torch.from_numpy(predicted).long(), torch.from_numpy(truth).long())
    assert mean_iou(total) == pytest.approx(float(metric.compute()), abs=1e-6)
    assert labels.confusion(Path("other.jpg"), truths[0]) is None


def test_predictions_of_another_size_are_brought_to_the_labels(tmp_path: Path) -> None:
    labels, truths = labels_in(tmp_path)
    large = truths[1].repeat(2, 0).repeat(2, 1)
    table = np.asarray(labels.confusion(Path("deep/1.jpg"), large))
    assert table.sum() == (truths[1] != IGNORE_INDEX).sum() == np.trace(table)


def test_the_interval() -> None:
    right, wrong = np.diag([50, 30, 20]), np.array([[10, 40, 0], [30, 0, 0], [0, 20, 0]])
    mixed = np.array([[40, 10, 0], [5, 25, 0], [0, 5, 15]])
    same = label_score([mixed, right], [mixed, right])
    assert (same.gain, same.low, same.high) == (0.0, 0.0, 0.0)
    better = label_score([wrong] * 5, [right] * 5)
    assert better.low == better.high == better.gain == pytest.approx(1 - mean_iou(wrong))
    torn = label_score([wrong, right, wrong, right], [right, wrong, right, wrong])
    assert torn.low < 0 < torn.high
    assert label_score([wrong], [right]).low is None
    assert "no interval" in label_score([wrong], [right]).sentence


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    labels, truths = labels_in(tmp_path)
    Image.fromarray(np.full((8, 12), 7, np.uint8)).save(tmp_path / "deep" / "1.png")
    with pytest.raises(InputError, match="label id 7 is of no class"):
        labels.confusion(Path("deep/1.jpg"), truths[0])
    with pytest.raises(InputError, match="no label of any image"):
        Labels(tmp_path, [Path("elsewhere.jpg")], CLASSES)
    with pytest.raises(
        InputError, match=r"^--labels: deep/0\.jpg and deep/0\.png share the label .*deep/0\.png; rename"
    ):
        Labels(tmp_path, [Path("deep/0.jpg"), Path("deep/0.png")], CLASSES)
    with pytest.raises(InputError, match="is no folder"):
        Labels(tmp_path / "missing", [Path("a.jpg")], CLASSES)
