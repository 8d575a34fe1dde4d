"""From a network and a folder to predictions before and after: predict, learn under watch, predict again.

Shapes: B images, C classes, h × w the logits' resolution.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.processes import ONE_PROCESS, Processes
from dem_apps.runtime.progress import track
from seg.adaptation.evidence import Evidence, Forward
from seg.adaptation.image_folder import ImageFolder, same_size_batches
from seg.adaptation.labelled import label_score
from seg.adaptation.predictions import PredictionWriter
from seg.adaptation.rounds import Check, Probe, Rounds, Scorer, looked_at, plain_forward
from seg.adaptation.work import Work
from seg.models.trained import TrainedNetwork

MODES = ("epochs", "online", "episodic")
#: Images that evidence is taken on, evenly from the folder.
PROBE_IMAGES = 16
#: Looks at the network per pass over the folder, besides the one before anything is learnt: one per so many images, for
#: a look costs as much as learning from two dozen; ``benchmarks/adapt_decision.py`` took the fewest.
FEWEST_CHECKS, MOST_CHECKS, IMAGES_PER_CHECK = 2, 4, 64
#: Seconds of learning that a kill may cost.
_SAVE_EVERY = 20.0


@dataclass(frozen=True)
class Plan:
    """How it is adapted.

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
    """What it came to.

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
    batches: int
    planned: int
    stopped: str


class Flow:
    """One adaptation.

    Args:
        trained: the network, on its device; its weights become the adapted ones.
        folder: the images.
        writer: of predictions.
        work: what is done already.
        plan: how.
        processes: that share the images; more than one in ``episodic`` only.
    """

    def __init__(
        self, trained: TrainedNetwork, folder: ImageFolder, writer: PredictionWriter, work: Work, plan: Plan,
        processes: Processes = ONE_PROCESS,
    ) -> None:  # fmt: skip
        self.trained, self.folder, self.writer, self.work, self.plan = trained, folder, writer, work, plan
        self._processes = processes
        self.network = trained.network
        self._saved = time.monotonic()

    def run(self) -> Outcome:
        """Everything but tables and pages; the network holds the weights that are used at the end."""
        self._predict("before", plain_forward(self.network))
        images = same_size_batches(self.folder, self.folder.spread(PROBE_IMAGES), 4)
        multiple = self.trained.preprocessing.multiple
        before = Probe(images, multiple).look(plain_forward(self.network))
        probe = Probe([self._prepared(batch) for batch in images], multiple)
        score = self._scorer()
        if self.plan.mode == "episodic":
            return self._episodes(probe, before, score)
        return self._rounds(probe, before, score)

    def _scorer(self) -> Scorer | None:
        if self.writer.labels is None:
            return None
        rows = self.work.rows("before")
        old = [np.asarray(row["confusion"], np.int64) for path in self.folder.relative
               if "confusion" in (row := rows[path.as_posix()])]  # fmt: skip
        if not old:
            raise InputError("--labels: no labelled image can be read")
        return lambda forward: label_score(old, self.writer.tables(lambda images: forward(self._prepared(images))))

    def _rounds(self, probe: Probe, before: Evidence, score: Scorer | None) -> Outcome:
        """Learn from batches under watch, go back to the best state, and predict with it what is not predicted yet."""
        adapter = self.plan.make()
        rounds, batches = Rounds(adapter, probe, before, score), self._batches()
        state = self.work.state()
        if state is not None:
            rounds.load_state_dict(state)
        self._learn(rounds, batches)
        adapter.reset()
        adapter.close()
        kept: set[str] = set()
        used = [check for check in rounds.accepted if check.step == rounds.best_step and self._differs(rounds.best)]
        if used and rounds.best is not None:
            self.network.load_state_dict(rounds.best)
            kept = self._kept(rounds, batches)
        self._finish_after(bool(used), kept, plain_forward(self.network))
        return Outcome(before, rounds.checks, used[-1] if used else None, rounds.step, len(batches), rounds.stopped)

    def _differs(self, best: dict[str, Tensor] | None) -> bool:
        """Whether it is another network than the one that it was: without batch norm the first look sees that one."""
        own = self.network.state_dict()
        same = best is not None and all(torch.equal(value, own[name]) for name, value in best.items())
        return self.plan.prepare is not None or not same

    def _learn(self, rounds: Rounds, batches: list[list[int]]) -> None:
        per_pass = max(1, len(batches) // self.plan.epochs)
        checks = min(MOST_CHECKS, max(FEWEST_CHECKS, len(self.folder) // IMAGES_PER_CHECK))
        marks = {len(batches), *range(0, len(batches), max(1, -(-per_pass // checks)))}
        if not rounds.checks:
            rounds.check()
        for indices in track(batches[rounds.step :], len(batches) - rounds.step, "adapting", "batches"):
            if rounds.stopped:
                break
            images, valid = self.folder.masked_batch(indices)
            logits = rounds.learn(self._prepared(images), valid)
            if logits is None:
                break
            if self.plan.mode == "online":
                for place, index in enumerate(indices):
                    self.writer.write("after", index, logits[place], row_of="stream")
            if rounds.step in marks:
                rounds.check()
            if time.monotonic() - self._saved > _SAVE_EVERY:
                self._save(rounds)
        self._save(rounds)

    def _save(self, rounds: Rounds) -> None:
        self.work.save(rounds.state_dict(), rounds.step)
        self._saved = time.monotonic()

    def _batches(self) -> list[list[int]]:
        """What is learnt from, in order, over all passes."""
        if not self.plan.learns:
            return []
        if self.plan.mode == "online":
            return self.folder.in_order(self.plan.batch_size) * self.plan.epochs
        return [
            batch
            for epoch in range(self.plan.epochs)
            for batch in self.folder.shuffled(self.plan.batch_size, self.plan.seed, epoch)
        ]

    def _kept(self, rounds: Rounds, batches: list[list[int]]) -> set[str]:
        """Images whose prediction of ``online`` stands: all, or those of before a state that was gone back to."""
        until = rounds.best_step if rounds.stopped else rounds.step
        stands = {index for batch in batches[:until] for index in batch} if self.plan.mode == "online" else set()
        return {self.folder.relative[index].as_posix() for index in stands}

    def _episodes(self, probe: Probe, before: Evidence, score: Scorer | None) -> Outcome:
        """Every image for itself; the network is what it was afterwards."""
        adapter = self.plan.make()
        forward = _each_anew(adapter, self.network, self.plan.epochs)
        # the first decides for all: on a GPU the same sum may come out another way
        check = looked_at(0, probe, forward, before, score) if self._processes.first else None
        check = self._processes.gathered(check)[0]
        assert check is not None
        used = check if check.verdict.adapt else None
        self._finish_after(used is not None, set(), forward)
        adapter.reset()
        adapter.close()
        return Outcome(before, [check], used, 0, 0, "")

    def _finish_after(self, used: bool, kept: set[str], forward: Forward) -> None:
        """The predictions that stand: those of ``kept`` as they are, else of ``forward``, or those of before."""
        stream, before, done = (self.work.rows(stage) for stage in ("stream", "before", "after"))
        self._processes.wait()  # until all have read what was done before
        for index, path in self._processes.share(list(enumerate(self.folder.relative))):
            name = path.as_posix()
            if name in done:
                continue
            if used and name in kept:
                self.work.add_row("after", stream[name])
            elif not used:
                self.writer.copy("before", "after", index)
                self.work.add_row("after", before[name])
        if used:
            self._predict("after", lambda images: forward(self._prepared(images)))

    def _prepared(self, images: Tensor) -> Tensor:
        return images if self.plan.prepare is None else self.plan.prepare(images)

    @torch.no_grad()
    def _predict(self, stage: str, forward: Forward) -> None:
        """Write every image that has no row yet; what cannot be read is left out of the folder from now on."""
        done, broken = self.work.rows(stage), dict[int, str]()
        missing = [i for i, path in enumerate(self.folder.relative) if path.as_posix() not in done]
        self._processes.wait()  # until all have read what was done before
        missing = list(self._processes.share(missing))
        for index in track(missing, len(missing), f"predicting {stage}") if self._processes.first else missing:
            try:
                picture = self.folder.picture(index)
            except InputError as error:
                if stage != "before":
                    raise
                print(f"skipped: {error}", file=sys.stderr, flush=True)
                broken[index] = str(error)
                continue
            self.writer.write(stage, index, forward(self.folder.seen(index, picture)[None])[0], picture)
        self.folder.leave_out({index: why for part in self._processes.gathered(broken) for index, why in part.items()})
        if not len(self.folder):
            raise InputError("--images: no image can be read")


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
