"""A check that the assumed normalisation of images fits a network, before anything is adapted.

The usual normalisations are compared by the first batch norm layers alone: their stored statistics
against the images'. The assumed one and the nearest other one are then compared by the whole
network, where the assumption is a guess. A guess is doubted and never replaced
(docs/adaptation.md).

Shapes: B images, C channels, H × W pixels.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from dem_apps.test_time_methods.copies import Values
from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.images import ImageFolder
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD, rgb_format
from seg.scores.evidence import Evidence, Probe
from seg.trained.adaptive_batch_norm import InputSums
from seg.trained.description import Description
from seg.trained.trained_network import TrainedNetwork

#: Mean and deviation, on a scale of 0 to 1, that networks are usually trained with; each in RGB and in BGR.
USUAL = (
    (IMAGENET_MEAN, IMAGENET_STD),
    ((0.5,) * 3, (0.5,) * 3),
    ((0.0,) * 3, (1.0,) * 3),
    ((0.0,) * 3, (1 / 255,) * 3),
)
#: Most images on which they are compared, and images in a batch.
_MOST_IMAGES, _BATCH = 16, 4
#: Number of batch norm layers with compared statistics, in the order in which they run.
#: Farther layers hold more of a shift of the images.
_LAYERS = 3
#: Least distance that shows a wrong scale of the numbers. Numbers from 0 to 255 in place of 0 to 1
#: give thousands, a shift of the images gives about 1.
WRONG_SCALE = 100.0
#: Another normalisation is clearly better where its stability score is this many times as high.
#: On photographs of another kind a wrong one reaches 1.15 times the right one's.
CLEARLY_HIGHER = 1.2
#: It is also clearly better at this distance, if it is this many times as near and its score is no
#: lower. Images like the network's own have this distance.
NEAR, CLEARLY_NEARER = 0.05, 10.0
_SET_ANOTHER = "seg.evaluate by a few labelled images would decide; --mean, --std, --channels and --scale set another"


@dataclass(frozen=True)
class Candidate:
    """A normalisation, and what speaks for it; None where it was not measured."""

    description: Description
    #: distance of batch norm's stored statistics from the images', in nats a channel
    distance: float
    score: float | None = None  #: stability score, see :meth:`Evidence.stability_score`

    @property
    def text(self) -> str:
        """Numbers, origin and what was measured."""
        score = "" if self.score is None else f"stability score {self.score:.2f}, "
        return f"{self.description.numbers}: {score}distance {self.distance:,.3g}"


class NormalisationCheck(NamedTuple):
    """The evidence for and against the assumed normalisation."""

    sentence: str = ""  #: for the answer; empty where nothing was compared
    warns: bool = False  #: whether another one is better, or the scale is wrong


def check_normalisation(trained: TrainedNetwork, folder: ImageFolder) -> NormalisationCheck:
    """Compare the network's normalisation with the usual ones.

    What the network's files or the user say is not doubted, except for its scale. A network without batch norm, or of
    other bands than RGB, keeps what is assumed.
    """
    own = trained.description
    if not own.pixels.is_rgb or not tracking(trained.network):
        return NormalisationCheck()
    assumed = Candidate(own, distance(trained, folder))
    wrong_scale = assumed.distance >= WRONG_SCALE
    if not own.guessed and not wrong_scale:
        return NormalisationCheck()
    candidates = [Candidate(other, distance(trained, folder.seeing(other))) for other in usual(own)]
    nearest = min(candidates, key=lambda other: other.distance)
    if not wrong_scale and nearest.distance < assumed.distance:
        before, after = (
            _evidence(trained, folder.seeing(each.description)) for each in (assumed, nearest)
        )
        assumed = replace(assumed, score=before.stability_score(before))
        nearest = replace(nearest, score=after.stability_score(before))
    return conclusion(assumed, nearest)


def conclusion(assumed: Candidate, nearest: Candidate) -> NormalisationCheck:
    """Return what is said of the assumed and the nearest normalisation."""
    numbers = f"{nearest.text}, here {assumed.text} ({assumed.description.origin})"
    if assumed.distance >= WRONG_SCALE:
        return NormalisationCheck(f"ALARM, wrong scale: {numbers}; {_SET_ANOTHER}", True)
    near = nearest.distance <= min(NEAR, assumed.distance / CLEARLY_NEARER)
    least = (assumed.score or 0.0) * (1.0 if near else CLEARLY_HIGHER)
    if nearest.score is not None and nearest.score >= least:
        return NormalisationCheck(f"maybe trained with {numbers}; {_SET_ANOTHER}", True)
    return NormalisationCheck(
        f"no other usual normalisation is clearly better (nearest: {numbers})"
    )


def _evidence(trained: TrainedNetwork, folder: ImageFolder) -> Evidence:
    """The evidence on the folder's images by the whole network."""
    batches = [(batch, None) for batch in folder.spread_batches(_MOST_IMAGES, _BATCH)]
    probe = Probe.of(trained.network, batches, trained.description.multiple)
    return probe.look(trained.raw_logits)


def usual(own: Description) -> list[Description]:
    """The usual normalisations that are not the own one."""
    descriptions = [
        replace(own, pixels=rgb_format(mean, std), order=order, origin="a usual one")
        for mean, std in USUAL
        for order in ("rgb", "bgr")
    ]
    return [each for each in descriptions if each.numbers != own.numbers]


class _Reached(Exception):
    """The last of the compared layers has its input."""


@torch.no_grad()
def distance(trained: TrainedNetwork, folder: ImageFolder) -> float:
    """Return the distance between stored and image statistics in the first batch norm layers.

    No image passes the layers behind these.

    Returns:
        The distance in nats a channel.
    """
    sums = dict[Any, InputSums]()

    def add(layer: Any, inputs: tuple[Tensor, ...], named: Values) -> None:
        sums.setdefault(layer, InputSums(layer)).add(inputs, named)
        if len(sums) == _LAYERS and layer is [*sums][-1]:
            raise _Reached

    with ExitStack() as hooks:
        for layer in tracking(trained.network):
            hooks.enter_context(layer.register_forward_pre_hook(add, with_kwargs=True))
        for batch in folder.spread_batches(_MOST_IMAGES, _BATCH):
            with suppress(_Reached):
                trained.raw_logits(batch)
    divergences = []
    for layer, part in sums.items():
        of_images = _gaussian(*part.moments(), layer.eps)
        stored = _gaussian(layer.running_mean, layer.running_var, layer.eps)
        divergences.append(float(kl_divergence(of_images, stored).mean()))
    return sum(divergences) / max(len(divergences), 1)


def _gaussian(mean: Tensor, variance: Tensor, least: float) -> Normal:
    return Normal(mean.double(), (variance.double() + least).sqrt(), validate_args=False)
