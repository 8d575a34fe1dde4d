"""A check that the numbers of the images have the scale that a network expects, before anything is adapted.

Shapes: B images, C channels, H × W pixels.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.images import ImageFolder
from seg.trained.adaptive_batch_norm import InputSums
from seg.trained.trained_network import TrainedNetwork

#: Most images whose statistics are taken, and images in a batch.
_MOST_IMAGES, _BATCH = 16, 4
#: Number of batch norm layers with compared statistics, in the order in which they run.
#: Farther layers hold more of a shift of the images.
_LAYERS = 3
#: Least distance that shows a wrong scale of the numbers. Numbers from 0 to 255 in place of 0 to 1
#: give thousands, a shift of the images gives about 1.
WRONG_SCALE = 100.0


def wrong_scale(trained: TrainedNetwork, folder: ImageFolder) -> str:
    """Return a sentence if the assumed normalisation has a wrong scale, else an empty text.

    A network without batch norm, or of other bands than RGB, has no such check.
    """
    description = trained.description
    if not description.pixels.is_rgb or not tracking(trained.network):
        return ""
    nats = distance(trained, folder)
    if nats < WRONG_SCALE:
        return ""
    return (
        f"ALARM, wrong scale: the images are seen as {description.said}, and the network's first layers were trained "
        f"on other numbers (distance {nats:,.3g}); set --scale, --mean, --std and --channels"
    )


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

    def add(layer: Any, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
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
        of_images = _gaussian(*part.moments(part.sums), layer.eps)
        stored = _gaussian(layer.running_mean, layer.running_var, layer.eps)
        divergences.append(float(kl_divergence(of_images, stored).mean()))
    return sum(divergences) / max(len(divergences), 1)


def _gaussian(mean: Tensor, variance: Tensor, least: float) -> Normal:
    return Normal(mean.double(), (variance.double() + least).sqrt(), validate_args=False)
