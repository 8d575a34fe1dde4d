"""The steps of ``seg.adapt`` from top to bottom: open, adapt under watch, decide, write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError
from dem_apps.report.text_tables import write_csv
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.new_folder import new_folder
from dem_apps.runtime.safe_io import first_words
from dem_apps.runtime.terminal import console
from dem_apps.test_time_methods import METHODS
from dem_apps.test_time_methods.lab import LabTransfer, lab_statistics
from dem_apps.test_time_methods.network import find_logits
from dem_apps.test_time_methods.normalisation import NORMALISATIONS, batch_norms
from seg.adaptation.evidence import Forward
from seg.adaptation.flow import Flow, Plan
from seg.adaptation.images import ImageFolder, Labels
from seg.adaptation.page import adaptation_page
from seg.adaptation.predictions import Predictions
from seg.adaptation.result import Result, shares_table
from seg.data.labels import ClassSet, load_classes, named_classes
from seg.inference.run_prediction import is_out_of_memory
from seg.models.preprocessing import Preprocessing
from seg.models.trained import TrainedNetwork

_SOURCE_IMAGES = 64


@dataclass(frozen=True)
class Inputs:
    """What is read.

    Args:
        images: folder of images without labels.
        source: folder of images that the network was trained for, of the methods that need one.
        labels: folder of label images of some of the images.
        classes: file of the classes, or names; None takes the network's own.
        size: (width, height) that the network sees; None is its own, else each image's.
    """

    images: Path
    source: Path | None = None
    labels: Path | None = None
    classes: str | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Recipe:
    """How the network is adapted.

    Args:
        method: of :class:`dem_apps.TestTimeAdapter`.
        options: of the adapter: objective, learning rate and so on.
        mode: see :class:`seg.adaptation.flow.Plan`, as are the others.
        epochs: passes over the folder.
        batch_size: images per step.
        seed: of the order.
    """

    method: str
    options: dict[str, Any]
    mode: str
    epochs: int
    batch_size: int
    seed: int


def batch_norm_normalises(network: nn.Module) -> bool:
    """Whether most layers that normalise are batch norm with statistics; SegFormer has one, beside 30 of layer norm."""
    layers = [layer for layer in network.modules() if isinstance(layer, NORMALISATIONS)]
    kept = [layer for layer in batch_norms(network) if layer.running_mean is not None]
    return 2 * len(kept) > len(layers)


def adapt_folder(
    trained: TrainedNetwork, inputs: Inputs, recipe: Recipe, out: Path, settings: dict[str, Any], device: str
) -> Result:
    """Adapt a network to a folder of images, and write predictions, weights, tables and a page to a new folder.

    Args:
        trained: the network; afterwards it holds the weights that are used.
        inputs: what is read.
        recipe: how it is adapted.
        out: new folder, which is there whole or not at all.
        settings: of the command, for the record.
        device: ``cpu``, ``cuda`` or ``auto``.

    Raises:
        InputError: a network, folder or file that does not fit.
    """
    pixels, torch_dev = trained.preprocessing.pixels, torch_device(device)
    if recipe.method == "lab" and not pixels.is_rgb:
        raise InputError(
            f"--method: lab knows the colours of 8-bit RGB, and {trained.spec} sees {pixels.described}; take another"
        )
    if out.resolve().is_relative_to(inputs.images.resolve()) and inputs.images.is_dir():
        raise InputError(f"--out: {out} lies in --images, where its pictures would be taken for images; give another")
    with new_folder(out, "--out") as part:
        classes = _classes_of(trained, inputs.classes)
        trained.network.to(torch_dev)
        size = inputs.size or trained.preprocessing.size
        folder = ImageFolder(inputs.images, trained.preprocessing, size, torch_dev)
        labels = None if inputs.labels is None else Labels(inputs.labels, folder.relative, classes)
        _check_network(trained, folder.first())
        plan = _plan(trained, recipe, _source_batches(inputs.source, trained, size, torch_dev, recipe.batch_size))
        print(f"adapting: {_counted(folder)}, results in {out}", flush=True)
        predictions = Predictions(part, folder, classes, labels, trained.align_corners)
        try:
            outcome = Flow(trained, predictions, plan).run()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                "--size: the images do not fit into memory; give a smaller --size W,H or a smaller --batch-size"
            ) from error
        rows = predictions.rows
        result = Result(settings, classes, outcome, rows["before"], rows["after"], folder.skipped)
        trained.network.cpu()
        trained.save(part / "adapted")
        write_csv(part / "shares.csv", result.shares())
        write_csv(part / "images.csv", result.images())
        (part / "report.html").write_bytes(adaptation_page(result, predictions))
        (part / "adapt.json").write_text(json.dumps(result.document(), indent=2) + "\n", encoding="utf-8")
    _print(result, out)
    return result


def _plan(trained: TrainedNetwork, recipe: Recipe, source: list[Tensor]) -> Plan:
    method, options, prepare = recipe.method, dict(recipe.options), None
    if method == "lab":
        method, prepare = "none", _colours_of(source, trained.preprocessing)
    if method == "eata":
        options["source_images"] = source
    if recipe.mode == "episodic":
        options["predict"] = "after"
    learns = METHODS[method].learns
    make = partial(TestTimeAdapter, trained.network, method, **options)
    return Plan(make, recipe.mode, learns, recipe.epochs, recipe.batch_size, recipe.seed, prepare)


def _source_batches(
    source: Path | None, trained: TrainedNetwork, size: tuple[int, int] | None, device: torch.device, batch_size: int
) -> list[Tensor]:
    if source is None:
        return []
    if not source.is_dir():
        raise InputError(f"--source: {source} is no folder")
    return ImageFolder(source, trained.preprocessing, size, device).spread_batches(_SOURCE_IMAGES, batch_size)


def _colours_of(batches: Sequence[Tensor], preprocessing: Preprocessing) -> Forward:
    """A function that gives (B, 3, h, w) images the mean and deviation in Lab of the source's ``batches``."""

    def rgb(images: Tensor) -> Tensor:
        """RGB of the network's order, and back. Mean and deviation are the channels' own in either."""
        return images.flip(1) if preprocessing.order == "bgr" else images

    mean, std = preprocessing.mean, preprocessing.std
    transfer = LabTransfer(**lab_statistics(map(rgb, batches), mean, std), mean=mean, std=std)

    @torch.no_grad()
    def recoloured(images: Tensor) -> Tensor:
        return rgb(transfer.transferred(rgb(images)))

    return recoloured


def _classes_of(trained: TrainedNetwork, file: str | None) -> ClassSet:
    """The classes of a file, else the network's own, else numbers for names."""
    if file is None:
        return trained.classes or named_classes([f"class {index}" for index in range(trained.num_classes)])
    classes = load_classes(file)
    if len(classes) != trained.num_classes:
        raise InputError(
            f"--classes: {file} has {len(classes)} classes, and {trained.spec} predicts {trained.num_classes}; name "
            "those that it was trained with, in the order of its outputs"
        )
    return classes


def _check_network(trained: TrainedNetwork, image: Tensor) -> None:
    """Refuse weights that are no use and an output that is no logits, by the first image, (3, h, w)."""
    for name, value in trained.network.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"--model: {trained.spec} holds NaN or infinity in '{name}'; save the network again")
    try:
        with torch.no_grad():
            logits = find_logits(trained.network(image[None]))
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, TypeError, RuntimeError, ValueError) as error:
        channels, height, width = image.shape
        raise InputError(
            f"--model: {trained.spec} cannot take the first image, which it sees as {width} × {height} with {channels} "
            f"channels ({first_words(error, 200)}); it has to take RGB, and --size W,H another size"
        ) from error
    if logits.ndim != 4 or logits.shape[1] != trained.num_classes:
        raise InputError(
            f"--model: {trained.spec} gives {tuple(logits.shape)}; expected logits (B, {trained.num_classes}, height, "
            "width)"
        )
    if not bool(logits.isfinite().all()):
        raise InputError(f"--model: {trained.spec} predicts NaN or infinity on the first image; its weights are no use")
    total = logits.float().sum(1)
    if bool((logits >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        raise InputError(
            f"--model: the output of {trained.spec} sums to one over the classes, so it is probabilities and not "
            "logits; take the softmax out of the network"
        )


def _counted(folder: ImageFolder) -> str:
    found = len(folder) + len(folder.skipped)
    return f"{len(folder)} of {found} images" if folder.skipped else f"{found} images"


def _print(result: Result, out: Path) -> None:
    console().print(shares_table(result.shares()))
    print(result.answer)
    if result.score is not None:
        print(f"with labels: {result.score.sentence}")
    print(f"weights:     {out / 'adapted'}")
    print(f"page:        {out / 'report.html'}")
    if result.skipped:
        print(f"skipped:     {result.left_out}; {out / 'adapt.json'} names them")
