"""Everything that a training needs, built from its settings; what is built takes values and no settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list, patch_environment
from torch import nn
from torch.utils.data import ConcatDataset

from dem_apps.errors import InputError
from dem_apps.reduction import world_size
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.documents import Document
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.reproducibility import seed_everything
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import from_dict
from seg.config import TrainConfig, resolve
from seg.data.domains import DomainPair, open_pair
from seg.data.loader import Batch, batches, target_style
from seg.data.pixel_format import PIXELS_FILE, RGB, PixelFormat, read_format
from seg.data.samplers import Sampler, labelled_sampler
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.methods import METHODS
from seg.methods.minent import HeadObjectives
from seg.methods.optimization import MicroBatch, PolySchedule
from seg.methods.settings import OptimizerConfig
from seg.models.batch_norm import set_up_batch_norm
from seg.models.network import Predictor, SegmentationNetwork, parameter_groups
from seg.models.networks import NETWORK_FILE, check_network, network_document
from seg.scores.report_scores import report_info
from seg.trained.adaptive_batch_norm import check_there_are_statistics, re_estimated_on
from seg.trained.description import CLASSES_FILE
from seg.trained.run_network import build_network, classes_of_run
from seg.trained.start_from import Start
from seg.training.run import TrainingRun
from seg.training.step import TrainState
from seg.training.summary import summary

_SOURCE_STREAM, _TARGET_STREAM = 0, 1
#: Settings of a run to continue that were filled in when it began.
_FILLED_IN = ("source", "target", "model", "optimizer", "weights", "batch_norm_after")


class Before(NamedTuple):
    """The contents of a run to continue, without any for a new run."""

    folder: Path | None = None  #: of the run
    pixels: PixelFormat | None = None  #: None where the images decide it
    state: Document | None = None  #: the checkpoint to continue from


def set_up(config: TrainConfig) -> TrainingRun:
    """Build a training by its checked settings, and open its run folder."""
    accelerator = _accelerator(config.device, config.precision)
    config, before = _settled(config, accelerator)
    start, saved = Start(config.model), before.state
    opened = config.data() | {"pixels": before.pixels}
    if before.pixels is None:
        opened["rgb"] = start.pixels
    pair, sampler = _data(opened, config.source, config.seed, config.workers, accelerator)
    # after the data: what is drawn and counted into a cache the first time must not move the weights
    seed_everything(config.seed)
    num_classes, bands = len(pair.classes), pair.pixels.bands
    network = build_network(config.model, num_classes, bands, before.folder, saved is None)
    if saved is None:  # else the checkpoint brings the weights
        for note in start.put_into(network, pair.classes):
            accelerator.print(f"note: {note}")
    config = config.for_network(network)
    stated = config.protocol()
    state = build_state(config, network, num_classes, accelerator, pair.pixels)
    if config.batch_norm_after == "target":
        check_there_are_statistics(state.model)
        state.re_estimate = partial(
            re_estimated_on,
            pair.target_train,
            device=accelerator.device,
            bn_alpha=config.bn_alpha,
        )
    if saved is not None:
        state.restore(saved)
        accelerator.print(f"resumed  at step {state.step} of {config.max_steps}")
    path, folder = _opened(asdict(config), config.title, pair, accelerator, saved)
    if folder is not None:
        about = summary(config.summary(), pair, path, state.model, accelerator)
        print(*about, sep="\n", flush=True)
    first, number = state.step, config.accumulate
    read = partial(
        batches,
        batch_size=config.batch_size,
        steps=range(first * number, config.max_steps * number),
        workers=config.workers,
        process=(accelerator.process_index, accelerator.num_processes),
        pixels=pair.pixels,
    )
    target = config.target if METHODS[config.method].uses_target else None
    micro_batches = _micro_batches(read, pair, sampler, config.source, target, config.seed)
    steps = (list(islice(micro_batches, number)) for _ in range(first, config.max_steps))
    return TrainingRun(
        config.max_steps,
        config.log_every,
        config.eval_every,
        config.maps,
        stated,
        state,
        pair,
        path,
        folder,
        steps,
        saved,
    )


def _settled(config: TrainConfig, accelerator: Accelerator) -> tuple[TrainConfig, Before]:
    """Fill in every default that does not depend on the network's layers.

    A run to continue has the ones that were filled in at its start.
    """
    if config.resume:
        path = Path(str(config.run_dir))
        saved = checkpoint_to_resume(path)
        was = from_dict(TrainConfig, read_config(path), str(path))
        config = replace(config, **{name: getattr(was, name) for name in _FILLED_IN})
        config = replace(config, classes=classes_of_run(path, config.classes))
        pixels = read_format(path) if (path / CLASSES_FILE).is_file() else None
        return config, Before(path, pixels, saved)
    config, lines = resolve(config, accelerator.device.type)
    for line in lines:
        accelerator.print(line)
    model = config.model
    check_network(
        str(model.name), str(model.encoder), model.encoder_weights, model.start_from is None
    )
    return config, Before()


def _data(
    opened: Document, source: SourceConfig, seed: int, workers: int, accelerator: Accelerator
) -> tuple[DomainPair, Sampler]:
    """The images of both domains, and the order of the labelled ones."""
    with accelerator.main_process_first():
        pair = open_pair(**opened, workers=workers)
        for line in pair.look_at_labels():
            accelerator.print(line)
        return pair, labelled_sampler(
            pair.labelled,
            (seed, _SOURCE_STREAM),
            source.rare_class_temperature,
            source.rare_class_pixels,
            workers,
        )


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
    pixels: PixelFormat = RGB,
) -> TrainState:
    """The network, its optimiser and the method, on their device."""
    settings = config.model
    rates = config.optimizer
    weights = config.weights
    policy = str(settings.batch_norm)
    network.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = set_up_batch_norm(network, policy, synchronised=world_size() > 1)
    optimizer = accelerator.prepare_optimizer(_optimizer(model, rates))
    if config.compile:
        model.compile()
    predict = Predictor(model, accelerator, policy, settings.align_corners, pixels)
    row = METHODS[config.method]
    options = config.method_options()
    if options:
        options["weights"] = weights.on_target(row.weight, network.heads)
    objectives = HeadObjectives(
        str(config.loss),
        num_classes,
        weights.on_target("target", network.heads),
        config.reduction,
        config.objective_options(),
    ).to(accelerator.device)
    method = resolve_name(row.path)(predict, num_classes, objectives, **options)
    on_source = {"main": weights.seg_main, "aux": weights.seg_aux}
    return TrainState(
        predict,
        optimizer,
        method,
        {head: on_source[head] for head in network.heads},
        PolySchedule(int(rates.horizon or 0), rates.power),
        torch.zeros(num_classes, dtype=torch.int64, device=accelerator.device),
        bool(weights.relative),
    )


def _optimizer(model: nn.Module, rates: OptimizerConfig) -> torch.optim.Optimizer:
    """The network's optimiser, with the heads at a rate of their own."""
    lr = float(rates.lr or 0)
    groups = parameter_groups(model, lr, rates.head_factor)
    if rates.name == "adamw":
        return torch.optim.AdamW(groups, lr, weight_decay=rates.weight_decay)
    return torch.optim.SGD(groups, lr, rates.momentum, weight_decay=rates.weight_decay)


def _opened(
    settings: Document,
    title: str,
    pair: DomainPair,
    accelerator: Accelerator,
    saved: Document | None,
) -> tuple[Path, RunFolder | None]:
    """Open the run folder in the main process.

    Returns:
        The folder's path, which every process gets from the main one, and the open folder or None.
    """
    path, method = settings["run_dir"], settings["method"]
    folder = None
    # a resumed run folder drops what came after the checkpoint, which every process has to have read
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        names = [method, settings["loss"], str(settings["seed"])]
        path = path or str(new_run_dir("seg", *(name for name in names if name != "none")))
        if settings["resume"]:
            folder = RunFolder.resume(Path(path), None if saved is None else saved["step"])
        else:
            info = report_info(len(pair.classes), title, METHODS[method].loss is not None)
            folder = RunFolder.create(
                Path(path), settings, settings["seed"], str(accelerator.device), info
            )
        if saved is None:
            _describe(folder, settings, pair)
    (path,) = broadcast_object_list([path])
    return Path(str(path)), folder


def _describe(folder: RunFolder, settings: Document, pair: DomainPair) -> None:
    """Write what the network sees and predicts into the folder of a run without a checkpoint."""
    if settings["resume"]:
        print("the run has no checkpoint yet and begins again", flush=True)
    if pair.pixels != RGB:
        folder.write_json(PIXELS_FILE, pair.pixels.document())
    folder.write_json(CLASSES_FILE, pair.classes.document())
    model = settings["model"]
    if model["name"] == "pretrained" and not (folder.path / NETWORK_FILE).is_file():
        folder.write_json(NETWORK_FILE, network_document(Path(model["start_from"])))


def _micro_batches(
    read: Callable[..., Iterator[Batch]],
    pair: DomainPair,
    sampler: Sampler,
    source: SourceConfig,
    target: TargetDataConfig | None,
    seed: int,
) -> Iterator[MicroBatch]:
    """Return all micro-batches; ``sampler`` draws the labelled images, and without ``target`` there are no others."""
    style = None
    if source.style != "none":
        style = partial(
            target_style, pair.target_train, source.style_beta, source.style_probability
        )
    labelled = read(
        ConcatDataset(pair.labelled),
        seed=(seed, _SOURCE_STREAM),
        augmentation=source.augmentation,
        sampler=sampler,
        style=style,
        styled=len(pair.source_train or ()),
    )
    unlabelled: Iterator[Batch] = repeat({})
    if target is not None:
        unlabelled = read(
            pair.target_train,
            seed=(seed, _TARGET_STREAM),
            augmentation=target.augmentation,
        )
    return map(MicroBatch, labelled, unlabelled)
