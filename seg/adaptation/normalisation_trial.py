"""Which normalisation a network was trained with: the usual ones tried on images, before anything is adapted.

Labels decide. Without them there are two leads, and neither decides alone: the stability score of the predictions, and
the distance of batch norm's stored statistics from those of the images (docs/adaptation.md).

Shapes: B images, C classes or channels, H × W pixels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.decision import LabelScore, label_score
from seg.adaptation.images import Predictions
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD, rgb_format
from seg.inference.adaptive_batch_norm import InputSums
from seg.scores.evidence import Evidence, Forward, Probe, plain_forward
from seg.trained.description import Description
from seg.trained.trained_network import TrainedNetwork

#: Mean and deviation, on a scale of 0 to 1, that networks are usually trained with; each in RGB and in BGR.
USUAL = {
    "ImageNet's": (IMAGENET_MEAN, IMAGENET_STD),
    "0.5": ((0.5,) * 3, (0.5,) * 3),
    "0 to 1": ((0.0,) * 3, (1.0,) * 3),
    "0 to 255": ((0.0,) * 3, (1 / 255,) * 3),
}
#: Most images on which they are tried.
_MOST_IMAGES = 16
#: Batch norm layers whose statistics are compared, in the order in which they run: the farther, the more of a shift of
#: the images is in them.
_LAYERS = 3
#: The distance from which on the scale of the numbers is wrong: 0 to 255 in place of 0 to 1 gives thousands, a shift of
#: the images about 1.
WRONG_SCALE = 100.0
#: Another normalisation is clearly better where its stability score is this many times as high; on photographs of
#: another kind a wrong one reaches 1.15 times the right one's.
CLEARLY_HIGHER = 1.2
#: Or where its distance is that of images like the network's own, this many times as near, and its score no lower.
NEAR, CLEARLY_NEARER = 0.05, 10.0


@dataclass(frozen=True)
class Tried:
    """One normalisation, and what speaks for it; None where it was not measured."""

    name: str  #: such as ``0.5, BGR``; ``own`` for what is known or assumed of the network
    description: Description
    #: of batch norm's stored statistics from the images', in nats a channel
    distance: float | None = None
    score: float | None = None  #: stability score, see :meth:`Evidence.stability_score`
    #: on labelled images, ``before`` by the own one and ``after`` by this
    labelled: LabelScore | None = None

    @property
    def leads(self) -> str:
        """Both numbers in words."""
        near = "–" if self.distance is None else f"{self.distance:.3g}"
        return (
            f"stability score {'–' if self.score is None else f'{self.score:.2f}'}, distance {near}"
        )

    def document(self) -> dict[str, Any]:
        """For ``adapt.json``."""
        numbers = {"name": self.name, "distance": self.distance, "stability_score": self.score}
        scores = {"labels": self.labelled and dataclasses.asdict(self.labelled)}
        return {**numbers, **self.description.normalisation, **scores}


@dataclass(frozen=True)
class Trial:
    """Normalisations that were tried, the own one first, and the conclusion."""

    rows: tuple[Tried, ...]
    better: Tried | None = None  #: clearly better by labels
    sentence: str = ""  #: for the answer; empty where nothing was tried
    #: whether the sentence says that another is better, or that the scale is wrong
    warns: bool = False

    @property
    def used(self) -> Description:
        """The description to go on with: the better one's in place of a guess, else the own."""
        own = self.rows[0].description
        return self.better.description if self.better is not None and own.guessed else own

    @property
    def kept_back(self) -> Description | None:
        """The better one's where the own is no guess and stays: for the baseline alone."""
        return (
            None
            if self.better is None or self.rows[0].description.guessed
            else self.better.description
        )

    def document(self) -> dict[str, Any]:
        """For ``adapt.json``."""
        rows = [row.document() for row in self.rows[1:] and self.rows]
        return {
            **self.used.normalisation,
            "said": self.used.said,
            "trial": self.sentence,
            "tried": rows,
        }


def usual_ones(own: Description) -> list[Tried]:
    """Those of ``USUAL`` that are not the own one."""
    tried = []
    for name, numbers in USUAL.items():
        for order in ("rgb", "bgr"):
            same = np.allclose(
                [*own.pixels.mean, *own.pixels.std],
                [*numbers[0], *numbers[1]],
                atol=1e-3,
                rtol=1e-2,
            )
            if not (same and own.order == order):
                label = name + ", BGR" * (order == "bgr")
                other = dataclasses.replace(
                    own, pixels=rgb_format(*numbers), order=order, origin=f"tried: {label}"
                )
                tried.append(Tried(label, other))
    return tried


def translated(images: Tensor, own: Description, other: Description) -> Tensor:
    """(B, 3, H, W) images that are normalised as one description says, as another says."""
    if own is other:
        return images

    def column(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=images.dtype, device=images.device)[:, None, None]

    rgb = own.reordered(images) * column(own.pixels.std) + column(own.pixels.mean)
    return other.reordered((rgb - column(other.pixels.mean)) / column(other.pixels.std))


def distance_of(stored: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], least: float) -> float:
    """KL divergence of the images' Gaussians from the stored ones, the mean over C channels, in nats.

    ``stored`` and ``found`` are means and variances (C,); ``least`` is added to every variance.
    """
    (mean, variance), (new_mean, new_variance) = stored, found
    ratio = (new_variance + least) / (variance + least)
    apart = (new_mean - mean).square() / (variance + least)
    return float((ratio + apart - 1 - ratio.log()).mean() / 2)


@torch.no_grad()
def look(
    network: nn.Module, probe: Probe, own: Description, seen: Description
) -> tuple[Evidence | None, float | None]:
    """Evidence on images normalised as ``own`` and seen as ``seen``, and distance, which is None without batch norm.

    There is no evidence where the scale is wrong by the distance.
    """
    forward, sums = plain_forward(network), dict[Any, InputSums]()
    there = dataclasses.replace(
        probe, batches=[translated(batch, own, seen) for batch in probe.batches]
    )

    def add(layer: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        if layer in sums or len(sums) < _LAYERS:
            sums.setdefault(layer, InputSums(layer)).add(inputs, named)

    with ExitStack() as hooks:
        for layer in tracking(network):
            hooks.enter_context(layer.register_forward_pre_hook(add, with_kwargs=True))
        logits = [forward(batch) for batch in there.batches]
    each = [
        distance_of(
            (layer.running_mean.double(), layer.running_var.double()),
            part.moments(part.sums),
            layer.eps,
        )
        for layer, part in sums.items()
    ]
    found = sum(each) / len(each) if each else None
    return (
        None if found is not None and found >= WRONG_SCALE else there.look(forward, logits)
    ), found


def tried_normalisations(trained: TrainedNetwork, predictions: Predictions) -> Trial:
    """The trial on the labelled images, or on images without labels.

    Without labels what the network's files or the user say is not doubted, except for its scale.
    """
    if predictions.labels:
        return tried_on_labels(trained.raw_logits, trained.description, predictions)
    network, own = trained.network, trained.description
    probe = Probe.of(network, predictions.folder.spread_batches(_MOST_IMAGES, 4), own.multiple)
    evidence, distance = look(network, probe, own, own)
    first = Tried(
        "own", own, distance, None if evidence is None else evidence.stability_score(evidence)
    )
    alarm = distance is not None and distance >= WRONG_SCALE
    if not own.pixels.is_rgb or not (alarm or own.guessed):
        return Trial((first,))
    rows = [first]
    for other in usual_ones(own):
        found, far = look(network, probe, own, other.description)
        score = None if found is None else found.stability_score(evidence or found)
        rows.append(dataclasses.replace(other, distance=far, score=score))
    return Trial(tuple(rows), None, *_without_labels(rows, alarm))


def _without_labels(rows: Sequence[Tried], alarm: bool) -> tuple[str, bool]:
    """The sentence, and whether it warns."""
    own, others = rows[0], [row for row in rows[1:] if row.score is not None]
    if not others:
        return f"no usual normalisation fits this network ({own.leads})", True
    best = max(others, key=lambda row: row.score or 0.0)
    nearest = min(others, key=lambda row: np.inf if row.distance is None else row.distance)
    say = "--labels with a few labelled images would decide; --mean, --std, --channels and --scale set another"
    mine = own.description
    if alarm:
        likely = best if nearest.distance is None or best.score != nearest.score else nearest
        return (
            f"ALARM, wrong scale: as {mine.numbers} ({mine.origin}), images are {own.distance:,.0f} from the network's "
            f"batch norm statistics, as {likely.description.numbers} {likely.distance:.3g}; {say}"
        ), True
    close, far = nearest.distance, own.distance
    near = close is not None and far is not None and close <= NEAR and far >= CLEARLY_NEARER * close
    if (best.score or 0.0) >= CLEARLY_HIGHER * (own.score or 0.0):
        better = best
    elif near and (nearest.score or 0.0) >= (own.score or 0.0):
        better = nearest
    else:
        both = f"{mine.origin}: {own.leads}; {best.name}: {best.leads}"
        return f"no other usual normalisation is clearly better ({both})", False
    return (
        f"maybe trained with {better.description.numbers}: {better.leads}, here {own.leads}; {say}",
        True,
    )


@torch.no_grad()
def tried_on_labels(forward: Forward, own: Description, predictions: Predictions) -> Trial:
    """The trial on labelled images: the best one counts whose score's interval lies above the own one's."""
    if not own.pixels.is_rgb:
        return Trial((Tried("own", own),))
    rows = [Tried("own", own), *usual_ones(own)]

    def seeing(other: Description) -> Forward:
        return lambda images: forward(translated(images, own, other))

    forwards = [seeing(row.description) for row in rows]
    tables = predictions.confusions(*forwards, most=_MOST_IMAGES)
    scores = [label_score(tables[0], each) for each in tables]
    rows = [
        dataclasses.replace(row, labelled=score) for row, score in zip(rows, scores, strict=True)
    ]
    best = max(rows[1:], key=lambda row: row.labelled.after if row.labelled else 0.0)
    score = best.labelled
    if score is None or score.low is None or score.low <= 0:
        mious = (
            f"{100 * score.after:.1f} % mIoU, here {100 * score.before:.1f}"
            if score
            else "not scored"
        )
        said = (
            f"no other usual normalisation scores clearly higher (the next, {best.name}: {mious})"
        )
        return Trial(tuple(rows), None, said)
    origin = f"chosen of the usual ones by {score.images} labelled images"
    best = dataclasses.replace(
        best, description=dataclasses.replace(best.description, origin=origin)
    )
    kept = "that score is the baseline; predictions keep the own one (--mean, --std, --channels set the other)"
    rest = "the network is adapted from it" if own.guessed else kept
    said = f"not {own.numbers} ({own.origin}) but {best.description.numbers} scores higher: {score.sentence}"
    return Trial(tuple(rows), best, f"{said}; {rest}", True)
