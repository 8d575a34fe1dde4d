"""Summary of a training: printed before its first step, and one phrase for its page."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import TrainConfig
from seg.data.domains import DomainPair
from seg.data.read import first_header, left_out
from seg.methods import METHODS
from seg.models.weights_file import described


def print_summary(
    config: TrainConfig, pair: DomainPair, path: Path, accelerator: Accelerator, model: nn.Module
) -> None:
    """Method, data, network, device and where the results go, a line each."""
    given = "no objective" if config.loss == "none" else f"loss {config.loss} ({config.reduction})"
    loss = f", {given}" if METHODS[config.method].uses_target else ""
    style = f", source in target style ({config.source.described_style()})" if config.source.style != "none" else ""
    parts = config.model.architecture().items()
    network = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts if value).removeprefix("name ")
    network = f"{network}, {described(config.model, pair.pixels)}"
    labels = "" if pair.target_val.labelled else " without labels (scores are those that need none)"
    processes = f"{accelerator.num_processes} processes, " if accelerator.num_processes > 1 else ""
    print(
        f"method   {config.method}{loss}{style}\n"
        f"data     {_training_images(config, pair)}, {len(pair.target_val)} validation images{labels}, "
        f"{len(pair.classes)} classes{pair.left_out()}\n{_about_pixels(pair)}"
        f"network  {network}, batch norm {config.model.batch_norm if batch_norms(model) else 'none'}"
        f"{', for scores with a share of the statistics of target' if config.batch_norm_after == 'target' else ''}\n"
        f"device   {accelerator.device}, {config.precision}, {processes}{torch.get_num_threads()} threads; "
        f"{config.max_steps} steps, seed {config.seed}\n"
        f"results  {path}",
        flush=True,
    )


def in_words(config: TrainConfig, model: nn.Module) -> str:
    """Return in one phrase the data and method that a run learns from."""
    labelled, target = " and ".join(config.target.labelled_domains()), config.target
    words = [f"trained on labelled {labelled} images"]
    if not METHODS[config.method].uses_target:
        words[0] += " alone"
    elif config.method == "minent" and config.loss == "none":
        follows = config.model.batch_norm not in ("source", "frozen") and batch_norms(model)
        if follows:
            words.append("target images only move its batch norm statistics")
    else:
        objective = "" if config.loss == "none" else f" with the objective {config.loss}"
        words.append(f"adapted to target images without labels by {config.method}{objective}")
    if config.source.style != "none":
        words.append(f"source images have the style of target images ({config.source.style})")
    if config.source.rare_class_temperature is not None:
        words.append("images with rare classes are drawn more often")
    if target.labelled_part:
        words.append(f"{target.labelled_part:g} of the target's training images have labels")
    if config.batch_norm_after == "target":
        words.append("batch norm statistics re-estimated on target images at the end")
    return "; ".join(words)


def _about_pixels(pair: DomainPair) -> str:
    """Describe the bands of images other than 8-bit RGB, a line each."""
    lines = []
    if not pair.pixels.is_rgb:
        shown = ", ".join(str(band + 1) for band in pair.pixels.shown)
        lines.append(
            f"{pair.pixels.described}, normalised as measured on {pair.pixels.measured_on}; shown are bands {shown}"
        )
    first = {dataset.root: first_header([image for image, _ in dataset.files]) for dataset in pair.splits().values()}
    notes = [left_out(*found, pair.pixels) for found in first.values() if found is not None]
    lines += [note for note in notes if note is not None]
    layouts = f"layout   {pair.layouts_found()}\n" if pair.layouts_found() else ""
    return layouts + "".join(f"pixels   {line}\n" for line in lines)


def _training_images(config: TrainConfig, pair: DomainPair) -> str:
    """Describe the training images: folders, numbers, labelled images of the target."""
    roots = [root for root in (None if pair.source_train is None else config.source.root, config.target.root) if root]
    source = "no source" if pair.source_train is None else f"{len(pair.source_train)} source"
    labelled = "" if pair.target_labelled is None else f" ({len(pair.target_labelled)} of them with labels)"
    temperature = config.source.rare_class_temperature
    rare = "" if temperature is None else f", rare classes first (T = {temperature:g})"
    return f"{' -> '.join(roots) or 'demo pair'}: {source}, {len(pair.target_train)} target{labelled}{rare}"
