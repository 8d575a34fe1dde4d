"""Scores of a segmentation: intersection over union, pixel accuracy, entropy and calibration, accumulated by batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from dem_apps.entropy import shannon_entropy

_BINS = 15


class SegmentationScores:
    """Accumulates what :meth:`result` reports.

    Args:
        class_names: the C classes in the order of the train ids.
        ignore_index: the label that counts nowhere.
    """

    def __init__(self, class_names: tuple[str, ...], ignore_index: int) -> None:
        self.class_names = class_names
        self.ignore_index = ignore_index
        self._confusion = MulticlassConfusionMatrix(len(class_names), ignore_index=ignore_index, validate_args=False)
        self._entropy_sum, self._pixels = 0.0, 0
        self._bins = torch.zeros(3, _BINS, dtype=torch.float64)  # pixels, sum of confidence, correct pixels

    def update(self, logits: Tensor, label: Tensor) -> None:
        """Add a batch: logits (B, C, H, W) at the labels' size, label (B, H, W) train ids."""
        logits, label = logits.detach().float().cpu(), label.cpu()
        confidence, prediction = logits.softmax(1).max(1)
        self._confusion.update(prediction, label)
        # every pixel: entropy needs no label
        self._entropy_sum += float(shannon_entropy(logits, 1).double().sum())
        self._pixels += label.numel()
        counted = label != self.ignore_index
        confidence, correct = confidence[counted].double(), (prediction == label)[counted].double()
        place = (confidence * _BINS).long().clamp_max(_BINS - 1)
        for row, weights in enumerate((torch.ones_like(confidence), confidence, correct)):
            self._bins[row] += torch.bincount(place, weights=weights, minlength=_BINS)

    def result(self) -> dict[str, Any]:
        """``miou``, ``per_class_iu``, ``pixel_accuracy`` (0 to 1), ``mean_entropy`` and more.

        A class that neither labels nor predictions contain has no IoU: it is None and left out of the mean.
        ``mean_entropy`` is in nats over every pixel, ``mean_entropy_normalised`` the same divided by log C;
        ``calibration_error`` is the expected calibration error over 15 equal bins of confidence.
        """
        confusion = self._confusion.compute().double()
        hits = confusion.diag()
        union = confusion.sum(0) + confusion.sum(1) - hits
        iou = [float(h / u) if u > 0 else None for h, u in zip(hits, union, strict=True)]
        present = [value for value in iou if value is not None]
        pixels, confidence, correct = self._bins
        entropy = self._entropy_sum / max(self._pixels, 1)
        return {
            "miou": sum(present) / len(present) if present else 0.0,
            "per_class_iu": dict(zip(self.class_names, iou, strict=True)),
            "pixel_accuracy": float(hits.sum() / confusion.sum().clamp_min(1)),
            "mean_entropy": entropy,
            "mean_entropy_normalised": entropy / math.log(len(self.class_names)),
            "calibration_error": float((confidence - correct).abs().sum() / pixels.sum().clamp_min(1)),
        }
