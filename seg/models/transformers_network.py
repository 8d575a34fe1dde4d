"""Semantic segmentation networks of transformers (extra ``hf``) as networks of this project; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dem_apps.errors import passed_on
from dem_apps.runtime.documents import Document
from seg.models.network import HeadLogits, SegmentationNetwork, needed_package, offline

#: Settings that are read of an image processor; a class without a switch does not do it.
_SETTINGS = (
    "do_rescale",
    "do_normalize",
    "do_resize",
    "do_flip_channel_order",
    "do_reduce_labels",
    "reduce_labels",
    "rescale_factor",
    "image_mean",
    "image_std",
    "size",
)


class TransformersNetwork(SegmentationNetwork):
    """One of the library's networks, with the logits of its output alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]  # registered once, as a part of the network
        """The base model of the library."""
        base: nn.Module = self.network.base_model
        return base

    def forward(self, images: Tensor) -> HeadLogits:
        """Compute the logits.

        Args:
            images: (B, 3, H, W), normalised.

        Returns:
            ``main``, (B, C, h, w).
        """
        return {"main": self.network(images).logits}

    def _save_pretrained(self, save_directory: Path) -> None:
        with _library(str(save_directory)):
            self.network.save_pretrained(save_directory)

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, config: Any = None, **options: Any
    ) -> TransformersNetwork:
        return network_of_folder(Path(model_id))


def network_of_config(config: Document, num_classes: int, where: str) -> TransformersNetwork:
    """The network of a ``config.json``, called ``where``, with random weights and as many classes."""
    with _library(where) as library:
        settings = library.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
        settings.num_labels = num_classes
        return TransformersNetwork(
            library.AutoModelForSemanticSegmentation.from_config(settings).float()
        )


def network_of_folder(folder: Path) -> TransformersNetwork:
    """The network of a folder of ``save_pretrained``, with its weights, float32."""
    with _library(str(folder)) as library:
        network, report = library.AutoModelForSemanticSegmentation.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
        missing = {
            kind: sorted(map(str, report[kind]))
            for kind in ("missing_keys", "mismatched_keys")
            if report[kind]
        }
        if missing:  # which the library would leave at random
            raise ValueError(f"its weights do not fit its config.json: {missing}")
        return TransformersNetwork(network.float())


def processor_of_folder(folder: Path) -> Document | None:
    """Settings of the folder's image processor, with its class's defaults; None where there is no file."""
    files = [folder / name for name in ("preprocessor_config.json", "processor_config.json")]
    if not any(file.is_file() for file in files):
        return None
    with _library(str(folder)) as library:
        processor = library.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    document = {key: getattr(processor, key, None) for key in _SETTINGS}
    return {**document, "size": dict(document["size"] or {})}


@contextmanager
def _library(where: str) -> Iterator[Any]:
    """The package, offline and without progress bars: some networks would download a backbone."""
    transformers = needed_package("transformers", where, "hf")
    logging = transformers.utils.logging
    logging.disable_progress_bar()
    try:
        with passed_on(where), offline():
            yield transformers
    finally:
        logging.enable_progress_bar()
