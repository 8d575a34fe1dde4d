"""What a segmentation run logs and writes, for :mod:`dem_apps.report`; every key is explained in docs/metrics.md."""

from __future__ import annotations

import dataclasses
import math

from dem_apps.runtime.metrics_info import (
    Checkpoint,
    ClassColumn,
    ClassScores,
    Counts,
    Histogram,
    Metric,
    MetricsInfo,
    Pictures,
    Reliability,
    Score,
    View,
)

_LABELS_USED = "chosen with target labels"
_OBJECTIVE = "as trained; values of different objectives cannot be compared"
_SURE = "near 0 nothing is learned from pseudo-labels"
_SHARE = "share of pixels in the class predicted most; near 1 is a collapse"

METRICS = (
    Metric("val/miou", "mean IoU", "Target mean IoU", "0 to 1", "higher", "validation set", low=0),
    Metric("val/pixel_accuracy", "pixel accuracy", "Target pixel accuracy", "0 to 1", "higher", "validation set"),
    Metric("val/mean_entropy", "validation", "Mean entropy on the target", "entropy / log C", low=0),
    Metric("target/entropy", "training", "Mean entropy on the target", "entropy / log C", low=0),
    Metric("val/calibration_error", "calibration error", "Calibration error", better="lower", low=0),
    Metric("label_free/im", "IM", "Label-free: information maximisation", better="higher"),
    Metric("label_free/entropy", "entropy", "Label-free: entropy", "minus entropy / log C", "higher"),
    Metric("label_free/snd", "SND", "Label-free: soft neighbourhood density", "nats", "higher"),
    Metric("label_free/largest_class_share", "largest class", "Largest class", note=_SHARE, low=0, high=1),
    Metric("source/cross_entropy_main", "main", "Source cross-entropy", "nats", low=0),
    Metric("source/cross_entropy_aux", "auxiliary", "Source cross-entropy", "nats", low=0),
    Metric("target/objective_main", "main", "Objective on the target", note=_OBJECTIVE),
    Metric("target/objective_aux", "auxiliary", "Objective on the target", note=_OBJECTIVE),
    Metric("target/eased", "weight after alarms", note="what the objective's weight is multiplied with", low=0, high=1),
    Metric("target/pseudo_label_weight", "mean weight", "Weight of the pseudo-labels", note=_SURE, low=0, high=1),
    Metric("target/pseudo_label_loss", "strong view", "Cross-entropy with the teacher's labels", "nats", low=0),
    Metric("target/masked_consistency", "masked view", "Cross-entropy with the teacher's labels", "nats", low=0),
    Metric("target/fooling_main", "main", "Fooling the discriminator", "nats", low=0),
    Metric("target/fooling_aux", "auxiliary", "Fooling the discriminator", "nats", low=0),
    Metric("discriminator/loss_main", "main", "Discriminator", "nats", note="log 2 where it is guessing", low=0),
    Metric("discriminator/loss_aux", "auxiliary", "Discriminator", "nats", note="log 2 where it is guessing", low=0),
)  # fmt: skip

SCORES = (
    Score("miou", "mean IoU %, last", better="higher", note="end of training", scale=100, digits=2),
    Score("checkpoints.selected.miou", "mean IoU %, selected", better="higher", note="chosen by a label-free score",
          scale=100, digits=2),
    Score("checkpoints.best.miou", "mean IoU %, best", better="higher", note=_LABELS_USED, warning=True, scale=100,
          digits=2),
    Score("pixel_accuracy", "pixel accuracy %", better="higher", scale=100, digits=2),
    Score("mean_entropy_normalised", "mean entropy / log C", note="0 is certain, 1 is uniform"),
    Score("calibration_error", "calibration error", better="lower"),
    Score("error_ranking_auroc", "error ranking, AUROC", better="higher", note="0.5 is chance"),
    Score("label_free.entropy", "label-free: entropy", note="minus mean entropy / log C; higher is more certain"),
    Score("label_free.im", "label-free: information maximisation",
          note="certain and spread over the classes; higher is better, unless rare classes swell"),
    Score("label_free.snd", "label-free: soft neighbourhood density",
          note="pixels have near neighbours among the others; higher is better"),
    Score("label_free.largest_class_share", "largest class %", note="share of pixels; an alarm, no score", scale=100,
          digits=1),
)  # fmt: skip

_COLUMNS = (
    ClassColumn("per_class_entropy", "entropy / log C", "of the pixels predicted as it"),
    ClassColumn("predicted_share", "predicted %", "share of the target's pixels", scale=100, digits=1),
    ClassColumn("per_class_label_share", "in target %", "share of the labels scored on", scale=100, digits=1),
    ClassColumn("source_label_share", "in source %", "share of the labels trained on", scale=100, digits=1),
)

VIEWS = (
    View("image", "image {image}"),
    View("prediction", "classes that {run} predicts on {image}", classes=True, note="classes predicted"),
    View("entropy", "entropy of {run} on {image}: black is certain, light yellow is undecided", low="0, certain",
         high="1, uniform (entropy / log C)"),
    View("overlay", "classes that {run} predicts, over {image}", optional=True, note="classes predicted"),
    View("label", "labels of {image}", classes=True, hatched="ignored, in labels", note="the truth"),
    View("wrong", "wrong pixels of {run} on {image}, in the colour of the class that it predicts", optional=True,
         note="wrong pixels alone, in the colour of the class predicted"),
    View("confidently-wrong", "wrong pixels of {run} on {image} with an entropy below a tenth of log C", optional=True,
         note="wrong pixels with an entropy below a tenth of log C, in the colour of the class predicted"),
)  # fmt: skip


def described_metrics(criterion: str, num_classes: int, summary: str = "") -> MetricsInfo:
    """The description of a run.

    Args:
        criterion: the score without labels that chooses the checkpoint ``selected``.
        num_classes: C, since the log has entropies in nats, and people are shown shares of log C.
        summary: what sets the run apart, :func:`seg.training.summary.in_words`.
    """
    of_log_c = {metric.name: 1 / math.log(num_classes) for metric in METRICS if metric.unit == "entropy / log C"}
    return MetricsInfo(
        heading="Segmentation",
        summary=summary,
        settings=("method", "loss", "reduction"),
        steps="max_steps",
        verdict="miou",
        control="a run with --method minent --loss none",
        metrics=tuple(dataclasses.replace(metric, scale=of_log_c.get(metric.name, 1.0)) for metric in METRICS),
        scores=SCORES,
        checkpoints=(
            Checkpoint("last", "end of training", "miou", "checkpoints.last.step"),
            Checkpoint("selected", f"label-free score {criterion}", "checkpoints.selected.miou",
                       "checkpoints.selected.step"),
            Checkpoint("best", "target labels", "checkpoints.best.miou", "checkpoints.best.step"),
        ),
        checkpoint_score="mean IoU %",
        classes=ClassScores("Classes", "per_class_iu", "IoU %", "per_class_label_share", _COLUMNS),
        certainty="Can its certainty be trusted?",
        reliability=Reliability(
            "Reliability", "accuracy of the pixels of each bin; below the diagonal is overconfident",
            "reliability.pixels", "reliability.confidence", "confidence", "reliability.accuracy",
        ),
        histogram=Histogram(
            "Entropy of the pixels", "share of the labelled pixels per bin", "entropy_histogram.edges",
            "entropy / log C",
            (Counts("right pixels", "entropy_histogram.right"), Counts("wrong pixels", "entropy_histogram.wrong")),
        ),
        pictures=Pictures("Entropy maps", "entropy_maps", VIEWS, "classes.json"),
    )  # fmt: skip
