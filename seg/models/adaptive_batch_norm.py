"""AdaBN (Li et al., 2016, arXiv:1603.04779) by a share: running statistics mixed with those of target images.

It changes no weight and needs no label, so it serves any trained network that has batch normalisation.
Shapes: B batch, C channels of a layer, h × w its features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.reduction import summed_over_processes, world_size
from dem_apps.test_time_methods.normalisation import GATHERED_SHARE, mixed, moments, tracking
from seg.data.datasets import SegmentationDataset
from seg.data.statistics import spread_batches

#: The key of a checkpoint under which it names the images of its AdaBN statistics.
RE_ESTIMATED_ON = "re_estimated_on"


@torch.no_grad()
def re_estimated(model: nn.Module, batches: Iterable[Tensor], bn_alpha: float | None = None) -> nn.Module:
    """A copy of a network, in ``eval()`` mode, with a share of the running statistics of (B, 3, H, W) batches.

    The share is ``bn_alpha``; 1 is AdaBN as published, and None the default. In the pass every layer normalises by its
    batch, as in training. A layer's mean and variance are those of all its inputs' pixels, of all processes, pooled in
    float64; one that gets a single pixel keeps its own. The copy has the same parameter objects. Raises InputError: a
    network without batch normalisation, or no image.
    """
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    adapted = copy.deepcopy(model, parameters).eval()
    check_there_are_statistics(adapted)
    layers = tracking(adapted)
    parts = [_Sums(layer) for layer in layers]
    hooks = [layer.register_forward_pre_hook(part.add) for layer, part in zip(layers, parts, strict=True)]
    count = 0
    for images in batches:
        adapted(images)
        count += 1
    for hook in hooks:
        hook.remove()
    joined = summed_over_processes(*(part.sums for part in parts), parts[0].sums.new_tensor([count]))
    if not float(joined[-1]):
        raise InputError("--batch-norm-after: there is no image to re-estimate running statistics on")
    share = GATHERED_SHARE if bn_alpha is None else bn_alpha
    for layer, part, sums in zip(layers, parts, joined, strict=False):
        layer.running_mean, layer.running_var = part.statistics(sums, share)
    return adapted


def check_there_are_statistics(model: nn.Module, name: str = "the network") -> None:
    """Raises an InputError for a network without batch normalisation; ``name`` is of the network."""
    if not tracking(model):
        raise InputError(
            f"--batch-norm-after: {name} has no batch normalisation, so there are no running statistics to "
            "re-estimate; leave it at none"
        )


def re_estimated_on(
    dataset: SegmentationDataset, model: nn.Module, device: torch.device, bn_alpha: float | None = None
) -> nn.Module:
    """:func:`re_estimated` on every image of a data set, as it is read, shared out over the processes."""
    process = (dist.get_rank(), world_size()) if world_size() > 1 else (0, 1)
    batches = spread_batches(lambda index: dataset[index].normalised(), len(dataset), device, process)
    return re_estimated(model, batches, bn_alpha)


class _Sums:
    """Sums over a layer's inputs: of its C channels, of their squares, and the number of pixels, (2C + 1,) float64."""

    def __init__(self, layer: Any) -> None:
        self.before: tuple[Tensor, Tensor] = layer.running_mean, layer.running_var
        channels = layer.running_mean.numel()
        self.sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=layer.running_mean.device)

    def add(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """A hook before a layer's forward; its input is (B, C, …)."""
        features = inputs[0]
        number = features.numel() // features.shape[1]
        if number <= 1:  # of no variance: such as an image that a network pools to one value
            layer.running_mean, layer.running_var = self.before
            return
        # without any, a layer in eval() normalises by its own batch
        layer.running_mean = layer.running_var = None  # type: ignore[assignment]
        mean, variance = (part.double() for part in moments(features))
        self.sums += number * torch.cat([mean, variance + mean.square(), mean.new_ones(1)])

    def statistics(self, sums: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """What ``running_mean`` and ``running_var`` become; those of a layer without any input stay."""
        number = sums[-1]
        if float(number) == 0:
            return self.before
        mean, square = (sums[:-1] / number).chunk(2)
        variance = (square - mean.square()) * number / (number - 1)
        return mixed(*self.before, mean, variance, share)
