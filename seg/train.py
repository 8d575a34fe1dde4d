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

from dem_apps.config import parse_config, to_dict
from dem_apps.device import torch_device
from dem_apps.errors import InputError, NotFiniteError, run_command
from dem_apps.progress import TrainingProgress
from dem_apps.rng import seed_everything
from dem_apps.run import RunFolder, default_run_dir, read_last_checkpoint
from dem_apps.terminal import console
from seg.choosing import Choice
from seg.config import TrainConfig
from seg.data.datasets import Sample
from seg.data.labels import ClassSet
from seg.data.pair import DomainPair, open_pair
from seg.data.stream import batches
from seg.entropy_maps import coloured_entropy, coloured_prediction, normalised_entropy, panel, save_panel
from seg.evaluate import OnSample, checkpoints_table, evaluate, protocol, score_table
from seg.step import Pass, Training, set_up, training_step
from seg.trained import CLASSES_FILE, load_weights, saved_weights

_SOURCE_STREAM, _TARGET_STREAM = 0, 1


@dataclass
class Session:
    """What the parts of a training run share; the run folder and the progress bar are the main process's alone."""

    config: TrainConfig
    accelerator: Accelerator
    pair: DomainPair
    training: Training
    choice: Choice
    path: Path
    run: RunFolder | None
    progress: TrainingProgress | None
    saved_step: int | None = None


def train(config: TrainConfig) -> Path:
    """Run one training and return its run folder."""
    config.check()
    accelerator = _accelerator(config)
    seed_everything(config.seed)
    with accelerator.main_process_first():
        pair = open_pair(config)
    training = set_up(config, len(pair.classes), accelerator)
    session = _open(config, accelerator, pair, training)
    first = training.step
    try:
        for passes in _steps(config, pair, accelerator, first):
            values = training_step(training, config, accelerator, passes)
            _report(session, values)
            if training.step % config.eval_every == 0 and training.step < config.max_steps:
                _score_and_save(session)
        _finish(session, trained=training.step > first)
    except NotFiniteError as error:
        raise NotFiniteError(f"{error}; {_way_back(session)}") from error
    finally:
        if session.progress is not None:
            session.progress.close()
        if session.run is not None:
            session.run.close()
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
    choice, run, progress = Choice(config.selection), None, None
    if config.resume:
        state = read_last_checkpoint(path)
        training.restore(state)
        choice.restore(state.get("choice"))
        # not before every process has read: the new run folder drops what came after the checkpoint
        accelerator.wait_for_everyone()
    elif config.model.start_from is not None:
        load_weights(training.model, saved_weights(Path(config.model.start_from)), config.model.start_from)
    if accelerator.is_main_process:
        if config.resume:
            run = RunFolder.resume(path, training.step)
        else:
            run = RunFolder.create(path, to_dict(config), config.seed, str(accelerator.device))
            run.write_json(CLASSES_FILE, pair.classes.document())
        _print_summary(config, pair, path, accelerator)
        progress = TrainingProgress(config.max_steps, training.step)
    # without --run-dir the name holds the time, and the processes' clocks may differ
    (path,) = broadcast_object_list([path])
    saved_step = training.step if config.resume else None
    return Session(config, accelerator, pair, training, choice, path, run, progress, saved_step)


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


def _score_and_save(session: Session, write_maps: bool = False) -> dict[str, Any]:
    """Score on the target's validation set, log it, keep the state and the checkpoints that are worth it."""
    training, run = session.training, session.run
    result = _scores(session, write_maps)
    improved = session.choice.update(training.step, result)
    alarm = session.choice.alarm(result)
    if run is None:
        session.saved_step = training.step
        return result
    names = ("miou", "pixel_accuracy", "mean_entropy", "calibration_error")
    label_free = {f"label_free/{name}": value for name, value in result["label_free"].items()}
    run.log(training.step, **{f"val/{name}": result[name] for name in names}, **label_free)
    if alarm is not None:
        run.log(training.step, alarm=alarm)
    for name in improved:
        run.save_checkpoint(name, {"model": training.model.state_dict(), "step": training.step}, training.step)
    run.save_checkpoint("last", {**training.state(), "choice": session.choice.state()}, training.step)
    session.saved_step = training.step
    if session.progress is not None:
        news = f"target mIoU {100 * result['miou']:.2f} %"
        session.progress.note(training.step, news if alarm is None else f"{news}; alarm: {alarm}")
    return result


def _finish(session: Session, trained: bool) -> None:
    """Entropy maps, ``eval.json`` and the tables. Without ``trained`` a checkpoint of the last step was resumed."""
    config, training = session.config, session.training
    result = _score_and_save(session, write_maps=True) if trained else _scores(session, write_maps=True)
    if session.run is None:
        return
    if session.progress is not None:
        session.progress.close()
    chosen = session.choice.table(training.step, result["miou"])
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
        if index not in chosen or not (write or session.run is not None):
            return
        picture = _map_panel(sample, logits, session.pair.classes)
        name = f"entropy_maps/{Path(sample.name).stem}"
        if write:
            save_panel(session.path / f"{name}.png", picture)
        if session.run is not None:
            session.run.log_image(name, np.asarray(picture), session.training.step)

    return on_sample


def _map_panel(sample: Sample, logits: Tensor, classes: ClassSet) -> Any:
    entropy = normalised_entropy(logits)
    prediction = coloured_prediction(logits.argmax(0).cpu().numpy(), classes.colors)
    return panel(sample.image, prediction, coloured_entropy(entropy), f"mean {entropy.mean():.2f}")


def _print_summary(config: TrainConfig, pair: DomainPair, path: Path, accelerator: Accelerator) -> None:
    data = "demo pair" if config.source.root is None else f"{config.source.root} -> {config.target.root}"
    loss = "" if config.method == "source" else f", loss {config.loss} ({config.reduction})"
    processes = f"{accelerator.num_processes} processes, " if accelerator.num_processes > 1 else ""
    print(
        f"method   {config.method}{loss}\n"
        f"data     {data}: {len(pair.source_train)} source, {len(pair.target_train)} target, "
        f"{len(pair.target_val)} validation images, {len(pair.classes)} classes\n"
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
