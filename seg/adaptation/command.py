"""The steps of ``python -m seg.adapt``: open, predict, adapt while a monitor looks, predict again and write."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import new_folder, new_run_dir
from dem_apps.test_time_methods import LEARNING_METHODS, method_class
from dem_apps.test_time_methods.normalisation import affine_parameters
from seg.adaptation.adaptation import Adaptation, colours_of
from seg.adaptation.demo import demo_network, foggy_target
from seg.adaptation.images import Batches, ImageFolder, Predictions
from seg.adaptation.normalisation import check_normalisation
from seg.adaptation.page import adaptation_page
from seg.adaptation.result import Result, write_result
from seg.adaptation.settings import STEP, AdaptConfig
from seg.data.files import left_out
from seg.data.label_faults import labels_of
from seg.data.layouts.layout import OWN_IDS
from seg.models.batch_norm import batch_norm_normalises
from seg.trained.open import open_network
from seg.trained.trained_network import TrainedNetwork

#: Source images that are read.
SOURCE_IMAGES = 64


def adapt_folder(config: AdaptConfig) -> Result:
    """Adapt a network to a folder by checked settings, see :func:`seg.adapt.adapt`."""
    device = torch_device(config.device)
    if config.model is None:
        images, labels = map(str, foggy_target())
        labels = config.labels or labels
        config = replace(config, model=str(demo_network()), images=images, labels=labels)
    trained = open_network(config).seeing(config.size, config.tile)
    config = config.resolved(batch_norm_normalises(trained.network))
    parameters = method_class(config.adapter_method).parameters
    if parameters == "normalisation" and not affine_parameters(trained.network):
        raise InputError(
            f"--method {config.method}: learns scale and shift of normalisation layers, and {trained.spec} has none; "
            "cotta learns all weights, lab changes colours alone"
        )
    out = Path(config.out) if config.out else new_run_dir("adapt", config.method)
    with new_folder(out, "--out") as part:
        trained.network.to(device)
        predictions = _predictions(config, trained, part)
        folder = predictions.folder
        normalisation = check_normalisation(trained, folder)
        if normalisation.sentence:
            warning = "warning: " if normalisation.warns else ""
            print(f"tried:    {warning}{normalisation.sentence}")
        total = len(folder) + len(folder.skipped)
        others = left_out([Path(str(config.images))])
        print(f"adapting: {len(folder)} of {total} images{others}, results in {out}", flush=True)
        outcome = _adaptation(config, trained, predictions).run()
        settings = {"method": config.method, **asdict(config)}
        del settings["out"], settings["device"]
        result = Result(
            settings,
            predictions.classes,
            outcome,
            predictions.rows,
            folder.skipped,
            trained.description,
            normalisation,
        )
        write_result(part, result, trained, adaptation_page(result, predictions))
    result.print(out)
    return result


def _predictions(config: AdaptConfig, trained: TrainedNetwork, out: Path) -> Predictions:
    """The images and their labels, for predictions that are written into ``out``; prints what is known of them."""
    classes = trained.class_set.ignoring(config.ignore)
    folder = _folder(trained, config.images)
    labels = dict[Path, Path]()
    layout = OWN_IDS
    notes = list(trained.description.notes)
    if config.labels is not None:
        labels, layout, about = labels_of(
            Path(config.labels), folder.relative, folder.root, classes
        )
        notes += about
    print(
        *notes, f"network:  {trained.spec}", f"seen as:  {trained.description.described}", sep="\n"
    )
    return Predictions(out, folder, classes, labels, trained, layout)


def _folder(trained: TrainedNetwork, path: str | None) -> ImageFolder:
    return ImageFolder(
        Path(str(path)), trained.description, trained.size, trained.device, trained.tile
    )


def _adaptation(
    config: AdaptConfig, trained: TrainedNetwork, predictions: Predictions
) -> Adaptation:
    """The adaptation by the values of the settings."""
    method = config.adapter_method
    prepare = None
    options = config.adapter_options(trained.num_classes)
    if method == "eata":
        options["source_images"] = _source_images(config, trained)
    if method == "lab":
        method = "none"
        prepare = colours_of(_source_images(config, trained), trained)
    return Adaptation(
        trained,
        predictions,
        partial(TestTimeAdapter, trained.network, method, **options),
        _batches(config, predictions.folder),
        config.mode,
        config.epochs,
        prepare,
        config.takes_statistics_first(),
        config.bn_alpha,
        config.accept,
        config.steps(),
    )


def _source_images(config: AdaptConfig, trained: TrainedNetwork) -> list[Tensor]:
    return _folder(trained, config.source).spread_batches(SOURCE_IMAGES, config.batch_size)


def _batches(config: AdaptConfig, folder: ImageFolder) -> Batches:
    """The images to learn from, in order, over all passes; a step has batches of its own."""
    if config.adapter_method not in LEARNING_METHODS or config.method == STEP:
        return []
    seeds = [
        None if config.mode == "online" else (config.seed, epoch) for epoch in range(config.epochs)
    ]
    return [batch for seed in seeds for batch in folder.batches(config.batch_size, seed)]
