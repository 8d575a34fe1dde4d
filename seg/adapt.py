"""``python -m seg.adapt``: adapt a trained network to a folder of unlabelled images, and judge whether it helped."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dem_apps.errors import InputError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.settings import parse_config
from dem_apps.test_time_methods import METHODS
from seg.adaptation.settings import STEP, AdaptConfig
from seg.data.files import left_out

if TYPE_CHECKING:
    from torch import Tensor

    from seg.adaptation.adaptation import Adaptation
    from seg.adaptation.images import ImageFolder, Predictions
    from seg.adaptation.result import Result
    from seg.trained.trained_network import TrainedNetwork

#: Source images that are read.
SOURCE_IMAGES = 64


def adapt(config: AdaptConfig) -> Result:
    """Open, predict, adapt while a monitor looks, predict again and write.

    Args:
        config: the settings of the command.

    Returns:
        The answer and its numbers.

    Raises:
        InputError: settings that do not fit together, or that do not fit the network or the images.
    """
    config.check()
    from dem_apps.runtime.device import torch_device
    from dem_apps.runtime.files import new_folder, new_run_dir
    from seg.adaptation.page import adaptation_page
    from seg.adaptation.result import write_result
    from seg.models.batch_norm import batch_norm_normalises
    from seg.trained.open import open_network

    device = torch_device(config.device)
    config = _with_demo(config)
    trained = open_network(config)
    config = config.resolved(batch_norm_normalises(trained.network))
    _check_it_can_learn(config, trained)
    out = Path(config.out) if config.out else new_run_dir("adapt", config.method)
    with new_folder(out, "--out") as part:
        trained.network.to(device)
        result, trained, predictions = _adapted(config, trained, part, out)
        write_result(part, result, trained, adaptation_page(result, predictions))
    result.print(out)
    return result


def _with_demo(config: AdaptConfig) -> AdaptConfig:
    if config.model is not None:
        return config
    from seg.adaptation.demo import demo_network, foggy_target

    images, labels = map(str, foggy_target())
    labels = config.labels or labels
    return replace(config, model=str(demo_network()), images=images, labels=labels)


def _check_it_can_learn(config: AdaptConfig, trained: TrainedNetwork) -> None:
    from dem_apps.test_time_methods import method_class
    from dem_apps.test_time_methods.normalisation import affine_parameters

    needs_layers = method_class(config.adapter_method).parameters == "normalisation"
    if needs_layers and not affine_parameters(trained.network):
        raise InputError(
            f"--method {config.method}: learns scale and shift of normalisation layers, and {trained.spec} has none; "
            "cotta learns all weights, lab changes colours alone"
        )


def _adapted(
    config: AdaptConfig, trained: TrainedNetwork, part: Path, out: Path
) -> tuple[Result, TrainedNetwork, Predictions]:
    """Adapt the network, and write the predictions into ``part``, which becomes ``out``."""
    from seg.adaptation.normalisation import check_normalisation
    from seg.adaptation.result import Result

    predictions, notes = _opened(config, trained, part)
    folder = predictions.folder
    normalisation = check_normalisation(trained, folder)
    print(*notes, f"network:  {trained.spec}", sep="\n")
    print(f"seen as:  {normalisation.used.described}")
    if normalisation.sentence:
        print(f"tried:    {normalisation.sentence}")
    number = f"{len(folder)} of {len(folder) + len(folder.skipped)} images"
    print(f"adapting: {number}{left_out([Path(str(config.images))])}, results in {out}", flush=True)
    outcome = _adaptation(config, trained, predictions).run()
    settings = {"method": config.method, **asdict(config)}
    for name in ("out", "device"):
        del settings[name]
    result = Result(
        settings, predictions.classes, outcome, predictions.rows, folder.skipped, normalisation
    )
    return result, trained, predictions


def _opened(
    config: AdaptConfig, trained: TrainedNetwork, part: Path
) -> tuple[Predictions, list[str]]:
    """The images and their labels, for predictions that are written into ``part``, and notes for the user."""
    from seg.adaptation.images import Predictions
    from seg.data.label_faults import labels_of
    from seg.data.layouts.layout import OWN_IDS

    classes = trained.class_set.ignoring(config.ignore)
    folder = _folder(config, trained, str(config.images))
    labels, layout, about_labels = dict[Path, Path](), OWN_IDS, list[str]()
    if config.labels is not None:
        labels, layout, about_labels = labels_of(
            Path(config.labels), folder.relative, folder.root, classes
        )
    notes = [*trained.description.notes, *about_labels]
    return Predictions(part, folder, classes, labels, trained, layout), notes


def _folder(config: AdaptConfig, trained: TrainedNetwork, path: str) -> ImageFolder:
    from seg.adaptation.images import ImageFolder

    own = config.size is None or config.tile is not None
    size = None if own else trained.description.size
    return ImageFolder(Path(path), trained.description, size, trained.device, config.tile)


def _adaptation(
    config: AdaptConfig, trained: TrainedNetwork, predictions: Predictions
) -> Adaptation:
    """The adaptation by the values of the settings."""
    from dem_apps import TestTimeAdapter
    from seg.adaptation.adaptation import Adaptation, colours_of

    method, prepare = config.adapter_method, None
    options = config.adapter_options(trained.num_classes)
    if method == "eata":
        options["source_images"] = _source_images(config, trained)
    if method == "lab":
        method, prepare = "none", colours_of(_source_images(config, trained), trained)
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
    source = _folder(config, trained, str(config.source))
    return source.spread_batches(SOURCE_IMAGES, config.batch_size)


def _batches(config: AdaptConfig, folder: ImageFolder) -> list[list[int]]:
    """The images to learn from, in order, over all passes; a step has batches of its own."""
    if not METHODS[config.adapter_method].learns or config.method == STEP:
        return []
    seeds = [
        None if config.mode == "online" else (config.seed, epoch) for epoch in range(config.epochs)
    ]
    return [batch for seed in seeds for batch in folder.batches(config.batch_size, seed)]


def main() -> None:
    """The command."""
    example = "python -m seg.adapt --model runs/my-run --images photos --out adapted"
    if adapt(parse_config(AdaptConfig, "python -m seg.adapt", example)).skipped:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
