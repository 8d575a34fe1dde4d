"""A training while it lasts: its summary, what is logged, scored, saved and shown, and how it ends early."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor, nn

from dem_apps.reduction import world_size
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.signals import StopRequest
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import TrainConfig
from seg.data.datasets import Sample
from seg.data.domains import DomainPair
from seg.data.files import flat_names
from seg.data.pixel_format import RGB, resized_mask
from seg.data.read_images import first_header, left_out
from seg.maps.entropy_maps import Prediction
from seg.maps.run_pictures import map_pictures, save_panel
from seg.scores.checkpoints import CRITERION, CheckpointSelector
from seg.scores.evaluation import OnSample, evaluate
from seg.training.step import TrainState

_LOGGED_SCORES = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")


@dataclass
class TrainingRun:
    """The train state with the run folder that it is written to."""

    config: TrainConfig
    state: TrainState  #: moved on by :func:`seg.training.step.training_step`
    pair: DomainPair  #: its target validation images are scored
    selector: CheckpointSelector  #: which checkpoints are kept besides the last
    path: Path
    #: the open run folder; None in all processes but the main one, as is ``progress``
    folder: RunFolder | None
    progress: Progress | None
    stop: StopRequest
    scored: bool  #: whether the scores of this step are in the log, if it is one that has scores
    saved_step: int | None  #: of the last checkpoint, in every process; None before the first

    def report(self, values: dict[str, float]) -> None:
        """Advance the progress bar, and log the values of a step where they are due."""
        step = self.state.step
        self.scored = False
        if self.progress is not None:
            self.progress.update(step)
        if self.folder is not None and (
            step % self.config.log_every == 0 or step == self.config.max_steps
        ):
            self.folder.log(step, **values)

    def stop_if_asked(self) -> None:
        """After a Ctrl-C or SIGTERM save, and raise Stopped with the command that continues."""
        accelerator = self.state.predict.accelerator
        if not self.stop.asked(accelerator.device):
            return
        self.save()
        self.close()
        # a launcher ends all processes as soon as the first is gone, and the main one had something to write
        accelerator.wait_for_everyone()
        raise self.stop.stopped(self.state.step)

    def score_if_due(self) -> None:
        """Score between two steps; :meth:`final_scores` follows the last."""
        step = self.state.step
        if not self.scored and step % self.config.eval_every == 0 and step < self.config.max_steps:
            self._score_and_save()

    def final_scores(self) -> dict[str, Any]:
        """Score the last state and write its entropy maps."""
        # a resumed run that had come to its end has its scores in the log
        return (
            self._scores(write_maps=True) if self.scored else self._score_and_save(write_maps=True)
        )

    def close(self) -> None:
        """Close the run folder; safe to call twice."""
        if self.progress is not None:
            self.progress.close()
        if self.folder is not None:
            self.folder.close()

    def _score_and_save(self, write_maps: bool = False) -> dict[str, Any]:
        """Score on the target's validation set, log the scores, save the selected checkpoints and the state."""
        step = self.state.step
        result = self._scores(write_maps)
        alarm = self.selector.alarm(
            result, dict(zip(self.pair.classes.names, self.state.source_shares(), strict=True))
        )
        improved = self.selector.update(step, result, alarm)
        self.scored = True
        if self.folder is not None:
            values = {
                f"val/{name}": result[name] for name in _LOGGED_SCORES if result[name] is not None
            }
            label_free = {
                f"label_free/{name}": value for name, value in result["label_free"].items()
            }
            self.folder.log(step, **values, **label_free)
            if alarm is not None:
                self.folder.log(step, alarm=alarm)
            for name in improved:
                self.folder.save_checkpoint(name, self.state.result())
        self.save()
        if self.progress is not None:
            news = f"label-free score '{CRITERION}' {result['label_free'][CRITERION]:.4f}"
            if result["miou"] is not None:
                news = f"target mIoU {100 * result['miou']:.2f} %"
            self.progress.note(step, news if alarm is None else f"{news}; alarm: {alarm}")
        return result

    def save(self) -> None:
        """Replace the checkpoint ``last``."""
        if self.folder is not None:
            state = {**self.state.state(), "choice": self.selector.state(), "scored": self.scored}
            state["images"] = self.pair.sizes()
            self.folder.save_checkpoint("last", state)
        self.saved_step = self.state.step

    def _scores(self, write_maps: bool) -> dict[str, Any]:
        predict = self.state.predict
        return evaluate(
            self.state.scored_model(),
            self.pair.target_val,
            self.pair.classes,
            predict.accelerator.device,
            align_corners=predict.align_corners,
            on_sample=self._on_map_sample(write_maps),
        )

    def _on_map_sample(self, write: bool) -> OnSample:
        """Shows validation images spread over the set in TensorBoard; with ``write`` they become files as well."""
        images = len(self.pair.target_val)
        shown = np.linspace(0, images - 1, min(self.config.maps, images)).round().astype(int)
        names = flat_names([self.pair.target_val.name(index) for index in range(images)])
        shown_as = {index: f"entropy_maps/{names[index]}" for index in shown}

        def on_sample(index: int, sample: Sample, logits: Tensor) -> None:
            if self.progress is not None:
                self.progress.between_steps(f"scoring, image {index + 1:,} of {images:,}")
            if world_size() == 1:  # several processes can agree to stop between two steps alone
                self.stop_if_asked()
            if index not in shown_as or not (write or self.folder is not None):
                return
            prediction = Prediction.of(
                logits, resized_mask(sample.valid, (logits.shape[2], logits.shape[1]))
            )
            tiles, picture = map_pictures(
                sample.preview(), sample.label, prediction, self.pair.classes
            )
            name = shown_as[index]
            if write:
                save_panel(self.path / f"{name}.png", picture)
                for view, tile in tiles.items():
                    save_panel(self.path / name / f"{view}.png", Image.fromarray(tile))
            if self.folder is not None:
                self.folder.log_image(name, np.asarray(picture), self.state.step)

        return on_sample


def print_summary(
    config: TrainConfig, pair: DomainPair, path: Path, accelerator: Accelerator, model: nn.Module
) -> None:
    """Method, data, network, device and where the results go, a line each."""
    roots = (None if pair.source_train is None else config.source.root, config.target.root)
    folders = " -> ".join(root for root in roots if root) or "demo pair"
    images = ", ".join(f"{number} {title}" for title, number in pair.sizes().items())
    labels = "" if pair.target_val.labelled else " without labels (scores are those that need none)"
    parts = config.model.architecture().items()
    network = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in parts if value
    ).removeprefix("name ")
    policy, start = (
        config.model.batch_norm if batch_norms(model) else "none",
        config.model.start_from,
    )
    weights = (
        f"weights of {start}"
        if start is not None
        else f"{config.model.encoder_weights or 'random'} weights"
    )
    processes = f"{accelerator.num_processes} processes, " if accelerator.num_processes > 1 else ""
    lines = [
        f"method   {config.title}",
        f"data     {folders}: {images}{labels}; {len(pair.classes)} classes{pair.left_out()}",
        *_about_pixels(pair),
        f"network  {network}, {weights}, batch norm {policy}"
        f"{', for scores with a share of the statistics of target' if config.batch_norm_after == 'target' else ''}",
        f"device   {accelerator.device}, {config.precision}, {processes}{torch.get_num_threads()} threads; "
        f"{config.max_steps} steps, seed {config.seed}",
        f"results  {path}",
    ]
    print("\n".join(lines), flush=True)


def _about_pixels(pair: DomainPair) -> list[str]:
    """Layouts that were found, and the bands and normalisation of images unlike ImageNet's, a line each."""
    pixels, lines = (
        pair.pixels,
        [f"layout   {pair.layouts_found()}"] if pair.layouts_found() else [],
    )
    if not pixels.is_rgb:
        shown = ", ".join(str(band + 1) for band in pixels.shown)
        measured = f"normalised as measured on {pixels.measured_on}"
        lines.append(f"pixels   {pixels.described}, {measured}; shown are bands {shown}")
    elif pixels != RGB:
        mean, std = (
            " ".join(f"{value:.3g}" for value in values) for values in (pixels.mean, pixels.std)
        )
        lines.append(f"pixels   normalised by mean {mean} and deviation {std}")
    first = {dataset.root: first_header(dataset.images) for dataset in pair.splits().values()}
    notes = [left_out(*found, pixels) for found in first.values() if found is not None]
    return lines + [f"pixels   {note}" for note in notes if note is not None]
