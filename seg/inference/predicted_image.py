"""The prediction of one image, for Python and notebooks.

Shapes: C classes, H × W the image's size, h × w that of the network's logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from seg.data.labels import ClassSet
from seg.maps import entropy_maps, panels
from seg.models.network import upsampled, upsampled_bands


@dataclass(frozen=True)
class PredictedImage:
    """A prediction at the size of its image. In a notebook it shows itself.

    >>> from seg.data.labels import named_classes
    >>> logits = torch.zeros(1, 2, 4, 6)
    >>> logits[:, 1, :1] = 9.0
    >>> image = np.zeros((4, 6, 3), np.uint8)
    >>> PredictedImage(image, logits, named_classes(["sky", "road"]), align_corners=False).shares
    {'sky': 0.75, 'road': 0.25}
    """

    image: NDArray[np.uint8]  #: (H, W, 3) uint8 RGB; of other bands what is shown of them
    logits: Tensor  #: (1, C, h, w) float32, on the CPU
    class_set: ClassSet  #: names and colours of the C classes
    align_corners: bool  #: of the upsampling of logits
    #: (H, W), False where the image holds no data and nothing is counted; None is everywhere.
    valid: NDArray[np.bool_] | None = None

    @property
    def classes(self) -> NDArray[np.uint8]:
        """(H, W) uint8: the index of the class that is most probable, into :attr:`names`."""
        return self._maps.classes

    @property
    def entropy(self) -> NDArray[np.float32]:
        """(H, W) float32, 0 (certain) to 1 (uniform): Shannon entropy / log C."""
        return self._maps.entropy

    @property
    def names(self) -> tuple[str, ...]:
        """Of the C classes."""
        return self.class_set.names

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """(C, H, W) float32 softmax; made when it is asked for."""
        return np.asarray(upsampled(self.logits, self._size, self.align_corners).softmax(1)[0])

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels that each predicted class has, by name, the largest first."""
        pixels = self._maps.pixels(len(self.names))
        order = pixels.argsort(kind="stable")[::-1]
        return {self.names[index]: float(pixels[index] / pixels.sum()) for index in order if pixels[index]}

    def panel(self) -> Image.Image:
        """Image, prediction and entropy side by side, entropy on the scale from 0 to 1, with the classes' names."""
        tiles = self._maps.tiles(self.class_set.colors)
        names = panels.legend(self._maps.pixels(len(self.names)), self.class_set)
        return panels.panel(self.image, tiles["prediction"], tiles["entropy"], self._maps.caption, names)

    def __repr__(self) -> str:
        height, width = self._size
        largest = ", ".join(f"{name} {share:.0%}" for name, share in list(self.shares.items())[:3])
        return f"PredictedImage({width} × {height}; {largest}; entropy {self._maps.caption})"

    def _repr_png_(self) -> bytes | None:
        return self.panel()._repr_png_()

    @property
    def _size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    @cached_property
    @torch.inference_mode()
    def _maps(self) -> entropy_maps.Prediction:
        bands = upsampled_bands(self.logits, self._size, self.align_corners)
        return entropy_maps.Prediction.of_bands((band[0] for band in bands), self.valid)
