"""From a network and a folder to predictions before and after: predict, learn while a monitor looks, predict again.

Shapes: B images, C classes, h × w the logits' resolution.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.progress import track
from dem_apps.test_time_methods.copies import deep_copy, put_values
from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics
from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.decision import AcceptanceMonitor, Scorer, decide, label_score
from seg.adaptation.images import REFUSED, Predictions
from seg.adaptation.normalisation_trial import Trial, translated
from seg.inference.adaptive_batch_norm import SHARES, best_share, re_estimated
from seg.models.batch_norm import batch_norm_normalises
from seg.models.network import upsampled
from seg.scores.evidence import Evidence, Forward, Probe, plain_forward
from seg.trained.trained_network import TrainedNetwork

#: Images that statistics and evidence are taken on, evenly from the folder, in two halves.
PROBE_IMAGES = 32
#: Batches of the first half, and images in each, that a step learns from; a smaller half serves more than once.
STEP_BATCHES, STEP_IMAGES = 4, 4
#: Looks at the network per pass over the folder, besides the first: one per ``IMAGES_PER_CHECK``, since a look costs as
#: much as learning from two dozen.
FEWEST_CHECKS, MOST_CHECKS, IMAGES_PER_CHECK = 2, 4, 64
#: Images that are shown at every share, and pixels of their longer side.
SHOWN, _SMALL = 4, 192
#: Images of a folder in which each is looked at by itself, which takes seven more forwards.
MOST_BY_IMAGE = 64
#: How many times as fast convolutions have to be without oneDNN for doing without it.
_CLEARLY = 1.5


@dataclass(frozen=True)
class Adaptation:
    """One adaptation; modes and epochs are those of :class:`seg.adapt.AdaptConfig`."""

    trained: TrainedNetwork  #: on its device; its weights become the adapted ones
    predictions: Predictions
    trial: Trial  #: of normalisations
    make: Callable[[], TestTimeAdapter]  #: an adapter of the network
    #: the images to learn from, in order, over all passes; none of a method without learning
    batches: list[list[int]]
    mode: str = "epochs"
    epochs: int = 1
    prepare: Forward | None = None  #: changes images before the network sees them
    #: whether a share of the images' statistics is taken once, which the rest stands on
    statistics: bool = False
    bn_alpha: float | None = None  #: the share; None for the best
    accept: bool = False  #: whether the user takes what the evidence speaks against
    #: arguments of the adapters that a step tries; none of other methods
    steps: Sequence[dict[str, Any]] = ()

    def run(self) -> AcceptanceMonitor:
        """Write all predictions; afterwards the network holds the weights that are used."""
        self._predict("before", self.trained.raw_logits)
        network, first = self.trained.network, copy.deepcopy(self.trained.network.state_dict())
        folder, multiple = self.predictions.folder, self.trained.description.multiple
        halves = [
            [folder.batch(each) for each in half]
            for half in folder.halves(PROBE_IMAGES, STEP_IMAGES)
        ]
        probes = []
        for half in halves:
            images, masks = zip(*half, strict=True)
            probes.append(Probe.of(network, images, multiple, masks))
        before = [probe.look(plain_forward(network)) for probe in probes]
        probes = [
            dataclasses.replace(probe, batches=list(map(self._prepared, probe.batches)))
            for probe in probes
        ]
        baseline = self._baseline()
        score = self._scorer(baseline) if baseline else None
        monitor = AcceptanceMonitor(probes[1], before[1], score, self.accept, baseline=baseline)
        # one batch norm among layer norms, as in SegFormer's head, is late, and other statistics there only harm
        if (
            self.statistics
            and tracking(network)
            and (batch_norm_normalises(network) or not self.batches)
        ):
            self._take_share(monitor, probes, before)
        if self.mode == "episodic":
            self._adapt_to_each(self.make(), monitor)
            return monitor
        if self.steps:
            self._take_step(monitor, probes[0], halves[0])
        else:
            self._learn(monitor, [*probes[0].pairs, *probes[1].pairs])
        self._use_best(monitor, first)
        return monitor

    def _take_share(
        self, monitor: AcceptanceMonitor, probes: Sequence[Probe], before: Sequence[Evidence]
    ) -> None:
        """Give the network the share of the images' statistics with the highest score, the mean of both halves'.

        Each half also looks at the share that the other one would choose.
        """
        network, looks = self.trained.network, list[list[Evidence]]()  # of each share, by each half

        def score_of(other: nn.Module) -> float:
            if monitor.score is not None:
                score = monitor.score(plain_forward(other)).after
            else:
                looks.append([probe.look(plain_forward(other)) for probe in probes])
                score = fmean(
                    look.stability_score(old) for look, old in zip(looks[-1], before, strict=True)
                )
            monitor.tried.append((score, self._small_maps(plain_forward(other))))
            return score

        batches = [*probes[0].pairs, *probes[1].pairs]
        adapted, monitor.share = re_estimated(network, batches, self.bn_alpha, score_of)
        put_values(network, adapted.state_dict())
        for half in range(2 if looks else 0):
            chosen = best_share([each[half].stability_score(before[half]) for each in looks])
            monitor.chosen.append(chosen)
            if chosen and monitor.share:
                monitor.crossed.append(
                    decide(before[1 - half], looks[SHARES.index(chosen)][1 - half])
                )

    def _small_maps(self, forward: Forward) -> list[NDArray[np.uint8]]:
        """Classes of :data:`SHOWN` images, evenly from the folder."""
        maps, align_corners = [], self.trained.description.align_corners
        for index in self.predictions.folder.spread(SHOWN):
            images = self._prepared(self.predictions.folder.seen(index)[0][None])
            height, width = (
                -(-side * _SMALL // max(_SMALL, *images.shape[2:])) for side in images.shape[2:]
            )
            small = upsampled(forward(images), (height, width), align_corners)
            maps.append(small[0].argmax(0).to(torch.uint8).cpu().numpy())
        return maps

    def _baseline(self) -> list[NDArray[np.int64]]:
        """Of the labelled images (C, C) each: by the unadapted network with the better of the normalisations."""
        if (better := self.trial.kept_back) is not None:
            seen = partial(translated, own=self.trained.description, other=better)
            return self.predictions.confusions(
                lambda images: self.trained.raw_logits(seen(images))
            )[0]
        rows = self.predictions.rows["before"].values()
        return [row.confusion for row in rows if row.confusion is not None]

    def _confusions(self, forward: Forward) -> list[NDArray[np.int64]]:
        return self.predictions.confusions(lambda images: forward(self._prepared(images)))[0]

    def _scorer(self, old: list[NDArray[np.int64]]) -> Scorer:
        return lambda forward: label_score(old, self._confusions(forward))

    def _use_best(self, monitor: AcceptanceMonitor, first: dict[str, Tensor]) -> None:
        """Restore the best state, else the ``first`` weights, and predict what is not predicted yet."""
        network = self.trained.network
        put_values(network, first)
        if not self._differs(monitor.best):
            monitor.used = monitor.best = None
        if monitor.used is not None and monitor.best is not None:
            monitor.refused = None
            put_values(network, monitor.best)
            streamed: set[int] = set()
            if self.mode == "online":  # predictions made before the restored state stand
                until = monitor.used.step if monitor.stopped else monitor.batches
                streamed = {index for batch in self.batches[:until] for index in batch}
            chosen = (
                self.statistics
                and self.bn_alpha is None
                and not (monitor.used.step or monitor.score)
            )
            if chosen and not self.accept:
                monitor.kept = self._less_stable(monitor, first, monitor.best)
            if monitor.kept:
                self.predictions.keep_before()
            self._predict("after", plain_forward(network), streamed.union(monitor.kept))
            return
        self.predictions.keep_before()
        if monitor.refused is not None:
            put_values(network, monitor.refused)
            self._predict(REFUSED, plain_forward(network))
            put_values(network, first)

    @torch.no_grad()
    def _less_stable(
        self, monitor: AcceptanceMonitor, first: dict[str, Tensor], best: dict[str, Tensor]
    ) -> tuple[int, ...]:
        """Images whose own stability score is lower with the ``best`` weights, which the network has at the end.

        Scenes and large folders have none: looking would cost more than adapting.
        """
        network, folder = self.trained.network, self.predictions.folder
        if folder.tile is not None or len(folder) > MOST_BY_IMAGE:
            return ()
        scores = list[list[float]]()
        for weights in (first, best):
            put_values(network, weights)
            images = (folder.batch([index]) for index in range(len(folder)))
            probes = (
                dataclasses.replace(monitor.probe, batches=[each], masks=[valid])
                for each, valid in images
            )
            looks = (probe.look(plain_forward(network)) for probe in probes)
            scores.append([look.stability_score(monitor.before) for look in looks])
        return tuple(
            index for index, (old, new) in enumerate(zip(*scores, strict=True)) if new < old
        )

    def _differs(self, best: dict[str, Tensor] | None) -> bool:
        """Whether the best state is another one than the unadapted network; the first look need not be."""
        own = self.trained.network.state_dict()
        # a buffer of another size is one that forward makes for each size
        values = [] if best is None else [(own[name], value) for name, value in best.items()]
        same = bool(values) and all(
            torch.equal(*pair) for pair in values if pair[0].shape == pair[1].shape
        )
        return self.prepare is not None or not same

    def _prepared(self, images: Tensor) -> Tensor:
        return images if self.prepare is None else self.prepare(images)

    def _take_step(
        self,
        monitor: AcceptanceMonitor,
        probe: Probe,
        batches: Sequence[tuple[Tensor, Tensor | None]],
    ) -> None:
        """Try each of ``steps`` on a few batches of one half of the images; the monitor looks at the other half.

        There is no step without an accepted share, nor from a share of 0 without labels.
        """
        network = self.trained.network
        shared = monitor.check(plain_forward(network), copy.deepcopy(network.state_dict()))
        if not shared or (monitor.share == 0 and monitor.score is None):
            return
        if monitor.score is not None:
            monitor.score = self._scorer(self._confusions(plain_forward(network)))
        monitor.stand(plain_forward(network), probe)
        monitor.planned = STEP_BATCHES
        for options in self.steps:
            adapter = self.make(**options)
            try:
                for images, valid in batches:
                    adapter.start(images, valid)
                for images, valid in islice(cycle(batches), STEP_BATCHES):
                    adapter(images, valid)
                monitor.batches = STEP_BATCHES
                monitor.check(
                    plain_forward(network.eval()), copy.deepcopy(network.state_dict()), options
                )
            except NotFiniteError:
                monitor.stopped = "the loss of the step was not finite"
            adapter.reset()
            adapter.close()
        if monitor.used is not None and monitor.used.step:  # another of the steps was refused
            monitor.stopped = ""

    def _learn(
        self,
        monitor: AcceptanceMonitor,
        images_of_statistics: Sequence[tuple[Tensor, Tensor | None]],
    ) -> None:
        """Learn from the batches while the monitor looks."""
        adapter, folder, batches = self.make(), self.predictions.folder, self.batches
        monitor.planned = len(batches)
        per_pass = max(1, len(batches) // self.epochs)
        checks = min(MOST_CHECKS, max(FEWEST_CHECKS, len(folder.parts) // IMAGES_PER_CHECK))
        marks = {len(batches), *range(0, len(batches), max(1, -(-per_pass // checks)))}

        def accepted() -> bool:
            candidate = _deployed_copy(adapter, images_of_statistics)
            return monitor.check(plain_forward(candidate), candidate.state_dict())

        accepted()  # the first look ends nothing
        for indices in track(batches, len(batches), "adapting", "batches"):
            images, valid = folder.batch(indices)
            try:
                logits = adapter(self._prepared(images), valid)
            except NotFiniteError:
                monitor.stopped = f"the loss was not finite at batch {monitor.batches + 1}"
                break
            monitor.batches += 1
            if self.mode == "online":
                for index, prediction in zip(indices, logits, strict=True):
                    self.predictions.write("after", index, prediction)
            if monitor.batches in marks and not accepted():
                break
        adapter.reset()
        adapter.close()

    def _adapt_to_each(self, adapter: TestTimeAdapter, monitor: AcceptanceMonitor) -> None:
        """Adapt to every image alone; afterwards the network is the unadapted one."""
        forward = _each_anew(adapter, self.trained.network, self.epochs)
        if monitor.check(forward):
            self._predict("after", forward)
        else:
            self.predictions.keep_before()
            if monitor.checks[-1].evidence is not None:
                self._predict(REFUSED, forward)
        adapter.reset()
        adapter.close()

    @torch.no_grad()
    def _predict(self, stage: str, forward: Forward, leave: Container[int] = ()) -> None:
        """Write the predictions of a stage, except of the images to ``leave``."""
        folder, before = self.predictions.folder, stage == "before"
        for index in track(
            range(len(folder)), len(folder), f"predicting {'before' if before else 'after'}"
        ):
            if index not in leave:
                seen = forward if before else lambda images: forward(self._prepared(images))
                self.predictions.predict(stage, index, seen)


def _deployed_copy(
    adapter: TestTimeAdapter, images: Sequence[tuple[Tensor, Tensor | None]]
) -> nn.Module:
    """A copy of the adapted network in ``eval()`` mode.

    Where adapting normalises by the batch, its stored statistics are re-estimated on batches of ``images``, so that one
    image is predicted as many are, in any order.
    """
    network = adapter.predictor
    with torch.no_grad():
        if adapter.batch_norm != "stored" and tracking(network):
            share = SHARES[1] if adapter.bn_alpha is None else adapter.bn_alpha
            network = re_estimated(network, images, share).network
        return deep_copy(network).eval()


def _each_anew(adapter: TestTimeAdapter, network: nn.Module, steps: int) -> Forward:
    """Adapts to each image of a batch alone; one whose loss is not finite is predicted by the unadapted network."""

    def one(image: Tensor) -> Tensor:
        adapter.reset()
        try:
            for _ in range(steps - 1):
                adapter(image)
            return adapter(image)
        except NotFiniteError:
            adapter.reset()
            return plain_forward(network.eval())(image)

    return lambda images: torch.cat([one(image[None]) for image in images])


@contextmanager
def quickest_convolutions(network: nn.Module, images: Tensor) -> Iterator[None]:
    """Within, a CPU convolves without oneDNN where that is clearly faster; logits differ by rounding."""
    flags: Any = torch.backends.mkldnn
    if images.device.type != "cpu" or not flags.is_available() or not flags.enabled:
        yield
        return
    try:
        seconds = []
        for flags.enabled in (False, True):
            with torch.no_grad():
                network(images)  # the first call chooses algorithms
                start = time.process_time()
                network(images)
                seconds.append(time.process_time() - start)
        flags.enabled = seconds[1] < _CLEARLY * seconds[0]
        yield
    finally:
        flags.enabled = True


def in_precision(name: str, device: torch.device) -> torch.autocast:
    """A context in which networks compute in a precision, float32 or bf16; weights stay as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16")


@torch.no_grad()
def share_that_bf16_moves(network: nn.Module, batches: Sequence[Tensor]) -> float:
    """The share of the pixels, 0 to 1, of (B, 3, H, W) batches whose class in bf16 is another than in float32."""
    forward, moved, number = plain_forward(network.eval()), 0, 0
    for images in batches:
        plain = forward(images).argmax(1)
        with in_precision("bf16", images.device):
            other = forward(images).argmax(1)
        moved, number = moved + int((plain != other).sum()), number + plain.numel()
    return moved / number


def colours_of(batches: Sequence[Tensor], trained: TrainedNetwork) -> Forward:
    """Gives (B, 3, h, w) images the Lab mean and deviation of source ``batches``; an InputError if they are no RGB."""
    description = trained.description
    if not description.pixels.is_rgb:
        raise InputError(
            f"--method: lab needs 8-bit RGB, and {trained.spec} sees {description.pixels.described}"
        )
    mean, std, rgb = description.pixels.mean, description.pixels.std, description.reordered
    transfer = LabTransfer(**lab_statistics(map(rgb, batches), mean, std), mean=mean, std=std)
    return lambda images: rgb(transfer.transferred(rgb(images)))
