"""The network of a run as a folder that others read: of segmentation-models-pytorch, of transformers, or our own."""

from __future__ import annotations

from pathlib import Path

import segmentation_models_pytorch as smp
import torch
from torch import nn

from dem_apps.errors import InputError
from seg.data.pixel_format import PIXELS_FILE
from seg.models.folders import CONFIG_FILE, OUR_KEY, OUR_VERSION, WEIGHTS_FILE, write_json
from seg.models.load_model import CLASSES_FILE
from seg.models.predictor import upsampled
from seg.models.preprocessing import PREPROCESSOR_FILE, preprocessor_document
from seg.models.smp_network import SmpNetwork
from seg.models.trained_network import TrainedNetwork
from seg.models.transformers_network import TransformersNetwork, quiet
from seg.models.weights_file import weights_content

#: Of an image for the comparison, in pixels: a size that every architecture takes.
_SIDE = 256
_TOLERANCE = 1e-4


def write_model(trained: TrainedNetwork, folder: Path) -> str:
    """Write weights, description, classes and normalisation of a run's network into an empty folder.

    Returns:
        the library that reads it, ``smp``, ``transformers`` or ``seg``.

    Raises:
        InputError: the library's own network gives other logits.
    """
    model, classes, preprocessing = trained.network, trained.class_set, trained.preprocessing
    pixels = preprocessing.pixels
    if isinstance(model, SmpNetwork):
        kind = "smp"
        _as_smp(model, len(classes), folder)
    elif isinstance(model, TransformersNetwork):
        kind = "transformers"
        _as_transformers(model, classes.names, folder)
    else:
        kind = "seg"
        _as_ours(trained, folder)
    write_json(folder / PREPROCESSOR_FILE, preprocessor_document(preprocessing))
    write_json(folder / CLASSES_FILE, classes.document())
    if not pixels.is_rgb:
        write_json(folder / PIXELS_FILE, pixels.document())
    return kind


def _as_ours(trained: TrainedNetwork, folder: Path) -> None:
    assert trained.training is not None  # of every run
    bands = {} if trained.preprocessing.pixels.is_rgb else {"bands": trained.preprocessing.channels}
    document = {
        OUR_KEY: OUR_VERSION, **trained.training.config.model.architecture(), **bands,
        "num_classes": trained.num_classes, "align_corners": trained.align_corners,
    }  # fmt: skip
    write_json(folder / CONFIG_FILE, document)
    (folder / WEIGHTS_FILE).write_bytes(weights_content(trained.network.state_dict()))


def _as_smp(model: SmpNetwork, num_classes: int, folder: Path) -> None:
    """By the library's own network, which is asked whether it says the same."""
    bands = model.arguments.get("in_channels", 3)
    images = torch.randn(1, bands, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model(images)["main"]
    arguments = dict(model.arguments)
    if "upsampling" in arguments:
        arguments["upsampling"] = _SIDE // logits.shape[2]
    library = smp.create_model(
        model.architecture, encoder_weights=None, classes=num_classes, **arguments, **model.encoder_options
    )
    library.load_state_dict(model.state_dict())
    with torch.inference_mode():
        theirs = library.eval()(images)
        ours = upsampled(logits, (_SIDE, _SIDE))
    difference = float((theirs - ours).abs().max()) if theirs.shape == ours.shape else float("inf")
    if not difference <= _TOLERANCE * float(ours.abs().max()) + 1e-6:
        raise InputError(
            f"{model.architecture}: segmentation-models-pytorch's own network gives logits that differ by up to "
            f"{difference:.3g}; nothing was written"
        )
    library.save_pretrained(folder)


def _as_transformers(model: TransformersNetwork, names: tuple[str, ...], folder: Path) -> None:
    network: nn.Module = model.network
    settings = network.config
    settings.id2label = dict(enumerate(names))  # type: ignore[union-attr]  # of a class that is not known here
    settings.label2id = {name: index for index, name in enumerate(names)}  # type: ignore[union-attr]
    with quiet():
        network.save_pretrained(folder)  # type: ignore[operator]
