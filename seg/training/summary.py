"""What a training is about, in a few lines that are printed before its first step."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from dem_apps.test_time_methods.normalisation import batch_norms
from seg.config import TrainConfig
from seg.data.domains import DomainPair
from seg.data.pixel_format import RGB
from seg.data.read_images import first_header, left_out
from seg.trained.description import Description


def summary(
    config: TrainConfig, pair: DomainPair, path: str, model: nn.Module, accelerator: Accelerator
) -> list[str]:
    """Return method, data, network, device and run folder, a line each."""
    domains = [config.target] if config.target.replaces_source() else [config.source, config.target]
    data = " -> ".join(domain.root for domain in domains if domain.root) or "demo pair"
    images = ", ".join(f"{number} {title}" for title, number in pair.sizes().items())
    labels = "" if pair.target_val.labelled else " without labels (scores are those that need none)"
    policy = str(config.model.batch_norm) if batch_norms(model) else "none"
    if config.batch_norm_after == "target":
        policy = f"{policy}, for scores with a share of the statistics of target"
    processes = accelerator.num_processes
    joined = f"{processes} processes, " if processes > 1 else ""
    return [
        f"method   {config.title}",
        f"data     {data}: {images}{labels}; {len(pair.classes)} classes{pair.left_out()}",
        *_about_pixels(pair),
        f"network  {config.model.described()}, batch norm {policy}",
        f"device   {accelerator.device}, {config.precision}, {joined}{torch.get_num_threads()} threads; "
        f"{config.max_steps} steps, seed {config.seed}",
        f"results  {path}",
    ]


def _about_pixels(pair: DomainPair) -> list[str]:
    """Layouts that were found, and the bands and normalisation of images unlike ImageNet's, a line each."""
    pixels = pair.pixels
    lines = list[str]()
    if pair.layouts_found():
        lines.append(f"layout   {pair.layouts_found()}")
    if pixels != RGB:
        lines.append(f"pixels   {Description(pixels).numbers}")
    for images in {dataset.root: dataset.images for dataset in pair.splits().values()}.values():
        header = first_header(images)
        note = None if header is None else left_out(*header, pixels)
        if note is not None:
            lines.append(f"pixels   {note}")
    return lines
