"""AdaBN by a share: running statistics mixed with the statistics of target images.

AdaBN is by Li et al., 2016 (arXiv:1603.04779). It changes no weight and needs no label, so it
serves any trained network that has batch normalisation. How large a share serves differs: all of
the images' statistics where they look quite different, a third or none where not. Without labels
it is seen by how steady predictions of how many classes are (docs/adaptation.md).

Shapes: B batch, C channels of a layer, h × w its features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dem_apps.errors import InputError
from dem_apps.reduction import rank, summed_over_processes, sums_in, world_size
from dem_apps.test_time_methods.copies import Values, deep_copy
from dem_apps.test_time_methods.normalisation import Moments, mixed, moments, tracking
from seg.data.datasets import SegmentationDataset
from seg.data.files import evenly
from seg.data.statistics import spread_batches
from seg.scores.evidence import MaskedBatch, Probe, plain_forward
from seg.scores.segmentation_scores import at_size

#: The shares that are compared, and the least stability score of the best over that of none.
SHARES, LEAST_GAIN = (0.0, 0.3, 0.5, 1.0), 1.01
#: Images on which the shares are compared, and most of a data set that statistics are taken on.
_COMPARED_ON, _MOST_IMAGES = 16, 64


#: Images with their masks, or alone.
Batches = Iterable[Tensor | MaskedBatch]


class Estimated(NamedTuple):
    """A copy of a network, in ``eval()`` mode, with a share of the statistics of images."""

    network: nn.Module
    share: float


class TargetStatistics:
    """Batch norm statistics of target images, and a copy of a network that takes a share of them.

    While they are gathered every layer normalises by its batch. Mean and variance are pooled over all pixels and
    processes in float64 (``sums_in``). A layer of single pixels keeps its own.

    Args:
        model: the network. The copy has the same parameter objects.
        batches: of the images, one at least over all processes.

    Raises:
        InputError: a network without batch norm.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, batches: Batches) -> None:
        parameters = {id(parameter): parameter for parameter in model.parameters()}
        self._network = deep_copy(model, parameters).eval()
        check_there_are_statistics(self._network)
        self.parts = [InputSums(layer) for layer in tracking(self._network)]
        #: the first batches, to compare shares on
        self.first: list[MaskedBatch] = []
        self._gather(batches)
        joined = summed_over_processes(*(part.sums for part in self.parts))
        for part, total in zip(self.parts, joined, strict=True):
            part.sums = total

    def _gather(self, batches: Batches) -> None:
        """Pass the batches through the network."""
        with ExitStack() as hooks:
            for part in self.parts:
                hook = part.layer.register_forward_pre_hook(part.by_the_batch, with_kwargs=True)
                hooks.enter_context(hook)
            for batch in batches:
                images, valid = batch if isinstance(batch, tuple) else (batch, None)
                for part in self.parts:
                    part.valid = valid
                self._network(images)
                if sum(len(each) for each, _ in self.first) < _COMPARED_ON:
                    self.first.append((images, valid))

    def network(self, share: float) -> nn.Module:
        """The copy with a share of the statistics; each call changes the same copy."""
        for part in self.parts:
            part.take(share)
        return self._network


@torch.no_grad()
def re_estimated(
    model: nn.Module,
    batches: Batches,
    bn_alpha: float | None = None,
) -> Estimated:
    """A network with a share of the running statistics of batches, and the share.

    Args:
        model: the network.
        batches: as :class:`TargetStatistics` takes them.
        bn_alpha: the share. 1 is AdaBN as published. None is :func:`best_share` by the stability score on the first
            images.

    Raises:
        InputError: a network without batch norm.
    """
    statistics = TargetStatistics(model, batches)
    if bn_alpha is None:
        scores = statistics.parts[0].sums.new_tensor(_scores(statistics))
        bn_alpha = best_share(summed_over_processes(scores)[0].tolist())
    return Estimated(statistics.network(bn_alpha), bn_alpha)


def best_share(scores: Sequence[float]) -> float:
    """Return the one of ``SHARES`` with the highest score of its network.

    It is 0 where no score is clearly higher than the score of share 0.

    >>> best_share([1.0, 1.1, 1.2, 0.9]), best_share([1.0, 1.0, 1.005, 0.9])
    (0.5, 0.0)
    """
    best = max(scores)
    return SHARES[scores.index(best)] if best >= LEAST_GAIN * scores[0] else 0.0


def _scores(statistics: TargetStatistics) -> list[float]:
    """The stability score of each of ``SHARES`` on this process's first images; 0 without any."""
    if not statistics.first:
        return [0.0] * len(SHARES)
    probe = Probe.of(statistics.network(0.0), statistics.first)
    looks = [probe.look(plain_forward(statistics.network(share))) for share in SHARES]
    return [look.stability_score(looks[0]) for look in looks]


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
    process = rank(), world_size()
    chosen, bands = evenly(range(len(dataset)), _MOST_IMAGES), dataset.pixels.bands

    def read(place: int) -> Tensor:
        sample = dataset[chosen[place]]
        image = sample.normalised()
        if sample.valid is None:
            return image
        # a mask is a further band on the way
        return torch.cat([image, torch.from_numpy(sample.valid)[None].to(image)])

    def with_mask(batch: Tensor) -> MaskedBatch:
        return batch[:, :bands], batch[:, bands].bool() if batch.shape[1] > bands else None

    batches = spread_batches(read, len(chosen), device, process)
    return re_estimated(model, map(with_mask, batches), bn_alpha)


class InputSums:
    """``sums`` over a layer's inputs: of its C channels, of their squares, and the number of pixels, (2C + 1,)."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        mean: Tensor = layer.running_mean
        self.before: Moments = mean, layer.running_var
        self.sums = mean.new_zeros(2 * mean.numel() + 1, dtype=sums_in(mean))
        #: (B, H, W) bool, where the images of the next inputs hold data
        self.valid: Tensor | None = None

    def add(self, inputs: Sequence[Tensor], named: Values) -> Moments | None:
        """Add what a layer's forward is called with, (B, C, …); returns its moments, None where there are none."""
        features = [*inputs, *named.values()][0]
        if self.valid is not None and features.ndim == 4 and features[0, 0].numel() > 1:
            features = features.movedim(1, 0)[:, at_size(self.valid, features.shape[2:])][None]
        number = features.numel() // features.shape[1]
        if number < 2:  # one has no variance: such as an image that a network pools to one value
            return None
        by_batch = moments(features)
        mean, variance = (part.to(sums_in(part)) for part in by_batch)
        self.sums += number * torch.cat([mean, variance + mean.square(), mean.new_ones(1)])
        return by_batch

    def by_the_batch(self, layer: nn.Module, inputs: Sequence[Tensor], named: Values) -> None:
        """Make a layer in ``eval()`` normalise by its batch; a hook before the layer's forward.

        torch takes the batch's statistics where a layer has no running statistics.
        """
        statistics: Any = self.add(inputs, named)
        if statistics is None:
            statistics = self.before
        elif self.valid is None:
            statistics = None, None  # torch takes those of the batch
        layer.running_mean, layer.running_var = statistics

    def moments(self) -> Moments:
        """(C,) mean, and variance over the number of pixels."""
        mean, square = (self.sums[:-1] / self.sums[-1]).chunk(2)
        return mean, square - mean.square()

    def take(self, share: float) -> None:
        """Mix the layer's ``running_mean`` and ``running_var`` by a share; those of a layer without input stay."""
        statistics, pixels = self.before, self.sums[-1]
        if float(pixels) > 0:
            mean, variance = self.moments()
            statistics = mixed(*self.before, mean, variance * pixels / (pixels - 1), share)
        self.layer.running_mean, self.layer.running_var = statistics
