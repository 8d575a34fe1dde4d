"""The scores as a torchmetrics.Metric: others' numbers, several processes, transformers' Trainer."""

import numpy as np
import pytest
import torch
from support import gloo_worker as worker

from dem_apps.errors import InputError
from seg.data.labels import CITYSCAPES_CLASSES
from seg.scores.metric import SegmentationMetric


def drawn(classes, seed=0):
    """Logits and labels (2, …) with ignored pixels, and one class that neither has."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes - 1, (2, 16, 24), generator=generator)
    logits = torch.randn(2, classes, 16, 24, generator=generator)
    logits += 2 * torch.nn.functional.one_hot(labels, classes).movedim(-1, 1)
    logits[:, -1] = -20
    labels[:, :3], labels[:, 3] = 255, -100
    return logits, labels


def test_the_ious_are_those_of_cityscapes_own_package():
    theirs = pytest.importorskip("cityscapesscripts.evaluation.evalPixelLevelSemanticLabeling")
    logits, labels = drawn(19)
    metric = SegmentationMetric(CITYSCAPES_CLASSES.names, ignore_index=(255, -100))
    for image, label in zip(logits, labels, strict=True):
        metric.update(image[None].numpy(), label[None].numpy())
    found = metric.compute()
    ids = np.array([*CITYSCAPES_CLASSES.ids, 0])
    table = theirs.generateMatrix(theirs.args)
    truth, predicted = ids[np.where(labels < 0, 255, labels).clip(max=19)], ids[logits.argmax(1)]
    np.add.at(table, (truth.ravel(), predicted.ravel()), 1)
    for name, label_id in zip(CITYSCAPES_CLASSES.names, CITYSCAPES_CLASSES.ids, strict=True):
        expected = theirs.getIouScoreForLabel(label_id, table, theirs.args)
        assert float(found[f"iou/{name}"]) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert 0.2 < found["miou"] < 0.9
    assert found["iou/bicycle"].isnan()
    assert float(found["miou"]) == pytest.approx(np.nanmean([float(found[f"iou/{n}"]) for n in metric.names]))


def test_two_processes_have_the_scores_of_one(tmp_path):
    torch.multiprocessing.spawn(worker.score, (str(tmp_path),), nprocs=2)
    metric = SegmentationMetric(worker.C)
    for rank in range(2):
        generator = torch.Generator().manual_seed(rank)
        size = (1, 8, 9 + rank)
        metric.update(torch.randn(1, worker.C, *size[1:], generator=generator), torch.full(size, rank))
    expected = metric.compute()
    for rank in range(2):
        joined = torch.load(tmp_path / f"scores-{rank}.pt", weights_only=True)
        torch.testing.assert_close(joined, expected, equal_nan=True, rtol=0, atol=1e-7)


def test_transformers_trainer_reports_them(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=3, **sizes))
    data = [{"pixel_values": torch.randn(3, 32, 64), "labels": torch.randint(0, 3, (32, 64))} for _ in range(3)]
    metric = SegmentationMetric(("a", "b", "c"))
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], per_device_eval_batch_size=2),
        eval_dataset=data, compute_metrics=lambda p: metric(p.predictions, p.label_ids),
    )  # fmt: skip
    with torch.inference_mode():
        logits = model.eval()(torch.stack([each["pixel_values"] for each in data])).logits
    assert logits.shape == (3, 3, 8, 16)  # and the labels 32 × 64
    for _ in range(2):
        reported = trainer.evaluate()
        metric.reset()
        metric.update(logits, torch.stack([each["labels"] for each in data]))
        for name, value in metric.compute().items():
            assert reported[f"eval_{name}"] == pytest.approx(float(value), abs=1e-5, nan_ok=True)


def test_other_shapes_and_labels_are_refused():
    metric = SegmentationMetric(3)
    for logits, labels in (((1, 2, 4, 4), (1, 4, 4)), ((1, 3, 4, 4), (1, 1, 4, 4)), ((2, 3, 4, 4), (1, 4, 4))):
        with pytest.raises(InputError, match=r"^expected logits \(B, 3, h, w\) and labels \(B, H, W\), got"):
            metric.update(torch.zeros(logits), torch.zeros(labels))
    with pytest.raises(ValueError, match="labels hold 7 to 7, and train ids are 0 to 2"):
        metric.update(torch.zeros(1, 3, 4, 4), torch.full((1, 4, 4), 7))
    with pytest.raises(InputError, match="two or more, got 1"):
        SegmentationMetric(1)
