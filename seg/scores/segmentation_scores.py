"""Scores of a segmentation: intersection over union, pixel accuracy, entropy and calibration, accumulated by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dem_apps.entropy import Mask, probabilities, shannon_entropy
from dem_apps.reduction import sums_in
from dem_apps.runtime.documents import Document
from seg.data.labels import IGNORE_INDEX
from seg.data.pixel_format import Counts

#: Confusion matrices (C, C), pixels by label and prediction, one for each image.
Tables = list[Counts]
#: Two shares of labelled pixels. Labels seem to be numbered otherwise where at most the first share
#: agrees with the predictions, and at least the second share agrees after a shift of the ids.
_LITTLE, _MOST = 0.1, 0.5
_CONFIDENCE_BINS = 15
#: Pixels per chunk; on a CPU 19 classes of them fit into the cache.
_CHUNK = {"cpu": 1 << 14}
_CHUNK_ELSEWHERE = 1 << 20


class SegmentationScores:
    """Accumulates what :meth:`result` reports, for C ``class_names`` in the order of the train ids.

    ``sums`` is the whole state, a flat float64 tensor; the sum of several processes' is that of all their pixels.
    A label of ``ignore_index`` counts in no score that needs labels.

    Three pixels are predicted road, road, sky; the labels are road, sky and *ignored*:

    >>> scores = SegmentationScores(("road", "sky"), ignore_index=255)
    >>> scores.update(torch.tensor([[[[2.0, 2.0, 0.0]], [[0.0, 0.0, 2.0]]]]), torch.tensor([[[0, 1, 255]]]))
    >>> result = scores.result()
    >>> result["per_class_iu"], result["miou"], result["pixel_accuracy"]
    ({'road': 0.5, 'sky': 0.0}, 0.25, 0.5)
    """

    def __init__(self, class_names: tuple[str, ...], ignore_index: int = IGNORE_INDEX) -> None:
        self.class_names = class_names
        self.ignore_index = ignore_index
        classes = len(class_names)
        self._sizes = [(classes + 1) * classes, classes, _CONFIDENCE_BINS, _CONFIDENCE_BINS]
        self.sums = torch.zeros(sum(self._sizes), dtype=torch.float64)

    def update(self, logits: Tensor, label: Tensor, valid: Mask = None) -> None:
        """Add logits and a label of train ids.

        Pixels with an ignored label count in entropy and predictions.

        Args:
            logits: (B, C, H, W).
            label: (B, H, W) train ids.
            valid: (B, H, W), True where pixels count; None for all.

        Raises:
            ValueError: a label is no train id.
        """
        rows = max(1, _CHUNK.get(logits.device.type, _CHUNK_ELSEWHERE) // logits.shape[3])
        for index, image in enumerate(logits.detach()):
            parts = [
                (part.max(0).indices, probabilities(part, 0).amax(0), shannon_entropy(part, 0))
                for part in image.split(rows, dim=1)
            ]
            maps = [torch.cat(part).flatten() for part in zip(*parts, strict=True)]
            maps.append(label[index].to(logits.device).long().flatten())
            if valid is not None:
                counted = valid[index].to(logits.device).flatten()
                maps = [each[counted] for each in maps]
            self.sums += self._image_sums(*maps).cpu()

    @property
    def confusion(self) -> Tensor:
        """Pixels by label (row) and prediction, (C, C) float64."""
        return self._parts()[0][:-1]

    def result(self) -> Document:
        """Return the scores by name, such as ``miou``, ``per_class_iu`` and ``mean_entropy``.

        ``pixel_accuracy`` is from 0 to 1. docs/metrics.md has all of them.

        A class that neither labels nor predictions contain has the IoU None and is left out of the mean; without any
        label every score that needs labels is None. ``mean_entropy`` is in nats over every pixel,
        ``mean_entropy_normalised`` divided by log C, ``per_class_entropy`` that by predicted class.
        ``calibration_error`` is the expected calibration error over 15 equal bins of confidence.
        """
        table, entropies, confidence, right = self._parts()
        confusion = table[:-1]
        predicted = table.sum(0)
        hits = confusion.diag()
        labelled = confusion.sum(1)
        pixels = confusion.sum()
        iou = self._by_class(hits / (confusion.sum(0) + labelled - hits))
        present = [value for value in iou.values() if value is not None]
        entropy = float(entropies.sum() / predicted.sum().clamp_min(1))
        scale = math.log(len(self.class_names))
        of_labels = torch.stack([hits.sum(), (confidence - right).abs().sum()]) / pixels
        accuracy, calibration_error = _known(of_labels)
        return {
            "miou": sum(present) / len(present) if present else None,
            "per_class_iu": iou,
            "mean_entropy": entropy,
            "mean_entropy_normalised": entropy / scale,
            "per_class_entropy": self._by_class(entropies / predicted / scale),
            "pixel_accuracy": accuracy,
            "calibration_error": calibration_error,
            "per_class_label_share": self._by_class(labelled / pixels) if pixels else None,
        }

    def _by_class(self, values: Tensor) -> dict[str, float | None]:
        return dict(zip(self.class_names, _known(values), strict=True))

    def _parts(self) -> list[Tensor]:
        """Split ``sums`` into its parts.

        Returns:
            (C + 1, C) pixels by label, with ignored ones last, and prediction; (C,) entropy by
            predicted class; confidence by bin; right pixels by bin.
        """
        table, *others = self.sums.split(self._sizes)
        return [table.view(-1, len(self.class_names)), *others]

    def _image_sums(
        self, prediction: Tensor, confidence: Tensor, entropy: Tensor, label: Tensor
    ) -> Tensor:
        """Return the sums of one image; all arguments are (N,)."""
        classes = len(self.class_names)
        ignored = label == self.ignore_index
        if ((label < 0) | (label >= classes))[~ignored].any():
            raise ValueError(
                f"labels hold {label.min()} to {label.max()}, and train ids are 0 to {classes - 1}, or "
                f"{self.ignore_index} where nothing counts"
            )
        table = confusion(label.masked_fill(ignored, classes), prediction, classes, classes + 1)
        bins = (confidence * _CONFIDENCE_BINS).long().clamp_max_(_CONFIDENCE_BINS - 1)
        counted = confidence.masked_fill(ignored, 0)
        right = bins[(prediction == label) & ~ignored]
        parts = [
            table.flatten(),
            _sums(prediction, entropy, classes),
            _sums(bins, counted, _CONFIDENCE_BINS),
            torch.bincount(right, minlength=_CONFIDENCE_BINS),
        ]
        return torch.cat(parts)


def _known(values: Tensor) -> list[float | None]:
    """Return the numbers, with None for a share of no pixel, which is not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def other_numbering(table: NDArray[Any], ids: Sequence[int]) -> str | None:
    """Return a sentence if labels and predictions agree only after a shift of the ids; else None.

    ``table`` has (C, C) pixels.
    """
    moved = np.subtract.outer(ids, ids).T
    shift = max(np.unique(moved), key=lambda each: table[moved == each].sum())
    matched = table * (moved == shift)
    agreed = np.trace(table) / max(table.sum(), 1)
    # of the labels that have such a class
    better = matched.sum() / max(table[(moved == shift).any(1)].sum(), 1)
    # a class that is predicted everywhere agrees with one class after some shift, and with no two
    classes = ((matched == table.max(1, keepdims=True)) & (matched > 0)).sum()
    if agreed > _LITTLE or better < _MOST or classes < 2:
        return None
    change = f"{abs(shift)} {'added to' if shift > 0 else 'subtracted from'} the labels' ids"
    return (
        f"{agreed:.0%} of the labelled pixels agree, and {better:.0%} with {change}: they seem to be numbered "
        "otherwise; give each class its id in a file for --classes"
    )


def confusion(label: Tensor, predicted: Tensor, classes: int, rows: int | None = None) -> Tensor:
    """Count pixels by label (row) and prediction.

    Args:
        label: int64.
        predicted: int64, of the same shape.
        classes: their number C.
        rows: number of rows; None for C.

    Returns:
        (``rows``, C) int64.
    """
    rows = classes if rows is None else rows
    return torch.bincount((label * classes + predicted).flatten(), minlength=rows * classes).view(
        rows, classes
    )


def _sums(place: Tensor, values: Tensor, bins: int) -> Tensor:
    """Return the sum of the values at each place, (bins,).

    torch.bincount with weights has no deterministic form on a GPU.
    """
    values = values.to(sums_in(values))
    return values.new_zeros(bins).index_add_(0, place, values)


def at_size(valid: Tensor, size: Sequence[int]) -> Tensor:
    """Resize masks (B, H, W) bool to (B, h, w) by the nearest pixel."""
    return F.interpolate(valid[:, None].float(), size=tuple(size), mode="nearest-exact")[
        :, 0
    ].bool()


def label_free_sums(logits: Tensor, valid: Mask = None) -> Tensor:
    """Return what the label-free scores of predictions are made of; processes and batches add it up.

    Args:
        logits: (B, C, h, w) of the main head.
        valid: (B, H, W) bool at any size, True where pixels count; None for all.

    Returns:
        (2C + 2,) float64 on the CPU: sums over the pixels of probabilities (C,), of predicted classes (C,), of 1, and
        of the entropy in nats.
    """
    logits = logits.detach()
    if valid is not None:
        counted = at_size(valid, logits.shape[2:]).to(logits.device)
        logits = logits.movedim(1, 0)[:, counted][None, :, None]
    p = probabilities(logits, 1)
    wide = sums_in(p)
    predicted = torch.bincount(logits.argmax(1).flatten(), minlength=logits.shape[1])
    entropy = shannon_entropy(logits, 1).sum(dtype=wide)
    pixels = entropy.new_tensor([p[:, 0].numel()])
    parts = [p.sum((0, 2, 3), dtype=wide), predicted, pixels, entropy.view(1)]
    return torch.cat(parts).cpu().double()


def predicted_shares(sums: Tensor) -> list[float]:
    """Return the share of the pixels predicted as each class by :func:`label_free_sums`; all 0 without any pixel."""
    shares: list[float] = _label_free_means(sums)[1].tolist()
    return shares


def label_free_scores(sums: Tensor) -> dict[str, float]:
    """Label-free scores by name, to select a checkpoint by; higher is better, and all are 0 without any pixel.

    A network that predicts one class everywhere is certain: ``entropy`` is high, ``im`` is not, and
    ``largest_class_share`` shows the collapse.

    - ``entropy``: minus the mean Shannon entropy of a pixel, divided by log C; −1 to 0.
    - ``im``: information maximisation, the entropy of the mean prediction minus the mean entropy, divided by
      log C; 0 to 1.
    - ``largest_class_share``: the share of pixels in the largest predicted class; no criterion.

    Args:
        sums: of :func:`label_free_sums`.
    """
    marginal, predicted, entropy = _label_free_means(sums)
    scale = math.log(len(marginal))
    return {
        "entropy": -float(entropy) / scale,
        "im": float(torch.special.entr(marginal).sum() - entropy) / scale,
        "largest_class_share": float(predicted.max()),
    }


def _label_free_means(sums: Tensor) -> tuple[Tensor, ...]:
    """Return the mean over the pixels of probabilities (C,), predicted classes (C,) and entropy (1,)."""
    classes = len(sums) // 2 - 1
    marginal, predicted, pixels, entropy = sums.split([classes, classes, 1, 1])
    return tuple(part / pixels.clamp_min(1) for part in (marginal, predicted, entropy))
