"""``python -m seg.train``: one loop for every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor

from dem_apps.errors import InputError, NotFiniteError, run_command
from dem_apps.reduction import world_size
from dem_apps.runtime.determinism import deterministic_algorithms
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.launcher import leave_group
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume, default_run_dir, report_command
from dem_apps.runtime.seeds import seed_everything
from dem_apps.runtime.settings import parse_config, to_dict
from dem_apps.runtime.signals import StopRequest, going_on_with, resume_command
from dem_apps.runtime.terminal import console
from seg.config import TrainConfig
from seg.data.datasets import Sample
from seg.data.domains import DomainPair, open_pair
from seg.data.loader import batches
from seg.evaluate import OnSample, checkpoints_table, evaluate, protocol, score_table
from seg.maps.entropy_maps import map_pictures, save_panel, save_tiles
from seg.models.load_model import CLASSES_FILE, start_from
from seg.scores.checkpoint_selection import CheckpointSelector
from seg.step import Pass, Training, set_up, training_step

_SOURCE_STREAM, _TARGET_STREAM = 0, 1


@dataclass
class Session:
    """What the parts of a training run share; the run folder and the progress bar are the main process's alone."""

    config: TrainConfig
    accelerator: Accelerator
    pair: DomainPair
    training: Training
    selector: CheckpointSelector
    path: Path
    run: RunFolder | None
    progress: Progress | None
    stop: StopRequest
    #: Whether the scores of this step are in the log, if it is one that has scores.
    scored: bool
    #: Of the last checkpoint; None before the first. Other than ``run.saved_step`` known in every process.
    saved_step: int | None

    def close(self) -> None:
        """Safe to call twice."""
        if self.progress is not None:
            self.progress.close()
        if self.run is not None:
            self.run.close()


def train(config: TrainConfig) -> Path:
    """Run one training and return its run folder."""
    config.check()
    with deterministic_algorithms(config.deterministic):
        return _train(config)


def _train(config: TrainConfig) -> Path:
    accelerator = _accelerator(config)
    seed_everything(config.seed)
    with accelerator.main_process_first():
        pair = open_pair(config.source, config.target, config.classes, config.validation_part)
    training = set_up(config, len(pair.classes), accelerator)
    session = _open(config, accelerator, pair, training)
    try:
        with going_on_with(f"continue with: {resume_command('seg.train', session.path)}"), session.stop:
            _score_if_due(session)
            for passes in _steps(config, pair, accelerator, training.step):
                values = training_step(training, config, accelerator, passes)
                session.scored = False
                _report(session, values)
                _stop_if_asked(session)
                _score_if_due(session)
            _finish(session)
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}; {_way_back(session)}") from error
    finally:
        session.close()
    leave_group()
    return session.path


def _accelerator(config: TrainConfig) -> Accelerator:
    device = torch_device(config.device)
    if config.precision == "fp16" and device.type == "cpu":
        raise InputError("--precision: fp16 needs a GPU; on a CPU use bf16 or float32")
    precision = {"float32": "no"}.get(config.precision, config.precision)
    # a second training in one process, such as a notebook's, may have another precision
    AcceleratorState._reset_state()
    return Accelerator(mixed_precision=precision, cpu=device.type == "cpu")


def _open(config: TrainConfig, accelerator: Accelerator, pair: DomainPair, training: Training) -> Session:
    """The run folder, new or continued; every process restores the checkpoint."""
    path = Path(config.run_dir) if config.run_dir else default_run_dir("seg", config.method, config.loss)
    selector, run, progress = CheckpointSelector(config.selection), None, None
    state = checkpoint_to_resume(path, min(config.eval_every, config.max_steps)) if config.resume else None
    if state is not None:
        training.restore(state)
        selector.restore(state.get("choice"))
    elif config.model.start_from is not None:
        start_from(training.model, Path(config.model.start_from))
    # not before every process has read: the run folder of a resumed run drops what came after the checkpoint
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        if config.resume:
            run = RunFolder.resume(path, training.step if state is not None else None)
        else:
            run = RunFolder.create(path, to_dict(config), config.seed, str(accelerator.device))
        if state is None:
            run.write_json(CLASSES_FILE, pair.classes.document())
        _print_summary(config, pair, path, accelerator)
        if config.resume and state is None:
            print("the run has no checkpoint yet and begins again", flush=True)
        progress = Progress(config.max_steps, training.step)
    # without --run-dir the name holds the time, and the processes' clocks may differ
    (path,) = broadcast_object_list([path])
    stop = StopRequest(
        resume_command("seg.train", path) if run is not None else "", lambda: run.saved_step if run else None
    )
    scored = state is None or state.get("scored", True)
    saved_step = None if state is None else training.step
    return Session(config, accelerator, pair, training, selector, path, run, progress, stop, scored, saved_step)


def _steps(config: TrainConfig, pair: DomainPair, accelerator: Accelerator, first: int) -> Iterator[list[Pass]]:
    """For every remaining step its passes."""
    positions = range(first * config.accumulate, config.max_steps * config.accumulate)
    process = (accelerator.process_index, accelerator.num_processes)
    source = batches(
        pair.source_train, config.batch_size, positions, (config.seed, _SOURCE_STREAM), config.source.augmentation,
        config.workers, process,
    )  # fmt: skip
    if config.method == "source":
        passes: Iterator[Pass] = ((batch, None) for batch in source)
    else:
        target = batches(
            pair.target_train, config.batch_size, positions, (config.seed, _TARGET_STREAM), config.target.augmentation,
            config.workers, process,
        )  # fmt: skip
        passes = zip(source, target, strict=True)
    for _ in range(first, config.max_steps):
        yield list(islice(passes, config.accumulate))


def _way_back(session: Session) -> str:
    """Which checkpoint is from before something went wrong."""
    if session.saved_step is None:
        return "no checkpoint had been saved yet"
    checkpoint = session.path / "checkpoints" / "last"
    return f"the checkpoint {checkpoint} of step {session.saved_step} is from before, and --resume continues from it"


def _report(session: Session, values: dict[str, float]) -> None:
    step, config = session.training.step, session.config
    if session.progress is not None:
        session.progress.update(step)
    if session.run is not None and (step % config.log_every == 0 or step == config.max_steps):
        session.run.log(step, **values)


def _stop_if_asked(session: Session) -> None:
    """Save and end after a Ctrl-C or SIGTERM."""
    if not session.stop.asked(session.accelerator.device):
        return
    _save(session)
    session.close()
    # a launcher ends all processes as soon as the first is gone, and the main one had something to write
    session.accelerator.wait_for_everyone()
    raise session.stop.stopped(session.training.step)


def _save(session: Session) -> None:
    training = session.training
    if session.run is not None:
        state = {**training.state(), "choice": session.selector.state(), "scored": session.scored}
        session.run.save_checkpoint("last", state, training.step)
    session.saved_step = training.step


def _score_if_due(session: Session) -> None:
    step, config = session.training.step, session.config
    if not session.scored and step % config.eval_every == 0 and step < config.max_steps:
        _score_and_save(session)


def _score_and_save(session: Session, write_maps: bool = False) -> dict[str, Any]:
    """Score on the target's validation set, log it, keep the state and the checkpoints that are worth it."""
    training, run = session.training, session.run
    result = _scores(session, write_maps)
    improved = session.selector.update(training.step, result)
    session.scored = True
    alarm = session.selector.alarm(result)
    if run is None:
        session.saved_step = training.step
        return result
    names = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")
    values = {f"val/{name}": result[name] for name in names if result[name] is not None}
    label_free = {f"label_free/{name}": value for name, value in result["label_free"].items()}
    run.log(training.step, **values, **label_free)
    if alarm is not None:
        run.log(training.step, alarm=alarm)
    for name in improved:
        run.save_checkpoint(name, {"model": training.model.state_dict(), "step": training.step}, training.step)
    _save(session)
    if session.progress is not None:
        criterion = session.config.selection
        news = f"label-free score '{criterion}' {result['label_free'][criterion]:.4f}"
        if result["miou"] is not None:
            news = f"target mIoU {100 * result['miou']:.2f} %"
        session.progress.note(training.step, news if alarm is None else f"{news}; alarm: {alarm}")
    return result


def _finish(session: Session) -> None:
    """Entropy maps, ``eval.json`` and the tables."""
    config, training = session.config, session.training
    # a resumed run that had come to its end has its scores in the log
    result = _scores(session, write_maps=True) if session.scored else _score_and_save(session, write_maps=True)
    if session.run is None:
        return
    if session.progress is not None:
        session.progress.close()
    chosen = session.selector.table(training.step, result["miou"])
    document = {
        **result,
        "checkpoint": "last",
        "checkpoints": chosen,
        "protocol": protocol(config, "last", training.step),
    }
    session.run.write_json("eval.json", document)
    screen = console()
    screen.print(score_table(result, f"target validation, {len(session.pair.target_val)} images, last checkpoint"))
    screen.print(checkpoints_table(chosen))
    if config.maps:
        print(f"entropy maps: {session.path / 'entropy_maps'}")
    print(f"scores:       {session.path / 'eval.json'}")
    print(f"report:       {report_command(session.path)}")


def _scores(session: Session, write_maps: bool) -> dict[str, Any]:
    return evaluate(
        session.training.model,
        session.pair.target_val,
        session.pair.classes,
        session.accelerator.device,
        align_corners=session.config.model.align_corners,
        on_sample=_on_map_sample(session, write_maps),
    )


def _on_map_sample(session: Session, write: bool) -> OnSample:
    """Shows validation images that are spread over the set in TensorBoard; with ``write`` they become files as well."""
    count, images = session.config.maps, len(session.pair.target_val)
    chosen = set(np.linspace(0, images - 1, min(count, images)).round().astype(int)) if count else set()

    def on_sample(index: int, sample: Sample, logits: Tensor) -> None:
        if world_size() == 1:  # several processes can agree to stop between two steps alone
            _stop_if_asked(session)
        if index not in chosen or not (write or session.run is not None):
            return
        tiles, picture = map_pictures(sample.image, sample.label, logits, session.pair.classes)
        name = f"entropy_maps/{Path(sample.name).stem}"
        if write:
            save_panel(session.path / f"{name}.png", picture)
            save_tiles(session.path / name, tiles)
        if session.run is not None:
            session.run.log_image(name, np.asarray(picture), session.training.step)

    return on_sample


def _print_summary(config: TrainConfig, pair: DomainPair, path: Path, accelerator: Accelerator) -> None:
    data = "demo pair" if config.source.root is None else f"{config.source.root} -> {config.target.root}"
    loss = "" if config.method == "source" else f", loss {config.loss} ({config.reduction})"
    labels = "" if pair.target_val.labelled else " without labels (scores are those that need none)"
    processes = f"{accelerator.num_processes} processes, " if accelerator.num_processes > 1 else ""
    print(
        f"method   {config.method}{loss}\n"
        f"data     {data}: {len(pair.source_train)} source, {len(pair.target_train)} target, "
        f"{len(pair.target_val)} validation images{labels}, {len(pair.classes)} classes\n"
        f"network  {config.model.name}, {config.model.encoder}, output stride {config.model.output_stride}, "
        f"batch norm {config.model.batch_norm}\n"
        f"device   {accelerator.device}, {config.precision}, {processes}{torch.get_num_threads()} threads; "
        f"{config.max_steps} steps, seed {config.seed}\n"
        f"results  {path}",
        flush=True,
    )


def _main() -> None:
    train(parse_config(TrainConfig, "python -m seg.train", "python -m seg.train --loss adadem --max-steps 600"))


if __name__ == "__main__":
    run_command(_main)
