"""Adaptation of a network to a folder of images, with predictions before and after.

It predicts, learns while a monitor looks, and predicts again.

Shapes: B images, C classes, h × w the logits' resolution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle, islice
from typing import Any

import torch
from torch import Tensor

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.progress import track
from dem_apps.test_time_methods.copies import Values, deep_copy, put_values
from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics
from dem_apps.test_time_methods.normalisation import tracking
from seg.adaptation.decision import AcceptanceMonitor, LabelScore, choose_share, label_score
from seg.adaptation.images import Batches, Predictions
from seg.adaptation.settings import Options
from seg.models.batch_norm import batch_norm_normalises
from seg.scores.evidence import Evidence, Forward, Probe, Views, plain_forward
from seg.scores.segmentation_scores import Tables
from seg.trained.adaptive_batch_norm import SHARES, TargetStatistics, best_share
from seg.trained.trained_network import TrainedNetwork

#: Images that statistics and evidence are taken on, evenly from the folder, in two halves.
PROBE_IMAGES = 32
#: Batches of the first half, and images in each, that a step learns from; a smaller half serves more than once.
STEP_BATCHES, STEP_IMAGES = 4, 4
#: Looks at the network per pass over the folder, besides the first: one per ``IMAGES_PER_CHECK``, since a look costs as
#: much as learning from two dozen.
FEWEST_CHECKS, MOST_CHECKS, IMAGES_PER_CHECK = 2, 4, 64
#: Images of a folder in which each is looked at by itself.
MOST_BY_IMAGE = 64
#: Most bytes of a network's logits on the probe that are kept, to be written as predictions.
MOST_BYTES = 1 << 28


@dataclass
class Adaptation:
    """One adaptation, with the modes and epochs of ``seg.adapt``."""

    trained: TrainedNetwork  #: on its device; its weights become the adapted ones
    predictions: Predictions
    make: Callable[..., TestTimeAdapter]  #: an adapter of the network
    #: the images to learn from, in order, over all passes; none of a method without learning
    batches: Batches
    mode: str
    epochs: int
    prepare: Forward | None  #: changes images before the network sees them
    #: whether a share of the images' statistics is taken once, which the rest begins from
    statistics: bool
    bn_alpha: float | None  #: the share; None for the best
    accept: bool  #: whether the user takes what the evidence speaks against
    #: arguments of the adapters that a step tries; none of other methods
    steps: list[Options]

    def run(self) -> AcceptanceMonitor:
        """Write all predictions; afterwards the network holds the weights that are used."""
        network = self.trained.network
        self._first = copy.deepcopy(network.state_dict())
        self._probe = self._open_probe()
        self._before = self._views(self.trained.raw_logits)
        self._predict("before", self.trained.raw_logits, self._before)
        batches = [(self._prepared(images), valid) for images, valid in self._probe.batches]
        self._probe = replace(self._probe, batches=batches)
        monitor = self._monitor()
        views = None
        # one batch norm among layer norms, as in SegFormer's head, is late, and other statistics there only harm
        mostly = batch_norm_normalises(network) or not self.batches
        if self.statistics and tracking(network) and mostly:
            views = self._take_share(monitor)
        if self.mode == "episodic":
            self._adapt_to_each(monitor)
            return monitor
        known = None if views is None else views.evidence(self._halves[1])
        learn = self._take_step if self.steps else self._learn
        learn(monitor, known)
        self._use_best(monitor, views)
        return monitor

    def _open_probe(self) -> Probe:
        """Read the images that statistics and evidence are taken on, in two halves."""
        folder = self.predictions.folder
        trained = self.trained
        first, second = folder.halves(PROBE_IMAGES, STEP_IMAGES)
        batches = first + second
        #: the parts of the folder in the probe
        self._order = list(chain(*batches))
        #: batches of the first half; the second is looked at while the network learns
        self._first_batches = len(first)
        images = sum(map(len, first))
        self._halves = slice(images), slice(images, None)
        return Probe.of(
            trained.network, list(map(folder.batch, batches)), trained.description.multiple
        )

    def _views(self, forward: Forward) -> Views:
        """The views of a network, without logits where they are large."""
        views = self._probe.views(forward)
        large = sum(logits.nbytes for logits in views.logits) > MOST_BYTES
        return replace(views, logits=()) if large else views

    def _monitor(self) -> AcceptanceMonitor:
        rows = self.predictions.rows["before"].values()
        baseline = [row.confusion for row in rows if row.confusion is not None]
        return AcceptanceMonitor(
            replace(self._probe, batches=self._probe.batches[self._first_batches :]),
            self._before.evidence(self._halves[1]),
            partial(self._score, baseline) if baseline else None,
            self.accept,
            baseline=baseline,
        )

    def _score(self, tables: Tables, forward: Forward) -> LabelScore:
        """Score a network on the labelled images against the ``tables`` of another."""
        return label_score(tables, self.predictions.confusions(self._of_prepared(forward)))

    def _take_share(self, monitor: AcceptanceMonitor) -> Views | None:
        """Give the network the share of the images' statistics with the highest score.

        Returns:
            The network's predictions of the probe with this share, where they are known.
        """
        network = self.trained.network
        views: Views | None = None
        statistics = TargetStatistics(network, self._probe.batches)
        forwards = (plain_forward(statistics.network(share)) for share in SHARES)
        if self.bn_alpha is not None:
            monitor.share = self.bn_alpha
        elif monitor.score is not None:
            monitor.share = best_share([monitor.score(forward).after for forward in forwards])
        else:
            # the predictions with share 0 are known
            by_share = [self._before, *map(self._views, islice(forwards, 1, None))]
            halves = [[views.evidence(half) for views in by_share] for half in self._halves]
            choice = choose_share(halves)
            monitor.share = choice.share
            monitor.share_by_halves = choice.by_halves
            views = by_share[SHARES.index(monitor.share)]
        put_values(network, statistics.network(monitor.share).state_dict())
        return views

    def _use_best(self, monitor: AcceptanceMonitor, views: Views | None) -> None:
        """Restore the best state, else the first weights, and predict what is not predicted yet.

        ``views`` are the predictions of the network with the share that was chosen.
        """
        network = self.trained.network
        best = monitor.best
        put_values(network, self._first)
        if monitor.used is None or best is None or not self._differs(best):
            monitor.used = monitor.best = None
            self.predictions.keep_before()
            return
        if monitor.used.step:
            views = None
        elif views is not None and not self.accept:
            monitor.kept_before = self._less_stable(monitor, views)
        put_values(network, best)
        leave = set(monitor.kept_before)
        if leave:
            self.predictions.keep_before()
        if self.mode == "online":
            # the predictions of the first batches stand: they precede the restored state
            batches = monitor.used.step if monitor.stopped else monitor.batches
            leave = set(chain(*self.batches[:batches]))
        self._predict("after", self._of_prepared(plain_forward(network)), views, leave)

    def _less_stable(self, monitor: AcceptanceMonitor, views: Views) -> tuple[int, ...]:
        """Return the images with a lower stability score of their own with the share than before.

        Scenes and large folders have none, since looking would cost more than adapting.
        """
        folder = self.predictions.folder
        if folder.tile is not None or len(folder) > MOST_BY_IMAGE:
            return ()
        before = self._scores(monitor, self._before)
        put_values(self.trained.network, monitor.best or {})
        after = self._scores(monitor, views)
        return tuple(index for index in range(len(folder)) if after[index] < before[index])

    def _scores(self, monitor: AcceptanceMonitor, views: Views) -> dict[int, float]:
        """Return the stability score of each image by the current network.

        ``views`` are its known predictions of the probe.
        """
        looks = {
            index: views.evidence(slice(place, place + 1))
            for place, index in enumerate(self._order)
        }
        for index in range(len(self.predictions.folder)):
            if index not in looks:
                probe = replace(monitor.probe, batches=[self.predictions.folder.batch([index])])
                looks[index] = probe.look(plain_forward(self.trained.network))
        return {index: look.stability_score(monitor.before) for index, look in looks.items()}

    def _differs(self, best: Values) -> bool:
        """Return whether the best state differs from the unadapted network.

        The state of the first look may be the unadapted network.
        """
        # a buffer of another size is one that forward makes for each size
        return self.prepare is not None or any(
            self._first[name].shape == value.shape and not torch.equal(self._first[name], value)
            for name, value in best.items()
        )

    def _prepared(self, images: Tensor) -> Tensor:
        return images if self.prepare is None else self.prepare(images)

    def _of_prepared(self, forward: Forward) -> Forward:
        return lambda images: forward(self._prepared(images))

    @contextmanager
    def _adapter(self, **options: Any) -> Iterator[TestTimeAdapter]:
        """Yield an adapter of the network, which is as it was afterwards."""
        adapter = self.make(**options)
        yield adapter
        adapter.reset()
        adapter.close()

    def _take_step(self, monitor: AcceptanceMonitor, known: Evidence | None) -> None:
        """Try each of ``steps`` on a few batches of one half of the images.

        The monitor looks at the other half. There is no step without an accepted share; ``known`` is its evidence.
        """
        network = self.trained.network
        state = copy.deepcopy(network.state_dict())
        if not monitor.check(plain_forward(network), state, evidence=known):
            return
        tables = self.predictions.confusions(self._of_prepared(plain_forward(network)))
        monitor.score = partial(self._score, tables)
        monitor.planned = STEP_BATCHES
        for options in self.steps:
            self._try_step(monitor, options)
        if monitor.used is not None and monitor.used.step:  # another of the steps was refused
            monitor.stopped = ""

    def _try_step(self, monitor: AcceptanceMonitor, options: Options) -> None:
        """Learn from a few batches and look; afterwards the network is as it was."""
        network = self.trained.network
        pairs = self._probe.batches[: self._first_batches]
        with self._adapter(**options) as adapter:
            try:
                for images, valid in pairs:
                    adapter.start(images, valid)
                for images, valid in islice(cycle(pairs), STEP_BATCHES):
                    adapter(images, valid)
            except NotFiniteError:
                monitor.stopped = "the loss of the step was not finite"
                return
            monitor.batches = STEP_BATCHES
            state = copy.deepcopy(network.eval().state_dict())
            monitor.check(plain_forward(network), state, options)

    def _learn(self, monitor: AcceptanceMonitor, known: Evidence | None) -> None:
        """Learn from the batches while the monitor looks; the first look, with ``known`` evidence, ends nothing."""
        folder = self.predictions.folder
        batches = self.batches
        monitor.planned = len(batches)
        looks = min(MOST_CHECKS, max(FEWEST_CHECKS, len(folder.parts) // IMAGES_PER_CHECK))
        every = -(-len(batches) // (self.epochs * looks)) or 1
        with self._adapter() as adapter:
            self._check(adapter, monitor, known)
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
                due = monitor.batches % every == 0 or monitor.batches == len(batches)
                if due and not self._check(adapter, monitor):
                    break

    def _check(
        self,
        adapter: TestTimeAdapter,
        monitor: AcceptanceMonitor,
        known: Evidence | None = None,
    ) -> bool:
        """Look at a copy of the adapted network in ``eval()`` mode.

        Where adapting normalises by the batch, its stored statistics are re-estimated on the probe.
        One image is then predicted as many are, in any order.

        Returns:
            Whether the network is accepted.
        """
        network = adapter.predictor
        with torch.no_grad():
            if adapter.batch_norm != "stored" and tracking(network):
                share = SHARES[1] if adapter.bn_alpha is None else adapter.bn_alpha
                network = TargetStatistics(network, self._probe.batches).network(share)
            network = deep_copy(network).eval()
        return monitor.check(plain_forward(network), network.state_dict(), evidence=known)

    def _adapt_to_each(self, monitor: AcceptanceMonitor) -> None:
        """Adapt to every image alone; afterwards the network is the unadapted one."""
        with self._adapter() as adapter:
            forward = self._each_anew(adapter)
            if monitor.check(forward):
                self._predict("after", self._of_prepared(forward))
            else:
                self.predictions.keep_before()

    def _each_anew(self, adapter: TestTimeAdapter) -> Forward:
        """Return a function that adapts to each image of a batch alone.

        The unadapted network predicts an image with a loss that is not finite.
        """

        def one(image: Tensor) -> Tensor:
            adapter.reset()
            try:
                for _ in range(self.epochs - 1):
                    adapter(image)
                return adapter(image)
            except NotFiniteError:
                adapter.reset()
                return plain_forward(self.trained.network.eval())(image)

        return lambda images: torch.cat([one(image[None]) for image in images])

    @torch.no_grad()
    def _predict(
        self,
        stage: str,
        forward: Forward,
        views: Views | None = None,
        leave: Collection[int] = (),
    ) -> None:
        """Write the predictions of a stage, except for the images to leave.

        They come from the ``views`` where these are known.
        """
        folder = self.predictions.folder
        logits = dict[int, Tensor]()
        if views is not None and folder.tile is None:
            logits = dict(zip(self._order, chain(*views.logits), strict=False))
        for index in track(range(len(folder)), len(folder), f"predicting {stage}"):
            if index in leave:
                continue
            if index in logits:
                self.predictions.write(stage, index, logits[index])
            else:
                self.predictions.predict(stage, index, forward)


def colours_of(batches: Sequence[Tensor], trained: TrainedNetwork) -> Forward:
    """Return a function that gives images the Lab mean and deviation of source ``batches``.

    The images are (B, 3, h, w).

    Raises:
        InputError: the images are no RGB.
    """
    description = trained.description
    if not description.pixels.is_rgb:
        raise InputError(
            f"--method: lab needs 8-bit RGB, and {trained.spec} sees {description.pixels.described}"
        )
    mean = description.pixels.mean
    std = description.pixels.std
    rgb = description.reordered
    transfer = LabTransfer(**lab_statistics(map(rgb, batches), mean, std), mean=mean, std=std)
    return lambda images: rgb(transfer.transferred(rgb(images)))
