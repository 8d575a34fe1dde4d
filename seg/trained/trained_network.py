"""A trained network of any origin, with all that is needed to predict with it, to adapt it and to save it.

Shapes: B batch, C classes, h × w the logits' own resolution, H × W the images' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from dem_apps.errors import InputError, first_words, is_out_of_memory
from dem_apps.runtime.files import new_folder
from dem_apps.test_time_methods.network import find_logits
from seg.config import TrainConfig
from seg.data.files import Size
from seg.data.labels import ClassSet, named_classes
from seg.data.pixel_format import PixelFormat, kind_of
from seg.data.read_images import ImagePixels, Scene, picture_pixels, pixels_and_mask, read_image
from seg.maps.entropy_maps import Part, Picture, Prediction
from seg.maps.run_pictures import map_pictures
from seg.models.network import continued, finite, upsampled, upsampled_bands
from seg.models.tiles import TiledLogits
from seg.scores.evidence import Forward
from seg.trained.description import Description

#: The key of a checkpoint under which it names the images of its AdaBN statistics.
RE_ESTIMATED_ON = "re_estimated_on"
#: Predictions are bytes, and 255 stands for no class.
_MOST_CLASSES = 255


@dataclass(frozen=True)
class Training:
    """The origin of a run's network; the checkpoint is never ``auto``."""

    run: Path
    checkpoint: str
    step: int
    re_estimated_on: str | None = None  #: images of the AdaBN statistics; None without any


@dataclass(frozen=True, kw_only=True)
class PredictedImage(Prediction):
    """A prediction at the size of its image.

    Its ``classes`` are places in :attr:`names`. In a notebook it shows itself.

    >>> from seg.data.labels import named_classes
    >>> logits = torch.zeros(1, 2, 4, 6)
    >>> logits[:, 1, :1] = 9.0
    >>> image, found = np.zeros((4, 6, 3), np.uint8), Prediction.of(logits[0])
    >>> more = {"logits": logits, "class_set": named_classes(["sky", "road"]), "align_corners": False}
    >>> PredictedImage(found.classes, found.entropy, image=image, **more).shares
    {'sky': 0.75, 'road': 0.25}
    """

    image: Picture  #: (H, W, 3) uint8 RGB; of other bands what is shown of them
    logits: Tensor  #: (1, C, h, w) float32, on the CPU
    class_set: ClassSet  #: names and colours of the C classes
    align_corners: bool  #: whether upsampling of the logits aligns corners

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.class_set.names

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """(C, H, W) float32 softmax; made when it is asked for."""
        logits = upsampled(self.logits, self.classes.shape, self.align_corners)
        return np.asarray(logits.softmax(1)[0])

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels with data that each predicted class has, by name, the largest first."""
        pixels, _ = self.sums(len(self.names))
        by_size = sorted(zip(self.names, pixels, strict=True), key=lambda pair: -pair[1])
        return {name: float(count / pixels.sum()) for name, count in by_size if count}

    def panel(self) -> Image.Image:
        """Image, prediction and entropy side by side, entropy on the scale from 0 to 1, with the classes' names."""
        return Image.fromarray(map_pictures(self.image, None, self, self.class_set)[1])

    def __repr__(self) -> str:
        height, width = self.classes.shape
        return f"PredictedImage({width} × {height}; entropy {self.caption})"

    def _repr_png_(self) -> bytes | None:
        return self.panel()._repr_png_()


@dataclass(frozen=True)
class TrainedNetwork:
    """A network to predict with, to adapt and to save.

    :func:`seg.load` opens one.

    >>> import seg
    >>> network = seg.build_model("unet", encoder="resnet18", num_classes=3, depth=3)
    >>> predictor = TrainedNetwork("mine", network, 3, Description(), lambda folder, _: None)
    >>> predictor.predict(np.zeros((64, 96, 3), np.uint8)).entropy.shape
    (64, 96)
    """

    spec: str  #: the SPEC that was opened
    #: in ``eval()`` mode; maps images to logits (B, C, h, w), or a dict with ``main``
    network: nn.Module
    num_classes: int  #: C
    description: Description  #: how it sees images, and what its outputs mean
    #: Writes the current weights, in the format that they came in, and a description of them into an empty folder.
    write: Callable[[Path, Description], None]
    training: Training | None = None  #: where a run's network comes from
    config: TrainConfig | None = None  #: settings of the run, with every default filled in
    #: (width, height) of the images that it sees; None is each image's own
    size: Size | None = None
    tile: int | None = None  #: side of the tiles that larger images are predicted by

    def __post_init__(self) -> None:
        named = self.description.classes
        if not 2 <= self.num_classes <= _MOST_CLASSES:
            raise InputError(
                f"{self.spec}: the network predicts {self.num_classes} classes; expected 2 to {_MOST_CLASSES}"
            )
        if named is not None and len(named) != self.num_classes:
            raise InputError(
                f"{self.spec}: the network predicts {self.num_classes} classes, and {len(named)} are named "
                "(--classes); name the classes that it was trained with, in the order of its outputs"
            )
        self.network.eval()

    @property
    def class_set(self) -> ClassSet:
        """Classes of the outputs; numbered where they are not known."""
        return self.description.classes or named_classes(self.num_classes)

    @property
    def device(self) -> torch.device:
        """The device that holds the network."""
        return next(self.network.parameters(), torch.empty(0)).device

    def seeing(self, size: Sequence[int] | str | None, tile: int | None) -> TrainedNetwork:
        """The same network, which sees images at its description's size or their own, whole or by tiles.

        Args:
            size: None is the images' own size, and so is ``auto`` with tiles.
            tile: side of the tiles; None is the whole image.
        """
        at_own_size = size is None or (size == "auto" and tile is not None)
        return replace(self, size=None if at_own_size else self.description.size, tile=tile)

    def logits(self, images: Tensor, forward: Forward | None = None) -> Tensor:
        """Compute the logits of images at their size.

        Args:
            images: (B, 3, H, W), normalised; they are padded to ``description.multiple``.
            forward: computes the raw logits; None is :meth:`raw_logits`.

        Returns:
            (B, C, H, W) float32.
        """
        height, width = images.shape[2:]
        below, right = (-side % self.description.multiple for side in (height, width))
        padded = continued(images, below, right)
        logits = (forward or self.raw_logits)(padded)
        whole = upsampled(logits, padded.shape[2:], self.description.align_corners)
        return whole[:, :, :height, :width]

    def raw_logits(self, images: Tensor) -> Tensor:
        """(B, C, h, w) at the network's own resolution; an InputError for images that it does not take."""
        try:
            output = self.network(images)
        except (AssertionError, RuntimeError, ValueError) as error:
            if isinstance(error, InputError) or is_out_of_memory(error):
                raise
            raise InputError(
                f"{self.spec}: the network cannot take images of {images.shape[3]} × {images.shape[2]} "
                f"({first_words(error)}); give another size by --size W,H, or pad by a function's fact 'multiple'"
            ) from error
        return find_logits(output)

    def predict(self, image: Any) -> PredictedImage:
        """Predict one image.

        Args:
            image: a path, a PIL image or an array (H, W, 3) of uint8, before any normalisation. A network that sees
                other bands takes a file or an array (H, W, bands) of the numbers it was trained on.

        Raises:
            InputError: something that is no image, or of a size that the network does not take.
        """
        align_corners, pixels = self.description.align_corners, self.description.pixels
        read = _one_image(image, pixels)
        size = read.shape[:2]
        with torch.no_grad():
            logits = self._tiled(read).whole().float().cpu()
        strips = upsampled_bands([logits], logits.shape[2], size, align_corners)
        maps = Prediction.of_parts(strips, size, read.valid)
        return PredictedImage(
            **vars(maps),
            image=pixels.preview(read.values, read.valid),
            logits=logits,
            class_set=self.class_set,
            align_corners=align_corners,
        )

    @torch.no_grad()
    def maps(self, image: ImagePixels, forward: Forward | None = None) -> Prediction:
        """Classes and entropy of an image at its own resolution."""
        return Prediction.of_parts(self.parts(image, forward), image.shape[:2], image.valid)

    @torch.no_grad()
    def parts(self, image: ImagePixels | Scene, forward: Forward | None = None) -> Iterator[Part]:
        """The logits of an image at its own resolution, by parts; a NotFiniteError for some that are not finite."""
        size, align_corners = image.shape[:2], self.description.align_corners
        logits = self._tiled(image, forward)
        if self.tile is None:
            yield 0, 0, upsampled(logits.whole(), size, align_corners)
        else:
            yield from upsampled_bands(logits.rows(), logits.height, size, align_corners)

    def _tiled(self, image: ImagePixels | Scene, forward: Forward | None = None) -> TiledLogits:
        """The logits of an image at :attr:`size`."""
        description = self.description
        # where sides are continued to multiples, pixels are what can be cut off again
        forward = forward or self.raw_logits
        if description.multiple > 1:
            forward = partial(self.logits, forward=forward)
        if isinstance(image, ImagePixels) and self.size not in (None, image.shape[1::-1]):
            image = ImagePixels(*pixels_and_mask(image, description.pixels, self.size))

        def read(rows: slice, columns: slice) -> Tensor:
            values, valid = pixels_and_mask(image.window(rows, columns), description.pixels, None)
            return description.normalised(values, valid)[None].to(self.device)

        return TiledLogits(lambda images: finite(forward(images)), image.shape[:2], read, self.tile)

    def save(self, folder: Path | str) -> None:
        """Write the network as it is now to a new folder, in the format that it came in; of a function its weights."""
        with new_folder(Path(folder), "save") as part:
            self.write(part, self.description)

    def __repr__(self) -> str:
        names = ", ".join(self.class_set.names[:4]) + (", …" if self.num_classes > 4 else "")
        return f"TrainedNetwork({self.spec}; {self.num_classes} classes: {names})"


def _one_image(image: Any, pixels: PixelFormat) -> ImagePixels:
    """One image as a network sees it; transparent pixels of a picture, and NaN of an array, hold no data."""
    if isinstance(image, (str, Path)):
        return read_image(Path(image), pixels)
    if isinstance(image, Image.Image) and pixels.is_rgb:
        return picture_pixels(image, Path(str(getattr(image, "filename", "image"))))
    shape = np.shape(image)
    fits = isinstance(image, np.ndarray) and kind_of(image.dtype.name) == kind_of(pixels.dtype)
    if not fits or len(shape) != 3 or shape[2] != pixels.bands:
        raise InputError(
            f"image: got a {type(image).__name__} of shape {shape}; expected a path, an array (H, W, {pixels.bands}) "
            f"of {pixels.described} before any normalisation, or a PIL image of 8-bit RGB"
        )
    valid = np.isfinite(image).all(2)
    return ImagePixels(np.ascontiguousarray(image), None if valid.all() else valid)
