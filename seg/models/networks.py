"""Networks by name, their batch normalisation, and how they are read back from runs.

A network of this project is a :class:`seg.models.network.SegmentationNetwork`. To add one, write it in a file of its
own and enter its builder in ``NETWORKS``: docs/howto/add_a_network.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, one_of, passed_on
from dem_apps.runtime.documents import Document, read_json, required
from seg.models import smp_network, transformers_network
from seg.models.deeplabv2 import DeepLabV2, build_advent_network
from seg.models.network import SegmentationNetwork
from seg.models.smp_network import SMP_NETWORKS, check_encoder, check_published
from seg.models.weights_file import load_encoder, weights_file

#: A run's copy of the ``config.json`` that describes its network, so that the folder it came from may be deleted.
NETWORK_FILE = "network.json"


def network_document(folder: Path) -> Document:
    """Read the description of a network in a folder of a run, of segmentation-models-pytorch or transformers."""
    file = folder / NETWORK_FILE
    if not file.is_file():
        file = folder / "config.json"
    return required(read_json(file), str(file))


def pretrained_network(
    encoder: str, num_classes: int, weights: str | None = None, bands: int = 3
) -> SegmentationNetwork:
    """The network that the folder ``encoder`` describes, with random weights; ``--model.start-from`` loads others."""
    if weights is not None:
        raise InputError(
            "--model.encoder-weights: a pretrained network has its own weights; leave the flag out"
        )
    document = network_document(Path(encoder))
    if "model_type" not in document:
        return smp_network.network_of_config(document, num_classes, encoder, bands)
    if bands != 3:
        raise InputError(
            f"--model.name: the network of {encoder} sees 3 bands, and the images have {bands}; give images of 3 bands"
        )
    return transformers_network.network_of_config(document, num_classes, encoder)


#: Called with the encoder's name, the number of classes, ``weights`` and those options of its own that are set.
NETWORKS: dict[str, Callable[..., SegmentationNetwork]] = {
    "deeplabv2": DeepLabV2,
    "deeplabv2-advent": build_advent_network,
    **SMP_NETWORKS,
    "pretrained": pretrained_network,
}


#: Networks whose encoder is no choice.
_OWN_ENCODER = ("pretrained", "deeplabv2-advent")


def check_network(name: str, encoder: str, weights: str | None, is_fetched: bool = False) -> None:
    """Check the names of a network, its encoder and encoder weights; with ``is_fetched`` that these can be had.

    Raises:
        InputError: a name that is not known, or weights that are in no file and no cache without a server.
    """
    one_of("model", name, [*NETWORKS])
    if name in _OWN_ENCODER:
        return
    check_encoder(encoder, weights)
    if is_fetched and weights is not None and weights_file(encoder, weights) is None:
        check_published(encoder, weights)


def build_model(
    name: str = "deeplabv2",
    encoder: str = "resnet101",
    num_classes: int = 19,
    output_stride: int | None = None,
    depth: int | None = None,
    weights: str | None = None,
    bands: int = 3,
    **options: Any,
) -> SegmentationNetwork:
    """A segmentation network by name.

    Args:
        name: ``deeplabv2``, ``deeplabv2-advent``, an architecture of segmentation-models-pytorch such as ``unet`` or
            ``segformer``, or ``pretrained``, the network that a folder describes.
        encoder: of segmentation-models-pytorch (``resnet101``, ``tu-…`` for timm); of ``pretrained`` the folder.
        num_classes: C.
        output_stride: input pixels per feature of the encoder; None is the network's default.
        depth: stages of the encoder in use; None is the network's default.
        weights: of the encoder: a name such as ``imagenet``, a file, or None for a random start. ImageNet's are read
            from the package of the extra ``pretrained`` where it is installed and has the encoder's.
        bands: of the images; pretrained weights of the first convolution are repeated over other bands than 3.
        options: of that network alone.

    Returns a module that maps (B, 3, H, W) images, or other bands, to ``{"main": (B, C, h, w)}`` and, where it has an
    auxiliary head, ``"aux"``. Raises InputError: a name or option that is not known, or weights that cannot be had.

    >>> import torch
    >>> model = build_model("deeplabv2", encoder="resnet18", num_classes=4, output_stride=8)
    >>> {head: tuple(logits.shape) for head, logits in model(torch.zeros(1, 3, 64, 96)).items()}
    {'main': (1, 4, 8, 12), 'aux': (1, 4, 8, 12)}
    """
    check_network(name, encoder, weights)
    options |= {
        "depth": depth,
        "output_stride": output_stride,
        "bands": bands if bands != 3 else None,
    }
    options = {option: value for option, value in options.items() if value is not None}
    # networks with an encoder of their own refuse weights themselves
    file = None if name in _OWN_ENCODER else weights_file(encoder, weights)
    first = weights if file is None else None
    with passed_on(f"model: {name}", TypeError):  # an option that it has not
        network = NETWORKS[name](encoder, num_classes, weights=first, **options)
    if file is not None:
        load_encoder(network.encoder, encoder, file)
    return network
