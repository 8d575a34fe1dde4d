"""What a training is about, in a few lines that are printed before its first step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from dem_apps.test_time_methods.normalisation import batch_norms
from seg.data.domains import DomainPair
from seg.data.pixel_format import RGB
from seg.data.read_images import left_out, read_header
from seg.trained.description import Description


def summary(
    settings: Mapping[str, str],
    pair: DomainPair,
    path: Path,
    model: nn.Module,
    accelerator: Accelerator,
) -> list[str]:
    """Return method, data, network, device and run folder, a line each.

    ``settings`` are those of :meth:`seg.config.TrainConfig.summary`.
    """
    images = ", ".join(f"{len(dataset)} {title}" for title, dataset in pair.splits.items())
    labels = "" if pair.target_val.labelled else " without labels (scores are those that need none)"
    batch_norm = settings["batch_norm"] if batch_norms(model) else "none"
    processes = accelerator.num_processes
    joined = f"{processes} processes, " if processes > 1 else ""
    return [
        f"method   {settings['method']}",
        f"data     {settings['data']}: {images}{labels}; {len(pair.classes)} classes{pair.left_out()}",
        *_about_pixels(pair),
        f"network  {settings['network']}, batch norm {batch_norm}",
        f"device   {accelerator.device}, {settings['precision']}, {joined}{torch.get_num_threads()} threads; "
        f"{settings['length']}",
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
    for images in {dataset.root: dataset.images for dataset in pair.splits.values()}.values():
        if note := left_out(images[0], read_header(images[0]), pixels):
            lines.append(f"pixels   {note}")
    return lines
