"""From a network and a folder to predictions before and after: predict, learn under watch, predict again.

Shapes: B images, C classes, h × w the logits' resolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.device import is_out_of_memory
from dem_apps.runtime.progress import track
from dem_apps.test_time_methods.network import refuse_probabilities
from seg.adaptation.decision import LabelScore, label_score
from seg.adaptation.evidence import Evidence, Forward, Probe
from seg.adaptation.predictions import Predictions
from seg.adaptation.watched import Check, Scorer, WatchedAdapter, assess, plain_forward
from seg.models.trained import TrainedNetwork

#: Images that evidence is taken on, evenly from the folder.
PROBE_IMAGES = 16
#: Looks at the network per pass over the folder, besides the one before anything is learnt: one per so many images, for
#: a look costs as much as learning from two dozen; ``benchmarks/adapt_decision.py`` took the fewest.
FEWEST_CHECKS, MOST_CHECKS, IMAGES_PER_CHECK = 2, 4, 64


@dataclass(frozen=True)
class Plan:
    """How a network is adapted.

    Args:
        make: an adapter of the network.
        mode: ``epochs`` learns from the whole folder and then predicts it; ``online`` predicts each batch and then
            learns from it; ``episodic`` begins anew with every image.
        learns: whether the method learns from batches; ``bn`` and ``lab`` need none.
        epochs: passes over the folder; of ``episodic`` steps per image.
        batch_size: B.
        seed: of the order.
        prepare: what is done to images before the network sees them.
    """

    make: Callable[[], TestTimeAdapter]
    mode: str
    learns: bool
    epochs: int
    batch_size: int
    seed: int
    prepare: Forward | None = None


@dataclass(frozen=True)
class Outcome:
    """What an adaptation came to.

    Args:
        before: evidence of the network as it was.
        checks: the looks at the adapted one.
        used: the look whose network is used; None where it is the network as it was.
        batches: that were learnt from.
        planned: that were to be learnt from.
        stopped: why learning ended early, as half a sentence; empty otherwise.
    """

    before: Evidence
    checks: list[Check]
    used: Check | None
    batches: int = 0
    planned: int = 0
    stopped: str = ""


class Flow:
    """One adaptation.

    Args:
        trained: the network, on its device; its weights become the adapted ones.
        predictions: of the folder's images.
        plan: how.
    """

    def __init__(self, trained: TrainedNetwork, predictions: Predictions, plan: Plan) -> None:
        self.trained, self.network, self.multiple = trained, trained.network, trained.preprocessing.multiple
        self.predictions, self.folder, self.plan = predictions, predictions.folder, plan

    def run(self) -> Outcome:
        """Everything up to the predictions that stand; the network holds the weights that are used at the end.

        Raises:
            InputError: images that do not fit into memory, or none that can be read.
        """
        try:
            return self._run()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                "--size: the images do not fit into memory; give a smaller --size W,H or a smaller --batch-size"
            ) from error

    def _run(self) -> Outcome:
        unadapted = plain_forward(self.network)
        self._predict_before()
        images = self.folder.spread_batches(PROBE_IMAGES, 4)
        before = Probe(images, self.multiple).look(unadapted)
        probe = Probe([self._prepared(batch) for batch in images], self.multiple)
        adapter = self.plan.make()
        if self.plan.mode == "episodic":
            return self._adapt_each(adapter, probe, before)
        return self._adapt_to_all(WatchedAdapter(adapter, probe, before, self._scorer()))

    def _scorer(self) -> Scorer | None:
        if self.predictions.labels is None:
            return None
        old = self.predictions.confusions("before")
        if not old:
            raise InputError("--labels: no labelled image can be read")

        def score(forward: Forward) -> LabelScore:
            return label_score(old, self.predictions.confusions_of(lambda images: forward(self._prepared(images))))

        return score

    def _adapt_to_all(self, watched: WatchedAdapter) -> Outcome:
        """Learn from batches under watch, go back to the best state, and predict with it what is not predicted yet."""
        batches = self._batches()
        self._learn(watched, batches)
        watched.adapter.reset()
        watched.adapter.close()
        used = watched.best_check if self._differs(watched.best) else None
        streamed: set[int] = set()
        if used is not None and watched.best is not None:
            self.network.load_state_dict(watched.best)
            if self.plan.mode == "online":  # what was predicted before the state that is gone back to stands
                until = used.step if watched.stopped else watched.step
                streamed = {index for batch in batches[:until] for index in batch}
        self._predict_after(None if used is None else plain_forward(self.network), streamed)
        return Outcome(watched.before, watched.checks, used, watched.step, len(batches), watched.stopped)

    def _differs(self, best: dict[str, Tensor] | None) -> bool:
        """Whether it predicts otherwise than the network as it was, which the first look sees without batch norm."""
        own = self.network.state_dict()
        same = best is not None and all(torch.equal(value, own[name]) for name, value in best.items())
        return self.plan.prepare is not None or not same

    def _prepared(self, images: Tensor) -> Tensor:
        return images if self.plan.prepare is None else self.plan.prepare(images)

    def _batches(self) -> list[list[int]]:
        """What is learnt from, in order, over all passes."""
        plan = self.plan
        if not plan.learns:
            return []
        if plan.mode == "online":
            return self.folder.in_order(plan.batch_size) * plan.epochs
        passes = [self.folder.shuffled(plan.batch_size, plan.seed, epoch) for epoch in range(plan.epochs)]
        return [batch for batches in passes for batch in batches]

    def _learn(self, watched: WatchedAdapter, batches: list[list[int]]) -> None:
        per_pass = max(1, len(batches) // self.plan.epochs)
        checks = min(MOST_CHECKS, max(FEWEST_CHECKS, len(self.folder) // IMAGES_PER_CHECK))
        marks = {len(batches), *range(0, len(batches), max(1, -(-per_pass // checks)))}
        watched.check()
        for indices in track(batches, len(batches), "adapting", "batches"):
            images, valid = self.folder.batch(indices)
            logits = watched.learn(self._prepared(images), valid)
            if logits is None:
                return
            if self.plan.mode == "online":
                for index, prediction in zip(indices, logits, strict=True):
                    self.predictions.write("after", index, prediction)
            if watched.step in marks and not watched.check().verdict.adapt:
                return

    def _adapt_each(self, adapter: TestTimeAdapter, probe: Probe, before: Evidence) -> Outcome:
        """Every image for itself; the network is what it was afterwards."""
        forward = _each_anew(adapter, self.network, self.plan.epochs)
        check = assess(0, probe, forward, before, self._scorer())
        used = check if check.verdict.adapt else None
        self._predict_after(None if used is None else forward, set())
        adapter.reset()
        adapter.close()
        return Outcome(before, [check], used)

    @torch.no_grad()
    def _predict_before(self) -> None:
        """Write every image; what cannot be read is left out of the folder from now on."""
        broken: dict[int, str] = {}
        for index in track(range(len(self.folder)), len(self.folder), "predicting before"):
            try:
                picture = self.folder.picture(index)
            except InputError as error:
                broken[index] = str(error)
                continue
            logits = self.trained.raw_logits(self.folder.seen(index, picture)[0][None])
            if not self.predictions.rows["before"]:
                refuse_probabilities(logits, "--model")
                if not bool(logits.isfinite().all()):
                    raise InputError(
                        f"--model: {self.trained.spec} predicts NaN or infinity; its weights are no use, save it again"
                    )
            self.predictions.write("before", index, logits[0], picture)
        self.folder.leave_out(broken)

    @torch.no_grad()
    def _predict_after(self, forward: Forward | None, streamed: set[int]) -> None:
        """The predictions that stand: ``streamed`` as they are, else of ``forward``; without one, those of before."""
        for index in track(range(len(self.folder)), len(self.folder), "predicting after"):
            if forward is None:
                self.predictions.keep_before(index)
            elif index not in streamed:
                picture = self.folder.picture(index)
                seen = self._prepared(self.folder.seen(index, picture)[0][None])
                self.predictions.write("after", index, forward(seen)[0], picture)


def _each_anew(adapter: TestTimeAdapter, network: nn.Module, steps: int) -> Forward:
    """Each image of a batch is adapted to by itself; one whose loss is not finite is predicted as it was before."""

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
