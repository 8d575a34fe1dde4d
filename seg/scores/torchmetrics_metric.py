"""The scores as a ``torchmetrics.Metric``, for Lightning, transformers' Trainer and loops of your own.

Needs the extra ``metrics``. B batch, C classes, h × w the logits' size, H × W the labels'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from dem_apps.errors import InputError
from seg.models.network import upsampled
from seg.scores.segmentation_scores import SegmentationScores

#: No train id: what ignored labels become.
_IGNORED = -1


class SegmentationMetric(Metric):
    """mIoU, pixel accuracy, entropy and calibration in one pass, summed over processes by ``compute``.

    Args:
        classes: their names in the order of the logits, or their number.
        ignore_index: ids of labels that count in the entropy alone: one, or several.
        options: of ``torchmetrics.Metric``.

    A class that neither labels nor predictions hold has the IoU NaN and is left out of the mean.

    >>> metric = SegmentationMetric(("road", "sky"))
    >>> metric.update(torch.tensor([[[[2.0, 2.0, 0.0]], [[0.0, 0.0, 2.0]]]]), torch.tensor([[[0, 1, 255]]]))
    >>> metric.compute()["miou"], metric.compute()["iou/sky"]
    (tensor(0.2500), tensor(0.))
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    sums: Tensor

    def __init__(
        self, classes: Sequence[str] | int, ignore_index: int | Sequence[int] = 255, **options: Any
    ) -> None:
        super().__init__(**options)
        names = (
            [f"class {index}" for index in range(classes)] if isinstance(classes, int) else classes
        )
        if len(names) < 2:
            raise InputError(
                f"classes: expected the names or the number of two or more, got {classes!r}"
            )
        self.names, self.ignored = tuple(names), torch.tensor(ignore_index).flatten()
        self.add_state("sums", SegmentationScores(self.names, _IGNORED).sums, dist_reduce_fx="sum")

    def update(self, logits: Any, labels: Any) -> None:
        """Add logits (B, C, h, w) and labels (B, H, W); arrays of numpy, too, and logits are upsampled to the labels.

        Raises ValueError: a label that is no class and not ignored.
        """
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels).long()
        if (logits.ndim, labels.ndim) != (4, 3) or logits.shape[:2] != (
            len(labels),
            len(self.names),
        ):
            raise InputError(
                f"expected logits (B, {len(self.names)}, h, w) and labels (B, H, W), got {tuple(logits.shape)} and "
                f"{tuple(labels.shape)}"
            )
        scores = SegmentationScores(self.names, _IGNORED)
        labels = labels.masked_fill(torch.isin(labels, self.ignored.to(labels.device)), _IGNORED)
        scores.update(
            upsampled(logits, (labels.shape[1], labels.shape[2]), align_corners=False), labels
        )
        self.sums = self.sums + scores.sums.to(self.sums.device)

    def compute(self) -> dict[str, Tensor]:
        """``miou``, ``pixel_accuracy``, ``mean_entropy`` / log C, ``calibration_error``, and ``iou/NAME``; 0 to 1."""
        scores = SegmentationScores(self.names, _IGNORED)
        scores.sums = self.sums.cpu()
        found = scores.result()
        found["mean_entropy"] = found["mean_entropy_normalised"]
        values = {
            key: found[key]
            for key in ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")
        }
        values |= {f"iou/{name}": iou for name, iou in found["per_class_iu"].items()}
        return {
            key: torch.tensor(math.nan if value is None else value) for key, value in values.items()
        }
