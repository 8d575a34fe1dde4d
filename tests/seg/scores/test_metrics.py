"""Scores against torchmetrics, and as one of its metrics: several processes, transformers' Trainer."""

import math

import pytest
import torch
from support import refuses
from support.processes import together
from torchmetrics.functional import classification as theirs

from seg.scores.segmentation_scores import SegmentationScores
from seg.scores.torchmetrics_metric import SegmentationMetric

NAMES = ("a", "b", "c", "d")


def logits_for(prediction, confidence_logit=5.0):
    return (
        confidence_logit
        * torch.nn.functional.one_hot(prediction, len(NAMES)).movedim(-1, 1).float()
    )


def test_a_class_that_is_predicted_but_never_labelled_counts_as_zero():
    scores = SegmentationScores(NAMES, 255)
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
    scores = SegmentationScores(NAMES, 255)
    for logits, label in batches:
        scores.update(logits, label)
    return scores


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


def test_two_processes_have_the_scores_of_one(tmp_path):
    """Each has seen one image, of its own size."""

    def update(metric, rank):
        logits = torch.randn(1, 5, 8, 9 + rank, generator=torch.Generator().manual_seed(rank))
        metric.update(logits, torch.full((1, 8, 9 + rank), rank))
        return metric

    drawn = [
        torch.randn(1, 5, 8, 9 + rank, generator=torch.Generator().manual_seed(rank))
        for rank in range(2)
    ]
    predicted = torch.cat([logits.argmax(1).flatten() for logits in drawn])
    labels = torch.cat(
        [torch.full((logits[0, 0].numel(),), rank) for rank, logits in enumerate(drawn)]
    )
    expected = update(update(SegmentationMetric(5), 0), 1).compute()
    jaccard = float(theirs.multiclass_jaccard_index(predicted, labels, 5))
    assert float(expected["miou"]) == pytest.approx(jaccard, abs=1e-6)
    for joined in together(lambda rank: update(SegmentationMetric(5), rank).compute(), tmp_path):
        torch.testing.assert_close(joined, expected, equal_nan=True, rtol=0, atol=1e-7)


def test_transformers_trainer_reports_them(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "depths": [1] * 4,
        "hidden_sizes": [8] * 4,
        "num_attention_heads": [1] * 4,
        "decoder_hidden_size": 8,
    }
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(num_labels=3, **sizes)
    )
    data = [
        {"pixel_values": torch.randn(3, 32, 64), "labels": torch.randint(0, 3, (32, 64))}
        for _ in range(3)
    ]
    metric = SegmentationMetric(("a", "b", "c"))
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(
            str(tmp_path), use_cpu=True, report_to=[], per_device_eval_batch_size=2
        ),
        eval_dataset=data,
        compute_metrics=lambda p: metric(p.predictions, p.label_ids),
    )
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
    for logits, labels in (
        ((1, 2, 4, 4), (1, 4, 4)),
        ((1, 3, 4, 4), (1, 1, 4, 4)),
        ((2, 3, 4, 4), (1, 4, 4)),
    ):
        refuses(
            r"logits \(B, 3, h, w\) and labels \(B, H",
            metric.update,
            torch.zeros(logits),
            torch.zeros(labels),
        )
    with pytest.raises(ValueError, match="labels hold 7 to 7, and train ids are 0 to 2"):
        metric.update(torch.zeros(1, 3, 4, 4), torch.full((1, 4, 4), 7))
    refuses("two or more, got 1", SegmentationMetric, 1)
