"""The training loop of every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, patch_environment
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.reduction import world_size
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.progress import Progress
from dem_apps.runtime.reproducibility import seed_everything
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from dem_apps.runtime.signals import StopRequest, command_line, going_on_with, resume_command
from seg.config import TrainConfig, resolve
from seg.data.domains import DomainPair, open_pair
from seg.data.labels import ClassSet
from seg.data.loader import batches, target_style
from seg.data.pixel_format import PIXELS_FILE, RGB, PixelFormat, read_format
from seg.data.samplers import Sampler, labelled_sampler
from seg.inference.protocol import protocol
from seg.methods import METHODS
from seg.methods.minent import HeadObjectives
from seg.methods.optimization import MicroBatch, PolySchedule, leave_group
from seg.models.batch_norm import set_up_batch_norm
from seg.models.network import Predictor, SegmentationNetwork, parameter_groups
from seg.models.networks import NETWORK_FILE, check_network, network_document
from seg.scores.checkpoints import CheckpointSelector
from seg.scores.described_metrics import described_metrics, print_checkpoints, print_scores
from seg.trained.adaptive_batch_norm import check_there_are_statistics, re_estimated_on
from seg.trained.description import CLASSES_FILE
from seg.trained.run_network import build_network, classes_of_run
from seg.trained.start_from import normalisation, start_from
from seg.trained.trained_network import RE_ESTIMATED_ON, Training
from seg.training.run import TrainingRun, print_summary
from seg.training.step import TrainState, training_step

_SOURCE_STREAM, _TARGET_STREAM = 0, 1


def train(config: TrainConfig) -> Path:
    """Run one training of checked settings and return its run folder."""
    accelerator = _accelerator(config.device, config.precision)
    path = Path(config.run_dir) if config.run_dir else None
    saved, classes, pixels = None, config.classes, None
    if config.resume and path is not None:
        classes = classes_of_run(path, classes)
        # of a run that had begun
        pixels = read_format(path) if (path / CLASSES_FILE).is_file() else None
        saved, was = (
            checkpoint_to_resume(path),
            from_dict(TrainConfig, read_config(path), str(path)),
        )
        # with what was left open and filled in at the start
        config = replace(
            config,
            source=was.source,
            target=was.target,
            model=was.model,
            optimizer=was.optimizer,
            weights=was.weights,
            batch_norm_after=was.batch_norm_after,
        )
    else:
        config, lines = resolve(config, accelerator.device.type)
        for line in lines:
            accelerator.print(line)
        check_network(
            str(config.model.name), str(config.model.encoder), config.model.encoder_weights
        )
    with accelerator.main_process_first():
        data = config.data() | {
            "classes_file": classes,
            "pixels": pixels,
            "workers": config.workers,
        }
        pair = open_pair(**data, rgb=normalisation(config.model))
        for line in pair.look_at_labels():
            accelerator.print(line)
        sampler = labelled_sampler(
            pair.labelled,
            (config.seed, _SOURCE_STREAM),
            config.source.rare_class_temperature,
            config.source.rare_class_pixels,
            config.workers,
        )
    # after the data: what is drawn and counted into a cache the first time must not move the weights
    seed_everything(config.seed)
    own, resumed = path if config.resume else None, saved is not None
    network = build_network(
        config.model, len(pair.classes), pair.pixels.bands, own, with_weights=not resumed
    )
    config = config.for_network(network)
    state = build_state(
        config, network, len(pair.classes), accelerator, pair.classes, pair.pixels, resumed
    )
    if config.batch_norm_after == "target":
        check_there_are_statistics(state.model)
        device, share = accelerator.device, config.bn_alpha
        state.re_estimate = lambda model: re_estimated_on(pair.target_train, model, device, share)
    run = _open(config, pair, state, path, saved)
    try:
        with going_on_with(f"continue with: {resume_command('seg.train', run.path)}"), run.stop:
            if saved is None:
                run.save()  # a run can be resumed from its first step on
            run.score_if_due()
            for micro_batches in _steps(config, pair, sampler, accelerator, state.step):
                run.report(training_step(state, micro_batches))
                run.stop_if_asked()
                run.score_if_due()
            _finish(run)
    except NotFiniteError as error:
        last = f"the checkpoint {run.path / 'checkpoints' / 'last'} of step {run.saved_step}"
        raise NotFiniteError(
            f"{error}; {last} is from before, and --resume continues from it"
        ) from error
    finally:
        run.close()
    leave_group()
    return run.path


def _accelerator(device_name: str, precision: str) -> Accelerator:
    device = torch_device(device_name)
    if precision == "fp16" and device.type == "cpu":
        raise InputError("--precision: fp16 needs a GPU; on a CPU use bf16 or float32")
    # a second training in one process, such as a notebook's, may have another precision and device
    AcceleratorState._reset_state(reset_partial_state=world_size() == 1)
    # by itself accelerate takes the first GPU, whatever index was asked for
    chosen = {"ACCELERATE_TORCH_DEVICE": str(device)} if world_size() == 1 else {}
    with patch_environment(**chosen):
        return Accelerator(
            mixed_precision={"float32": "no"}.get(precision, precision), cpu=device.type == "cpu"
        )


def build_state(
    config: TrainConfig,
    network: SegmentationNetwork,
    num_classes: int,
    accelerator: Accelerator,
    classes: ClassSet | None = None,
    pixels: PixelFormat = RGB,
    resumed: bool = False,
) -> TrainState:
    """The network, its optimiser and the method, on their device; below here nothing sees all settings.

    Where ``resumed``, a checkpoint will bring the weights, and those of ``--model.start-from`` are not read; else its
    outputs have to mean ``classes`` as well.
    """
    settings, rates, weights = config.model, config.optimizer, config.weights
    policy, lr = str(settings.batch_norm), float(rates.lr or 0)
    network.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = set_up_batch_norm(network, policy, synchronised=world_size() > 1)
    if settings.start_from is not None and not resumed:
        for note in start_from(model, Path(settings.start_from), classes):
            accelerator.print(note)
    groups = parameter_groups(model, lr, rates.head_factor)
    if rates.name == "sgd":
        own: torch.optim.Optimizer = torch.optim.SGD(
            groups, lr, rates.momentum, weight_decay=rates.weight_decay
        )
    else:
        own = torch.optim.AdamW(groups, lr, weight_decay=rates.weight_decay)
    optimizer = accelerator.prepare_optimizer(own)
    if config.compile:
        model.compile()
    predict = Predictor(model, accelerator, policy, settings.align_corners, pixels)
    row, options = METHODS[config.method], config.method_options()
    on_source = {"main": weights.seg_main, "aux": weights.seg_aux}
    source_weights, target_weights, own_weights = (
        {head: each[head] for head in predict.heads}
        for each in (on_source, weights.on_target("target"), weights.on_target(row.weight))
    )
    make_objectives = partial(
        HeadObjectives,
        str(config.loss),
        num_classes,
        target_weights,
        config.reduction,
        config.objective_options(),
    )
    options |= {"weights": own_weights} if options else {}
    method = resolve_name(row.path)(predict, num_classes, make_objectives, **options)
    schedule = PolySchedule(rates.horizon or config.max_steps, rates.power)
    counts = torch.zeros(num_classes, dtype=torch.int64, device=accelerator.device)
    return TrainState(
        predict,
        optimizer,
        method,
        source_weights,
        schedule,
        counts,
        bool(weights.relative),
    )


def _open(
    config: TrainConfig,
    pair: DomainPair,
    state: TrainState,
    path: Path | None,
    saved: dict[str, Any] | None,
) -> TrainingRun:
    """Open the run folder, new or continued, and restore the checkpoint ``saved`` in every process."""
    accelerator, selector = state.predict.accelerator, CheckpointSelector()
    folder = progress = None
    if saved is not None:
        state.restore(saved)
        selector.restore(saved.get("choice"))
    # not before every process has read: the run folder of a resumed run drops what came after the checkpoint
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        has_objective = METHODS[config.method].loss is not None
        info = described_metrics(len(pair.classes), config.title, has_objective)
        loss = [] if config.loss == "none" else [str(config.loss)]
        path = path or new_run_dir("seg", config.method, *loss, str(config.seed))
        if config.resume:
            folder = RunFolder.resume(path, None if saved is None else state.step)
        else:
            folder = RunFolder.create(
                path, asdict(config), config.seed, str(accelerator.device), info
            )
        if saved is None:
            if pair.pixels != RGB:
                folder.write_json(PIXELS_FILE, pair.pixels.document())
            folder.write_json(CLASSES_FILE, pair.classes.document())
            if config.model.name == "pretrained" and not (path / NETWORK_FILE).is_file():
                folder.write_json(
                    NETWORK_FILE, network_document(Path(str(config.model.start_from)))
                )
        print_summary(config, pair, path, accelerator, state.model)
        if config.resume and saved is None:
            print("the run has no checkpoint yet and begins again", flush=True)
        now = pair.sizes()
        before = (saved or {}).get("images", now)
        if before != now:
            changed = ", ".join(
                f"{now.get(title, 0)} of {title}, {before[title]} before" for title in before
            )
            print(
                f"the images are others than when it was saved ({changed}), and so will the numbers be",
                flush=True,
            )
        progress = Progress(config.max_steps, state.step)
    # without --run-dir the main process has named it
    (path,) = broadcast_object_list([path])
    stop = StopRequest(resume_command("seg.train", path) if folder is not None else "")
    scored, saved_step = (
        saved is None or saved.get("scored", True),
        None if saved is None else state.step,
    )
    return TrainingRun(
        config, state, pair, selector, path, folder, progress, stop, scored, saved_step
    )


def _steps(
    config: TrainConfig, pair: DomainPair, sampler: Sampler, accelerator: Accelerator, first: int
) -> Iterator[list[MicroBatch]]:
    """Yield the micro-batches of each remaining step; ``sampler`` is that of the labelled images."""
    positions = range(first * config.accumulate, config.max_steps * config.accumulate)
    process = (accelerator.process_index, accelerator.num_processes)
    settings, style, styled = config.source, None, None
    if pair.source_train is not None and settings.style != "none":
        style = partial(
            target_style, pair.target_train, settings.style_beta, settings.style_probability
        )
        styled = len(pair.source_train)
    source = batches(
        ConcatDataset(pair.labelled),
        config.batch_size,
        positions,
        (config.seed, _SOURCE_STREAM),
        settings.augmentation,
        config.workers,
        process,
        sampler,
        style,
        styled,
        pair.pixels,
    )
    target: Iterator[Any] = repeat({}, len(positions))
    if METHODS[config.method].uses_target:
        target = batches(
            pair.target_train,
            config.batch_size,
            positions,
            (config.seed, _TARGET_STREAM),
            config.target.augmentation,
            config.workers,
            process,
            pixels=pair.pixels,
        )
    micro_batches = map(MicroBatch, source, target)
    for _ in range(first, config.max_steps):
        yield list(islice(micro_batches, config.accumulate))


def _finish(run: TrainingRun) -> None:
    """Write entropy maps and ``eval.json``, and print the tables."""
    result = run.final_scores()
    if run.folder is None or run.progress is None:
        return
    run.progress.close()
    step = run.state.step
    kept = run.selector.table(step, result["miou"])
    how = protocol(
        Training(run.config, "last", step, run.state.result().get(RE_ESTIMATED_ON)), run.state.model
    )
    how["labelled_images"] = {
        domain: 0 if dataset is None else len(dataset)
        for domain, dataset in (
            ("source", run.pair.source_train),
            ("target", run.pair.target_labelled),
        )
    }
    result["source_label_share"] = dict(
        zip(run.pair.classes.names, run.state.source_shares(), strict=True)
    )
    run.folder.write_json(
        "eval.json", {**result, "checkpoint": "last", "checkpoints": kept, "protocol": how}
    )
    print_scores(result, f"target validation, {len(run.pair.target_val)} images, last checkpoint")
    print_checkpoints(kept)
    print(f"batch norm:   {how['batch_norm']}")
    if run.config.maps:
        print(f"entropy maps: {run.path / 'entropy_maps'}")
    print(f"scores:       {run.path / 'eval.json'}")
    print(f"report:       {command_line('dem_apps.report', [str(run.path)])}")
