"""The scores as a torchmetrics.Metric: others' numbers, several processes, transformers' Trainer."""

import pytest
import torch
from support.processes import together
from support.refusals import refuses
from torchmetrics.functional.classification import multiclass_jaccard_index

from dem_apps.errors import InputError
from seg.scores.metric import SegmentationMetric


def test_two_processes_have_the_scores_of_one(tmp_path):
    """Each has seen one image, of its own size."""

    def update(metric, rank):
        logits = torch.randn(1, 5, 8, 9 + rank, generator=torch.Generator().manual_seed(rank))
        metric.update(logits, torch.full((1, 8, 9 + rank), rank))
        return metric

    drawn = [torch.randn(1, 5, 8, 9 + rank, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    predicted = torch.cat([logits.argmax(1).flatten() for logits in drawn])
    labels = torch.cat([torch.full((logits[0, 0].numel(),), rank) for rank, logits in enumerate(drawn)])
    expected = update(update(SegmentationMetric(5), 0), 1).compute()
    assert float(expected["miou"]) == pytest.approx(float(multiclass_jaccard_index(predicted, labels, 5)), abs=1e-6)
    for joined in together(lambda rank: update(SegmentationMetric(5), rank).compute(), tmp_path):
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
    refuses("two or more, got 1", SegmentationMetric, 1)
