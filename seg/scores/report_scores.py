"""Metrics, scores and pictures of a segmentation run.

They are described for :mod:`dem_apps.report`; scores and checkpoints are printed in a terminal.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

from dem_apps.report.runs import at
from dem_apps.runtime.documents import Document
from dem_apps.runtime.metrics_info import Metric, MetricsInfo, Score, View
from dem_apps.runtime.progress import print_table
from seg.scores.checkpoints import chosen_by

_OBJECTIVE = "values of different objectives cannot be compared"
_ENTROPY, _LOG_C = "Mean entropy on the target", "entropy / log C"
METRICS = (
    Metric("val/miou", "mean IoU", "Target mean IoU", "0 to 1"),
    Metric("val/pixel_accuracy", "pixel accuracy", "Target pixel accuracy", "0 to 1"),
    Metric("val/mean_entropy", "validation", _ENTROPY, _LOG_C, label_free=True),
    Metric("target/entropy", "training", _ENTROPY, _LOG_C, label_free=True),
    Metric("val/calibration_error", "calibration error"),
    Metric("label_free/im", "information maximisation", label_free=True),
    Metric("label_free/entropy", "entropy", unit="minus entropy / log C", label_free=True),
    Metric(
        "label_free/largest_class_share", "share of pixels in the largest class", label_free=True
    ),
    Metric("source/cross_entropy_main", "main", "Source cross-entropy", "nats"),
    Metric("source/cross_entropy_aux", "auxiliary", "Source cross-entropy", "nats"),
    Metric("target/objective_main", "main", "Objective on the target", note=_OBJECTIVE),
    Metric("target/objective_aux", "auxiliary", "Objective on the target", note=_OBJECTIVE),
    Metric("target/pseudo_label_weight", "mean weight of pseudo-labels"),
    Metric("target/pseudo_label_loss", "strong view", "Cross-entropy with pseudo-labels", "nats"),
    Metric("target/masked_consistency", "masked view", "Cross-entropy with pseudo-labels", "nats"),
    Metric("target/fooling_main", "main", "Fooling the discriminator", "nats"),
    Metric("target/fooling_aux", "auxiliary", "Fooling the discriminator", "nats"),
    Metric("discriminator/loss_main", "main", "Discriminator", "nats"),
    Metric("discriminator/loss_aux", "auxiliary", "Discriminator", "nats"),
)
#: A score in per cent, and a share of one class in per cent.
_Percent = partial(Score, better="higher", scale=100, digits=2)
_Share = partial(Score, scale=100, digits=1)
SCORES = (
    _Percent("miou", "mean IoU %, last", note="end of training"),
    _Percent("checkpoints.selected.miou", "mean IoU %, selected", note=chosen_by("selected")),
    _Percent(
        "checkpoints.best.miou", "mean IoU %, best", note="chosen with target labels", warning=True
    ),
    _Percent("pixel_accuracy", "pixel accuracy %"),
    Score("mean_entropy_normalised", "mean entropy / log C", note="0 is certain, 1 is uniform"),
    Score("calibration_error", "calibration error", "lower"),
    Score("label_free.entropy", "label-free: entropy", note="minus mean entropy / log C"),
    Score("label_free.im", "label-free: information maximisation"),
    _Share("label_free.largest_class_share", "largest class %", note="an alarm, no score"),
)
CLASSES = (
    _Share("per_class_iu", "IoU %"),
    _Share("predicted_share", "predicted share %"),
    _Share("per_class_label_share", "in target %"),
    _Share("source_label_share", "in source %"),
    Score("per_class_entropy", "entropy / log C"),
)
VIEWS = (
    View("image"),
    View("prediction", "predicted classes", classes=True),
    View("entropy", "black is certain, light yellow is uniform"),
    View("overlay", "predicted classes over the image", main=False),
    View("label", "ignored pixels are hatched", classes=True, main=False),
    View("wrong", "wrong pixels, in the colour of the predicted class", main=False),
    View("confidently-wrong", "wrong pixels with an entropy below a tenth of log C", main=False),
)


def report_info(num_classes: int, summary: str = "", has_objective: bool = True) -> MetricsInfo:
    """Return the description of a run of ``num_classes``.

    The log has entropies in nats, and pages show shares of log C.
    """
    of_log_c = 1 / math.log(num_classes)
    return MetricsInfo(
        heading="Segmentation",
        summary=summary,
        settings=("method", "loss", "reduction") if has_objective else ("method",),
        control="a run with --method control, and to source only" if has_objective else "",
        metrics=tuple(
            dataclasses.replace(metric, scale=of_log_c if metric.unit == _LOG_C else 1.0)
            for metric in METRICS
        ),
        scores=SCORES,
        classes=CLASSES,
        class_share="per_class_label_share",
        views=VIEWS,
    )


def main_score(result: Document) -> str:
    """Return mIoU in words, or the mean entropy where there are no labels."""
    if result["miou"] is None:
        return f"mean entropy {result['mean_entropy_normalised']:.3f} of log C, without labels,"
    return f"mIoU {100 * result['miou']:.1f} %"


def print_scores(result: Document, title: str) -> None:
    """Print the available scores of :func:`seg.scores.evaluation.evaluate`."""
    classes = result["per_class_iu"] if result["miou"] is not None else {}
    rows = [[name, _text(CLASSES[0], iou)] for name, iou in classes.items()]
    rows.append([])
    for score in SCORES:
        value = at(result, score.key)
        if value is not None:
            rows.append([score.title.removesuffix(", last"), score.text(value)])
    print_table(title, ["score", "value"], rows, caption=result.get("numbering"))


def print_checkpoints(rows: dict[str, Document]) -> None:
    """Print a run's checkpoints: by name ``step``, ``miou`` (None for all without labels) and ``chosen_by``."""
    header = ["checkpoint", "step", "mean IoU %", "chosen by"]
    texts = [
        [name, str(row["step"]), _text(SCORES[0], row["miou"]), row["chosen_by"]]
        for name, row in rows.items()
    ]
    if all(row["miou"] is None for row in rows.values()):
        for line in (header, *texts):
            del line[2]
    caption = "other commands take last, or what --checkpoint names"
    if "best" in rows:
        caption = (
            "best is optimistic, because the scored labels chose it; other commands take best, or what --checkpoint "
            "names"
        )
    print_table("checkpoints", header, texts, ("chosen by",), caption)


def _text(score: Score, value: float | None) -> str:
    """Return a value as its score is written, and a dash for none."""
    return "-" if value is None else score.text(value)
