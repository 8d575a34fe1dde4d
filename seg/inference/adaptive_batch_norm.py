"""AdaBN (Li et al., 2016, arXiv:1603.04779) by a share: running statistics mixed with those of target images.

It changes no weight and needs no label, so it serves any trained network that has batch normalisation. How large a
share serves differs: all of the images' statistics where they look quite different, a third or none where not. Without
labels it is seen by how steady predictions of how many classes are (docs/adaptation.md).

Shapes: B batch, C channels of a layer, h × w its features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.reduction import summed_over_processes, sums_in, world_size
from dem_apps.test_time_methods.copies import deep_copy
from dem_apps.test_time_methods.normalisation import mixed, moments, tracking
from seg.data.datasets import SegmentationDataset
from seg.data.files import evenly
from seg.data.statistics import spread_batches
from seg.scores.evidence import Probe, plain_forward
from seg.scores.segmentation_scores import at_size

#: The shares that are compared, and the least stability score of the best over that of none.
SHARES, LEAST_GAIN = (0.0, 0.3, 0.5, 1.0), 1.01
#: Images on which the shares are compared, and most of a data set that statistics are taken on.
_COMPARED_ON, _MOST_IMAGES = 16, 64


#: How well a network does; higher is better.
Score = Callable[[nn.Module], float]


class Estimated(NamedTuple):
    """A copy of a network, in ``eval()`` mode, with a share of the statistics of images."""

    network: nn.Module
    share: float


@torch.no_grad()
def re_estimated(
    model: nn.Module,
    batches: Iterable[Tensor | tuple[Tensor, Tensor | None]],
    bn_alpha: float | None = None,
    score: Score | None = None,
) -> Estimated:
    """A network with a share of the running statistics of batches, and the share.

    A batch is (B, 3, H, W), alone or with (B, H, W) bool where it holds data.

    The share is ``bn_alpha``, 1 being AdaBN as published; None is :func:`best_share` by the ``score`` of a network, the
    stability score on the first images by default. In the pass every layer normalises by its batch; its mean and
    variance are pooled over all pixels and processes in float64 (``sums_in``). A layer of single pixels keeps its own.
    The copy has the same parameter objects. Raises InputError: a network without batch norm, or no image.
    """
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    adapted = deep_copy(model, parameters).eval()
    check_there_are_statistics(adapted)
    layers = tracking(adapted)
    parts = [InputSums(layer) for layer in layers]
    count, first = 0, list[tuple[Tensor, Tensor | None]]()
    with ExitStack() as hooks:
        for layer, part in zip(layers, parts, strict=True):
            hooks.enter_context(
                layer.register_forward_pre_hook(part.by_the_batch, with_kwargs=True)
            )
        for batch in batches:
            images, valid = batch if isinstance(batch, tuple) else (batch, None)
            for part in parts:
                part.valid = valid
            adapted(images)
            count += 1
            if sum(len(each) for each, _ in first) < _COMPARED_ON:
                first.append((images, valid))
    joined = summed_over_processes(
        *(part.sums for part in parts), parts[0].sums.new_tensor([count])
    )
    if not float(joined[-1]):
        raise InputError(
            "--batch-norm-after: there is no image to re-estimate running statistics on"
        )

    def take(share: float) -> nn.Module:
        for layer, part, sums in zip(layers, parts, joined, strict=False):
            layer.running_mean, layer.running_var = part.statistics(sums, share)
        return adapted

    share = bn_alpha
    if share is None:
        score = score or _score(take(0.0), first)
        scores = summed_over_processes(
            joined[-1].new_tensor([score(take(each)) for each in SHARES])
        )[0]
        share = best_share(scores.tolist())
    return Estimated(take(share), share)


def best_share(scores: Sequence[float]) -> float:
    """Of ``SHARES`` that whose network has the highest score, or 0 where none is clearly higher than that.

    >>> best_share([1.0, 1.1, 1.2, 0.9]), best_share([1.0, 1.0, 1.005, 0.9])
    (0.5, 0.0)
    """
    best = max(range(len(scores)), key=scores.__getitem__)
    return SHARES[best] if scores[best] >= LEAST_GAIN * scores[0] else 0.0


def _score(network: nn.Module, batches: list[tuple[Tensor, Tensor | None]]) -> Score:
    """The stability score of another network on batches, beside the network; 0 without any."""
    if not batches:
        return lambda other: 0.0
    images, masks = zip(*batches, strict=True)
    probe = Probe.of(network, images, masks=masks)
    before = probe.look(plain_forward(network))
    return lambda other: probe.look(plain_forward(other)).stability_score(before)


def check_there_are_statistics(model: nn.Module) -> None:
    """Raises an InputError for a network without batch normalisation."""
    if not tracking(model):
        raise InputError(
            "--batch-norm-after: the network has no batch normalisation to re-estimate; leave it at none"
        )


def re_estimated_on(
    dataset: SegmentationDataset,
    model: nn.Module,
    device: torch.device,
    bn_alpha: float | None = None,
) -> Estimated:
    """:func:`re_estimated` on up to 64 images spread over a data set, as it is read, shared out over the processes."""
    process = (dist.get_rank(), world_size()) if world_size() > 1 else (0, 1)
    chosen = evenly(range(len(dataset)), _MOST_IMAGES)

    def read(place: int) -> Tensor:
        sample = dataset[chosen[place]]
        image = sample.normalised()
        # a mask is a further band on the way
        return (
            image
            if sample.valid is None
            else torch.cat([image, torch.from_numpy(sample.valid)[None].to(image)])
        )

    known = dataset.pixels.bands
    found = spread_batches(read, len(chosen), device, process)
    batches = (
        each if each.shape[1] == known else (each[:, :known], each[:, known].bool())
        for each in found
    )
    return re_estimated(model, batches, bn_alpha)


class InputSums:
    """``sums`` over a layer's inputs: of its C channels, of their squares, and the number of pixels, (2C + 1,)."""

    def __init__(self, layer: Any) -> None:
        self.before: tuple[Tensor, Tensor] = layer.running_mean, layer.running_var
        channels = layer.running_mean.numel()
        self.sums = layer.running_mean.new_zeros(
            2 * channels + 1, dtype=sums_in(layer.running_mean)
        )
        #: (B, H, W) bool, where the images of the next inputs hold data
        self.valid: Tensor | None = None

    def add(
        self, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Add what a layer's forward is called with, (B, C, …); returns its moments, None where there are none."""
        features = [*inputs, *named.values()][0]
        if self.valid is not None and features.ndim == 4 and features[0, 0].numel() > 1:
            features = features.movedim(1, 0)[:, at_size(self.valid, features.shape[2:])][None]
        number = features.numel() // features.shape[1]
        if number < 2:  # one has no variance: such as an image that a network pools to one value
            return None
        found = moments(features)
        mean, variance = (part.to(sums_in(part)) for part in found)
        self.sums += number * torch.cat([mean, variance + mean.square(), mean.new_ones(1)])
        return found

    def by_the_batch(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]
    ) -> None:
        """A hook before the forward of a layer in ``eval()``, which without statistics normalises by its batch."""
        found, torchs_own = self.add(inputs, named), (None, None)
        moments = torchs_own if found is not None and self.valid is None else found or self.before
        layer.running_mean, layer.running_var = moments  # type: ignore[assignment]

    @staticmethod
    def moments(sums: Tensor) -> tuple[Tensor, Tensor]:
        """(C,) mean, and variance over the number of pixels."""
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        return mean, square - mean.square()

    def statistics(self, sums: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Mixed ``running_mean`` and ``running_var``; those of a layer without input stay."""
        if float(sums[-1]) == 0:
            return self.before
        mean, variance = self.moments(sums)
        return mixed(*self.before, mean, variance * sums[-1] / (sums[-1] - 1), share)
