"""The training loop of every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, patch_environment
from torch import nn
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.reduction import world_size
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.reproducibility import seed_everything
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from dem_apps.runtime.signals import command_line, going_on_with, resume_command
from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import TrainConfig, resolve
from seg.data.domains import DomainPair, open_pair
from seg.data.labels import ClassSet
from seg.data.loader import batches, target_style
from seg.data.pixel_format import PIXELS_FILE, RGB, PixelFormat, read_format
from seg.data.samplers import Sampler, labelled_sampler
from seg.data.settings import SourceConfig
from seg.inference.protocol import protocol
from seg.methods import METHODS
from seg.methods.method import Method
from seg.methods.minent import HeadObjectives
from seg.methods.optimization import MicroBatch, PolySchedule, leave_group
from seg.methods.settings import OptimizerConfig
from seg.models.batch_norm import set_up_batch_norm
from seg.models.network import Predictor, SegmentationNetwork, parameter_groups
from seg.models.networks import NETWORK_FILE, check_network, network_document
from seg.scores.checkpoints import CheckpointSelector
from seg.scores.report_scores import print_checkpoints, print_scores, report_info
from seg.trained.adaptive_batch_norm import (
    Estimated,
    check_there_are_statistics,
    re_estimated_on,
)
from seg.trained.description import CLASSES_FILE
from seg.trained.run_network import build_network, classes_of_run
from seg.trained.start_from import normalisation, start_from
from seg.trained.trained_network import RE_ESTIMATED_ON, Training
from seg.training.run import Schedule, TrainingRun, print_summary
from seg.training.step import TrainState, training_step

_SOURCE_STREAM, _TARGET_STREAM = 0, 1


def train(config: TrainConfig) -> Path:
    """Run one training of checked settings and return its run folder."""
    # set up
    accelerator = _accelerator(config.device, config.precision)
    path = None if config.run_dir is None else Path(config.run_dir)
    if config.resume and path is not None:
        config, before = _continued(config, path)
    else:
        config, before = _begun(config, accelerator), Before(config.classes)
    saved = before.state
    pair, sampler = _data(config, accelerator, before)
    # after the data: what is drawn and counted into a cache the first time must not move the weights
    seed_everything(config.seed)
    own, classes = path if config.resume else None, len(pair.classes)
    network = build_network(config.model, classes, pair.pixels.bands, own, saved is None)
    config = config.for_network(network)
    state = build_state(
        config, network, classes, accelerator, pair.classes, pair.pixels, saved is not None
    )
    if config.batch_norm_after == "target":
        state.re_estimate = _re_estimation(pair, state, config.bn_alpha)
    selector = CheckpointSelector()
    if saved is not None:
        state.restore(saved)
        selector.restore(saved.get("choice"))
    # a resumed run folder drops what came after the checkpoint, which every process has to have read
    accelerator.wait_for_everyone()
    folder = None
    if accelerator.is_main_process:
        path = path or _new_run_dir(config)
        folder = _folder(config, pair, path, str(accelerator.device), saved)
        print_summary(_summary(config, path, state.model, accelerator), pair)
    # without --run-dir the main process has chosen the folder's name; all processes get it
    (path,) = broadcast_object_list([path])
    schedule = Schedule(config.max_steps, config.log_every, config.eval_every, config.maps)
    run = TrainingRun(schedule, state, pair, selector, Path(str(path)), folder)
    if saved is not None:
        run.scored, run.saved_step = saved.get("scored", True), state.step
    left = range(state.step, config.max_steps)
    steps = _steps(_streams(config, pair, sampler, accelerator, left), config.accumulate, left)
    with _closed_at_the_end(run):
        _train(run, steps)
        result = run.final_scores()
        if folder is not None:
            _finish(run, folder, result, partial(protocol, config))
    leave_group()
    return run.path


def _train(run: TrainingRun, steps: Iterable[list[MicroBatch]]) -> None:
    """Make the remaining steps, with scores and checkpoints between them."""
    if run.saved_step is None:
        run.save()  # a run can be resumed from its first step on
    run.score_if_due()
    for micro_batches in steps:
        run.report(training_step(run.state, micro_batches))
        run.stop_if_asked()
        run.score_if_due()


@contextmanager
def _closed_at_the_end(run: TrainingRun) -> Iterator[None]:
    """Wrap the training so that signals end it between two steps and errors say how to continue."""
    try:
        with going_on_with(f"continue with: {resume_command('seg.train', run.path)}"), run.stop:
            yield
    except NotFiniteError as error:
        last = f"the checkpoint {run.path / 'checkpoints' / 'last'} of step {run.saved_step}"
        raise NotFiniteError(
            f"{error}; {last} is from before, and --resume continues from it"
        ) from error
    finally:
        run.close()


@dataclass(frozen=True)
class Before:
    """The contents of a run to continue; a new run has its file of classes alone."""

    classes: str | None = None  #: file of the classes
    pixels: PixelFormat | None = None  #: None where the images decide it
    state: dict[str, Any] | None = None  #: the checkpoint to continue from


def _begun(config: TrainConfig, accelerator: Accelerator) -> TrainConfig:
    """Fill in every default of a new run that does not depend on the network's layers."""
    config, lines = resolve(config, accelerator.device.type)
    for line in lines:
        accelerator.print(line)
    model, starts_anew = config.model, config.model.start_from is None
    check_network(str(model.name), str(model.encoder), model.encoder_weights, starts_anew)
    return config


def _continued(config: TrainConfig, path: Path) -> tuple[TrainConfig, Before]:
    """Return the settings of a run to continue, with the defaults filled in at its start."""
    state = checkpoint_to_resume(path)
    had_begun = (path / CLASSES_FILE).is_file()
    pixels = read_format(path) if had_begun else None
    was = from_dict(TrainConfig, read_config(path), str(path))
    config = replace(
        config,
        source=was.source,
        target=was.target,
        model=was.model,
        optimizer=was.optimizer,
        weights=was.weights,
        batch_norm_after=was.batch_norm_after,
    )
    return config, Before(classes_of_run(path, config.classes), pixels, state)


def _data(
    config: TrainConfig, accelerator: Accelerator, before: Before
) -> tuple[DomainPair, Sampler]:
    """The images of both domains, and the order of the labelled ones."""
    with accelerator.main_process_first():
        data = config.data() | {"classes_file": before.classes, "pixels": before.pixels}
        pair = open_pair(**data, workers=config.workers, rgb=normalisation(config.model))
        for line in pair.look_at_labels():
            accelerator.print(line)
        sampler = labelled_sampler(
            pair.labelled,
            (config.seed, _SOURCE_STREAM),
            config.source.rare_class_temperature,
            config.source.rare_class_pixels,
            config.workers,
        )
    return pair, sampler


def _re_estimation(
    pair: DomainPair, state: TrainState, share: float | None
) -> Callable[[nn.Module], Estimated]:
    """Returns a copy of a network with a share of the target's statistics."""
    check_there_are_statistics(state.model)
    device = state.predict.accelerator.device
    return lambda model: re_estimated_on(pair.target_train, model, device, share)


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
    policy = str(settings.batch_norm)
    network.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = set_up_batch_norm(network, policy, synchronised=world_size() > 1)
    if settings.start_from is not None and not resumed:
        for note in start_from(model, Path(settings.start_from), classes):
            accelerator.print(note)
    optimizer = accelerator.prepare_optimizer(_optimizer(model, rates))
    if config.compile:
        model.compile()
    predict = Predictor(model, accelerator, policy, settings.align_corners, pixels)
    on_source = {"main": weights.seg_main, "aux": weights.seg_aux}
    counts = torch.zeros(num_classes, dtype=torch.int64, device=accelerator.device)
    return TrainState(
        predict,
        optimizer,
        _method(config, predict, num_classes),
        {head: on_source[head] for head in predict.heads},
        PolySchedule(rates.horizon or config.max_steps, rates.power),
        counts,
        bool(weights.relative),
    )


def _optimizer(model: nn.Module, rates: OptimizerConfig) -> torch.optim.Optimizer:
    """The network's optimiser, with the heads at a rate of their own."""
    lr = float(rates.lr or 0)
    groups = parameter_groups(model, lr, rates.head_factor)
    if rates.name == "adamw":
        return torch.optim.AdamW(groups, lr, weight_decay=rates.weight_decay)
    return torch.optim.SGD(groups, lr, rates.momentum, weight_decay=rates.weight_decay)


def _method(config: TrainConfig, predict: Predictor, num_classes: int) -> Method:
    """The method of ``--method``, with the objectives of ``--loss``."""
    row = METHODS[config.method]
    on_target = config.weights.on_target("target")
    make_objectives = partial(
        HeadObjectives,
        str(config.loss),
        num_classes,
        {head: on_target[head] for head in predict.heads},
        config.reduction,
        config.objective_options(),
    )
    options = config.method_options()
    if options:
        own = config.weights.on_target(row.weight)
        options["weights"] = {head: own[head] for head in predict.heads}
    method: Method = resolve_name(row.path)(predict, num_classes, make_objectives, **options)
    return method


def _new_run_dir(config: TrainConfig) -> Path:
    """A folder named by method, objective and seed."""
    loss = [] if config.loss == "none" else [str(config.loss)]
    return new_run_dir("seg", config.method, *loss, str(config.seed))


def _folder(
    config: TrainConfig, pair: DomainPair, path: Path, device: str, saved: dict[str, Any] | None
) -> RunFolder:
    """Open the run folder, new or continued from the checkpoint ``saved``."""
    if config.resume:
        folder = RunFolder.resume(path, None if saved is None else saved["step"])
    else:
        has_objective = METHODS[config.method].loss is not None
        info = report_info(len(pair.classes), config.title, has_objective)
        folder = RunFolder.create(path, asdict(config), config.seed, device, info)
    if saved is None:
        if config.resume:
            print("the run has no checkpoint yet and begins again", flush=True)
        if pair.pixels != RGB:
            folder.write_json(PIXELS_FILE, pair.pixels.document())
        folder.write_json(CLASSES_FILE, pair.classes.document())
        if config.model.name == "pretrained" and not (path / NETWORK_FILE).is_file():
            document = network_document(Path(str(config.model.start_from)))
            folder.write_json(NETWORK_FILE, document)
    return folder


def _summary(
    config: TrainConfig, path: Path, model: nn.Module, accelerator: Accelerator
) -> dict[str, str]:
    """Method, data, network, device and folder, in words."""
    roots = [config.target.root]
    if not config.target.replaces_source():
        roots.insert(0, config.source.root)
    after = ""
    if config.batch_norm_after == "target":
        after = ", for scores with a share of the statistics of target"
    policy = config.model.batch_norm if batch_norms(model) else "none"
    processes = ""
    if accelerator.num_processes > 1:
        processes = f"{accelerator.num_processes} processes, "
    return {
        "method": config.title,
        "data": " -> ".join(root for root in roots if root) or "demo pair",
        "network": f"{config.model.described()}, batch norm {policy}{after}",
        "device": f"{accelerator.device}, {config.precision}, {processes}{torch.get_num_threads()} threads; "
        f"{config.max_steps} steps, seed {config.seed}",
        "results": str(path),
    }


def _streams(
    config: TrainConfig,
    pair: DomainPair,
    sampler: Sampler,
    accelerator: Accelerator,
    steps: range,
) -> Iterator[MicroBatch]:
    """Return the micro-batches of the steps; ``sampler`` draws the labelled images."""
    positions = range(steps.start * config.accumulate, steps.stop * config.accumulate)
    common: dict[str, Any] = {
        "batch_size": config.batch_size,
        "steps": positions,
        "workers": config.workers,
        "process": (accelerator.process_index, accelerator.num_processes),
        "pixels": pair.pixels,
    }
    source = batches(
        ConcatDataset(pair.labelled),
        **common,
        seed=(config.seed, _SOURCE_STREAM),
        augmentation=config.source.augmentation,
        sampler=sampler,
        **_style(config.source, pair),
    )
    target: Iterator[Any] = repeat({}, len(positions))
    if METHODS[config.method].uses_target:
        target = batches(
            pair.target_train,
            **common,
            seed=(config.seed, _TARGET_STREAM),
            augmentation=config.target.augmentation,
        )
    return map(MicroBatch, source, target)


def _style(source: SourceConfig, pair: DomainPair) -> dict[str, Any]:
    """Arguments of :func:`batches` that give source images the target's style."""
    if pair.source_train is None or source.style == "none":
        return {}
    style = partial(target_style, pair.target_train, source.style_beta, source.style_probability)
    return {"style": style, "styled": len(pair.source_train)}


def _steps(
    micro_batches: Iterator[MicroBatch], accumulate: int, steps: range
) -> Iterator[list[MicroBatch]]:
    """Yield the micro-batches of each step."""
    for _ in steps:
        yield list(islice(micro_batches, accumulate))


def _finish(
    run: TrainingRun,
    folder: RunFolder,
    result: dict[str, Any],
    describe: Callable[[Training, nn.Module], dict[str, Any]],
) -> None:
    """Write ``eval.json``, with the protocol that ``describe`` gives, and print the tables."""
    run.close_progress()
    state, pair = run.state, run.pair
    kept = run.selector.table(state.step, result["miou"])
    re_estimated = state.result().get(RE_ESTIMATED_ON)
    how = describe(Training(run.path, "last", state.step, re_estimated), state.model)
    how["labelled_images"] = {
        "source": len(pair.source_train or ()),
        "target": len(pair.target_labelled or ()),
    }
    shares = zip(pair.classes.names, state.source_shares(), strict=True)
    result["source_label_share"] = dict(shares)
    document = {**result, "checkpoint": "last", "checkpoints": kept, "protocol": how}
    folder.write_json("eval.json", document)
    print_scores(result, f"target validation, {len(pair.target_val)} images, last checkpoint")
    print_checkpoints(kept)
    print(f"batch norm:   {how['batch_norm']}")
    if run.schedule.maps:
        print(f"entropy maps: {run.path / 'entropy_maps'}")
    print(f"scores:       {run.path / 'eval.json'}")
    print(f"report:       {command_line('dem_apps.report', [str(run.path)])}")
