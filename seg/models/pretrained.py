"""``--model.name pretrained``: the network that a folder of ``save_pretrained`` describes.

The run keeps a copy of its ``config.json``, so that the folder may be deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json, required
from seg.models import smp_network, transformers_network
from seg.models.network import SegmentationNetwork

#: The copy in a run folder.
NETWORK_FILE = "network.json"


def network_document(folder: Path) -> dict[str, Any]:
    """What describes the network of a folder: of a run, of segmentation-models-pytorch's or transformers'."""
    file = folder / NETWORK_FILE if (folder / NETWORK_FILE).is_file() else folder / "config.json"
    document: dict[str, Any] = read_json(file)
    required(document, str(file))
    return document


def pretrained_network(
    encoder: str, num_classes: int, weights: str | None = None, bands: int = 3
) -> SegmentationNetwork:
    """The network that the folder ``encoder`` describes, with random weights; ``--model.start-from`` loads others.

    Raises InputError: a folder that describes none, or a network that cannot be built.
    """
    if weights is not None:
        raise InputError("--model.encoder-weights: a pretrained network has its own; leave it away")
    document = network_document(Path(encoder))
    if "model_type" not in document:
        return smp_network.network_of_config(document, num_classes, encoder, bands)
    if bands != 3:
        raise InputError(f"--model.name: the network of {encoder} sees 3 bands, and the images have {bands}")
    return transformers_network.network_of_config(document, num_classes, encoder)
