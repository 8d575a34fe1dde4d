"""The interface that training, scores and exports use of a network, and its predictions at the size of the images.

Shapes: B batch, C classes, h × w feature resolution, H × W the images' size.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from huggingface_hub import PyTorchModelHubMixin, constants
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.entropy import computed_in
from dem_apps.errors import InputError, NotFiniteError, passed_on
from dem_apps.runtime.documents import Document
from seg.data.pixel_format import RGB, PixelFormat
from seg.models.batch_norm import Domain, feed_batch_norm

if TYPE_CHECKING:
    from accelerate import Accelerator

#: Says of a ``config.json`` that a network here wrote it, and in which version of the format.
OUR_KEY, OUR_VERSION = "dem_apps_network", 1
#: Logits (B, C, ·, ·) of each head.
HeadLogits = dict[str, Tensor]
#: Most rows of a strip.
_ROWS = 128
_CARD = "---\n{{ card_data }}\n---\n\nA network for semantic segmentation; `seg.load` of dem-apps opens its folder.\n"


class SegmentationNetwork(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="dem-apps",
    tags=["semantic-segmentation"],
    model_card_template=_CARD,
):
    """A segmentation network that returns the logits of each of its heads.

    It maps images (B, 3, H, W), RGB or bands in the run's normalisation, to logits (B, C, h, w).
    ``encoder`` is the part that learns at the plain rate and may start from pretrained weights. huggingface_hub's mixin
    brings ``save_pretrained(folder)``, ``from_pretrained(folder)`` of the class, and ``push_to_hub(name)``.

    >>> import tempfile, torch, seg
    >>> network = seg.build_model("deeplabv2", encoder="resnet18", num_classes=4).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     network.save_pretrained(folder)
    ...     again = type(network).from_pretrained(folder)
    >>> images = torch.rand(1, 3, 64, 96)
    >>> torch.equal(again(images)["main"], network(images)["main"])
    True
    """

    #: Its key in :data:`seg.models.networks.NETWORKS`, for ``config.json``.
    #: It is not used where a library saves in its own format.
    name: ClassVar[str] = ""
    #: The keys of the logits: ``main``, which is scored and exported, and ``aux`` where there is an auxiliary head.
    heads: ClassVar[tuple[str, ...]] = ("main",)
    encoder: nn.Module

    def save_pretrained(
        self, save_directory: str | Path, *, config: Any = None, **options: Any
    ) -> str | None:
        """Save as the mixin does, with a ``config.json`` of this project.

        The file holds the arguments of :func:`seg.build_model`, and ``config`` besides.
        """
        arguments: Any = self._hub_mixin_config or {}
        document = {OUR_KEY: OUR_VERSION, "name": self.name, **arguments, "weights": None}
        document |= config or {}
        with passed_on(f"{save_directory}: cannot be written", SafetensorError):
            return super().save_pretrained(save_directory, config=document, **options)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: Any = None, **options: Any) -> Any:
        with passed_on(model_id), redirect_stdout(io.StringIO()):  # the mixin says that it loads
            return super()._from_pretrained(model_id=model_id, **{"strict": True, **options}).eval()


@contextmanager
def offline() -> Iterator[None]:
    """Within, huggingface_hub reads its cache and asks no server."""
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def needed_package(name: str, needed_by: str, extra: str) -> Any:
    """Import a package of an extra; an InputError says how to install it where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{needed_by} needs the package {name}, which is not installed; run pip install 'dem-apps[{extra}]'"
        ) from error


def parameter_groups(model: nn.Module, lr: float, head_factor: float) -> list[Document]:
    """The optimiser's groups: the encoder at ``lr``, the rest at ``head_factor * lr``, the schedule's ``base_lr``."""
    encoder = list(model.get_submodule("encoder").parameters())
    inside = set(map(id, encoder))
    heads = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return [{"params": encoder, "base_lr": lr}, {"params": heads, "base_lr": lr * head_factor}]


@dataclass(frozen=True)
class Predictor:
    """A network in training, with a policy of batch norm: called with images it gives every head's logits."""

    model: nn.Module
    accelerator: Accelerator
    batch_norm: str
    align_corners: bool = True
    pixels: PixelFormat = RGB  #: format of the images

    def __call__(self, images: Tensor, domain: Domain) -> HeadLogits:
        """Compute the logits of every head at the size of the images.

        Args:
            images: (B, 3, H, W), normalised.
            domain: the domain of the batch.

        Returns:
            logits (B, C, H, W) per head, float32, or float64 of a float64 network.
        """
        feed_batch_norm(self.model, self.batch_norm, domain)
        images = images.to(
            self.accelerator.device, memory_format=torch.channels_last, non_blocking=True
        )
        with self.accelerator.autocast():
            logits: HeadLogits = self.model(images)
        size = images.shape[2:]
        return {
            head: upsampled(values, size, self.align_corners) for head, values in logits.items()
        }


def finite(logits: Tensor, of: str = "") -> Tensor:
    """The logits; a NotFiniteError for NaN or infinite ones, which would look like class 0 everywhere."""
    if not bool(logits.isfinite().all()):
        raise NotFiniteError(
            f"{of and f'{of}: '}the network's output is not finite; check its weights"
        )
    return logits


def continued(images: Tensor, below: int, right: int) -> Tensor:
    """Continue images (B, ·, H, W) beyond their lower and right edge by rows and columns like their last ones."""
    return F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images


def upsampled(logits: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """Upsample logits bilinearly, in float32 or wider.

    Args:
        logits: (B, C, h, w).
        size: (H, W).
        align_corners: whether corners are aligned, as ADVENT does.

    Returns:
        (B, C, H, W).
    """
    logits = logits.to(computed_in(logits.dtype))
    return F.interpolate(logits, size=list(size), mode="bilinear", align_corners=align_corners)


def upsampled_bands(
    logits: Iterable[Tensor],
    height: int,
    size: Sequence[int],
    align_corners: bool,
) -> Iterator[tuple[int, int, Tensor]]:
    """Upsample logits in strips to bound memory.

    Args:
        logits: bands (1, C, ·, w), top down.
        height: rows of all bands together.
        size: (H, W).
        align_corners: as :func:`upsampled` takes it.

    Yields:
        a strip's first row, its first column and its logits (1, C, ≤ 128, W), top down.
    """
    every = torch.arange(size[0], dtype=torch.float32)
    if align_corners:
        places = every * ((height - 1) / max(1, size[0] - 1))
    else:
        places = ((every + 0.5) * (height / size[0]) - 0.5).clamp_min(0)
    bands, first = iter(logits), 0
    band = next(bands)  # the rows of logits from the first one
    for number, strip in enumerate(places.split(_ROWS)):
        above = strip.long().clamp_max(height - 1)
        below = (above + 1).clamp_max(height - 1)
        while first + band.shape[2] <= int(below[-1]):
            band = torch.cat([band, next(bands)], 2)
        passed, first = int(above[0]) - first, int(above[0])
        band = band[:, :, passed:]
        share = (strip - above)[:, None].to(band.device)
        upper, lower = (band[:, :, row - first].float() for row in (above, below))
        lines = torch.lerp(upper, lower, share)
        yield number * _ROWS, 0, upsampled(lines, (len(strip), size[1]), align_corners)
