"""AdaBN (Li et al., 2016, arXiv:1603.04779): running statistics of target images after training.

It changes no weight and needs no label, so it serves any trained network that has batch normalisation.
Shapes: B batch, C channels of a layer, h × w its features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps.errors import InputError
from dem_apps.reduction import summed_over_processes, world_size
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.data.datasets import SegmentationDataset
from seg.data.statistics import spread_batches

#: The key of a checkpoint under which it names the images of its AdaBN statistics.
RE_ESTIMATED_ON = "re_estimated_on"


@torch.no_grad()
def re_estimated(model: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """A copy of a network, in ``eval()`` mode, whose running statistics are those of the (B, 3, H, W) batches.

    In the pass every layer normalises by its batch, as in training; dropout is off. A layer's mean and variance are
    those of all its inputs' pixels, pooled in float64. (An average of the batches' variances, as of ``momentum=None``,
    would lack what the batches' means differ by.) With ``torch.distributed`` they are of all processes' batches. The
    copy has the same parameter objects, so it is right until they change.

    Raises InputError: a network without batch normalisation, no image at all, or a layer that gets a single pixel.
    """
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    adapted = copy.deepcopy(model, parameters).eval()
    layers = _with_statistics(adapted)
    check_there_are_statistics(adapted)
    parts = [_Sums(layer) for layer in layers]
    hooks = [layer.register_forward_pre_hook(part.add) for layer, part in zip(layers, parts, strict=True)]
    for layer in layers:
        # without any, a layer in eval() normalises by its own batch
        layer.running_mean = layer.running_var = None
    for images in batches:
        adapted(images)
    for hook in hooks:
        hook.remove()
    joined = summed_over_processes(*(part.sums for part in parts))
    if not any(float(sums[-1]) for sums in joined):
        raise InputError("--batch-norm-after: there is no image to re-estimate running statistics on")
    for layer, part, sums in zip(layers, parts, joined, strict=True):
        layer.running_mean, layer.running_var = part.statistics(sums)
    return adapted


def check_there_are_statistics(model: nn.Module, name: str = "the network") -> None:
    """Raises an InputError for a network without batch normalisation; ``name`` is of the network."""
    if not _with_statistics(model):
        raise InputError(
            f"--batch-norm-after: {name} has no batch normalisation, so there are no running statistics to "
            "re-estimate; leave it at none"
        )


def re_estimated_on(dataset: SegmentationDataset, model: nn.Module, device: torch.device) -> nn.Module:
    """:func:`re_estimated` on every image of a data set, as it is read, shared out over the processes."""
    process = (dist.get_rank(), world_size()) if world_size() > 1 else (0, 1)
    return re_estimated(model, spread_batches(lambda index: dataset[index].normalised(), len(dataset), device, process))


def _with_statistics(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in batch_norms(model) if layer.running_mean is not None]


class _Sums:
    """Sums over a layer's inputs: of its C channels, of their squares, and the number of pixels, (2C + 1,) float64."""

    def __init__(self, layer: _BatchNorm) -> None:
        assert layer.running_mean is not None  # for the type checker, as is the next
        assert layer.running_var is not None
        self.before = layer.running_mean, layer.running_var
        channels = layer.running_mean.numel()
        self.sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=layer.running_mean.device)

    def add(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """A hook before a layer's forward; its input is (B, C, …)."""
        features = inputs[0]
        number = features.numel() // features.shape[1]
        if number == 1:
            raise InputError(
                "--batch-norm-after: the network pools an image to one pixel, and one has no variance; it needs two "
                "images of one size"
            )
        dims = [0, *range(2, features.ndim)]
        variance, mean = (part.double() for part in torch.var_mean(features.float(), dims, correction=0))
        self.sums += number * torch.cat([mean, variance + mean.square(), mean.new_ones(1)])

    def statistics(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """What ``running_mean`` and ``running_var`` become; those of a layer without any input stay."""
        mean_before, variance_before = self.before
        number = sums[-1]
        if float(number) == 0:
            return self.before
        mean, square = (sums[:-1] / number).chunk(2)
        variance = (square - mean.square()) * number / (number - 1)
        return mean.to(mean_before.dtype), variance.to(variance_before.dtype)
