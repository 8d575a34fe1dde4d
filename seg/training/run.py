"""A training while it lasts: what is logged, scored, saved and shown, and how it ends early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from dem_apps.reduction import world_size
from dem_apps.runtime.documents import Document
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.signals import StopRequest, resume_command
from seg.data.datasets import Sample
from seg.data.domains import DomainPair
from seg.data.files import flat_names
from seg.data.pixel_format import resized_mask
from seg.maps.entropy_maps import Prediction
from seg.maps.run_pictures import map_pictures, save_panel
from seg.methods.optimization import Means, MicroBatches
from seg.scores.checkpoints import CRITERION, CheckpointSelector
from seg.scores.evaluation import OnSample, evaluate
from seg.scores.evidence import plain_forward
from seg.training.step import TrainState

_LOGGED_SCORES = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")


@dataclass
class TrainingRun:
    """The train state with the run folder that it is written to."""

    max_steps: int
    log_every: int  #: steps between lines in the log
    eval_every: int  #: steps between scores and checkpoints
    maps: int  #: validation images whose entropy maps are shown
    settings: Document  #: what scores depend on, see :meth:`seg.config.TrainConfig.protocol`
    state: TrainState  #: is moved on by :func:`seg.training.step.training_step`
    pair: DomainPair  #: its target validation images are scored
    path: Path  #: of the run folder
    folder: RunFolder | None  #: the open run folder; None in all processes but the main one
    steps: Iterator[MicroBatches]  #: micro-batches of each remaining step
    saved: InitVar[Document | None]  #: the checkpoint that the run continues from

    def __post_init__(self, saved: Document | None) -> None:
        self.selector = CheckpointSelector()  #: which checkpoints are kept besides the last
        self.progress = None
        resume = ""
        if self.folder is not None:
            self.progress = Progress(self.max_steps, self.state.step)
            resume = resume_command("seg.train", self.path)
        self.stop = StopRequest(resume)
        #: whether the scores of this step are in the log, if it is one that has scores
        self.scored = True
        #: step of the last checkpoint, in every process; None before the first
        self.saved_step: int | None = None
        if saved is not None:
            self.selector.restore(saved.get("choice"))
            self.scored = saved.get("scored", True)
            self.saved_step = self.state.step

    def report(self, values: Means) -> None:
        """Advance the progress bar, and log the values of a step where they are due."""
        step = self.state.step
        self.scored = False
        if self.progress is not None:
            self.progress.update(step)
        is_due = step % self.log_every == 0 or step == self.max_steps
        if self.folder is not None and is_due:
            self.folder.log(step, **values)

    def stop_if_asked(self) -> None:
        """Save after a Ctrl-C or SIGTERM, and raise Stopped with the command that continues."""
        accelerator = self.state.predict.accelerator
        if not self.stop.asked(accelerator.device):
            return
        self.save()
        self.close()
        # a launcher ends all processes as soon as the first is gone, and the main one had something to write
        accelerator.wait_for_everyone()
        raise self.stop.stopped(self.state.step)

    def score_if_due(self) -> None:
        """Score between two steps, where a score is due.

        :meth:`final_scores` follows the last step.
        """
        step = self.state.step
        if not self.scored and step % self.eval_every == 0 and step < self.max_steps:
            self._score_and_save()

    def final_scores(self) -> Document:
        """Score the last state and write its entropy maps."""
        # a resumed run that had come to its end has its scores in the log
        score = self._scores if self.scored else self._score_and_save
        return score(write_maps=True)

    def close(self) -> None:
        """End the progress bar and close the run folder; safe to call twice."""
        for part in (self.progress, self.folder):
            if part is not None:
                part.close()

    def _score_and_save(self, write_maps: bool = False) -> Document:
        """Score on the target's validation set, log the scores, save the selected checkpoints and the state."""
        result = self._scores(write_maps)
        alarm = self.selector.alarm(result, self.state.source_shares(self.pair.classes.names))
        improved = self.selector.update(self.state.step, result, alarm)
        self.scored = True
        if self.folder is not None:
            self._log_scores(self.folder, result, alarm)
            for name in improved:
                self.folder.save_checkpoint(name, self.state.result())
        self.save()
        return result

    def _log_scores(self, folder: RunFolder, result: Document, alarm: str | None) -> None:
        """Log the scores and show the most important one."""
        step = self.state.step
        label_free = result["label_free"]
        scores = {f"val/{name}": result[name] for name in _LOGGED_SCORES}
        scores |= {f"label_free/{name}": value for name, value in label_free.items()}
        known = {name: value for name, value in scores.items() if value is not None}
        folder.log(step, **known)
        news = f"label-free score '{CRITERION}' {label_free[CRITERION]:.4f}"
        if result["miou"] is not None:
            news = f"target mIoU {100 * result['miou']:.2f} %"
        if alarm is not None:
            folder.log(step, alarm=alarm)
            news = f"{news}; alarm: {alarm}"
        if self.progress is not None:
            self.progress.note(step, news)

    def save(self) -> None:
        """Replace the checkpoint ``last``."""
        if self.folder is not None:
            state = {**self.state.state(), "choice": self.selector.state(), "scored": self.scored}
            self.folder.save_checkpoint("last", state)
        self.saved_step = self.state.step

    def _scores(self, write_maps: bool) -> Document:
        predict = self.state.predict
        return evaluate(
            plain_forward(self.state.scored_model().eval()),
            self.pair.target_val,
            predict.accelerator.device,
            align_corners=predict.align_corners,
            on_sample=self._on_map_sample(write_maps),
        )

    def _on_map_sample(self, write: bool) -> OnSample:
        """Shows validation images spread over the set in TensorBoard; with ``write`` they become files as well."""
        images = len(self.pair.target_val)
        shown = np.linspace(0, images - 1, min(self.maps, images)).round()
        names = flat_names([self.pair.target_val.name(index) for index in range(images)])

        def on_sample(index: int, sample: Sample, logits: Tensor) -> None:
            if self.progress is not None:
                self.progress.between_steps(f"scoring, image {index + 1:,} of {images:,}")
            if world_size() == 1:  # several processes can agree to stop between two steps alone
                self.stop_if_asked()
            if index in shown and (write or self.folder is not None):
                self._show(f"entropy_maps/{names[index]}", sample, logits, write)

        return on_sample

    def _show(self, name: str, sample: Sample, logits: Tensor, write: bool) -> None:
        """Log the maps of an image, and with ``write`` save them."""
        valid = resized_mask(sample.valid, (logits.shape[2], logits.shape[1]))
        prediction = Prediction.of(logits, valid)
        tiles, picture = map_pictures(sample.preview(), sample.label, prediction, self.pair.classes)
        if write:
            save_panel(self.path / f"{name}.png", picture)
            for view, tile in tiles.items():
                save_panel(self.path / name / f"{view}.png", tile)
        if self.folder is not None:
            self.folder.log_image(name, picture, self.state.step)
