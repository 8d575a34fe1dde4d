"""What is written of each image before and after: its prediction, its entropy map, and a row of numbers.

Shapes: C classes, h × w the logits' resolution, H × W an image's own size.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.errors import NotFiniteError
from seg.adaptation.evidence import Forward
from seg.adaptation.images import ImageFolder, Labels
from seg.data.labels import ClassSet
from seg.data.read import ImagePixels
from seg.maps import entropy_maps, panels
from seg.maps.run_pictures import output_path, write_geotiffs
from seg.models.network import upsampled

STAGES = ("before", "after")
#: Where the predictions of an adaptation that was not accepted are kept.
REFUSED = "refused/after"


@dataclass(frozen=True)
class Row:
    """Numbers of one image."""

    pixels: NDArray[np.int64]  #: (C,) predicted as each class
    entropy: float  #: mean over its pixels, / log C
    confusion: NDArray[np.int64] | None  #: (C, C) pixels by label and prediction, of a labelled image


@dataclass(frozen=True)
class Predictions:
    """The predictions of all images in ``out``, one folder per stage, and their rows by stage and image path.

    The stages are those of ``STAGES``, and ``REFUSED``.
    """

    out: Path
    folder: ImageFolder
    classes: ClassSet
    labels: Labels | None
    align_corners: bool
    rows: dict[str, dict[str, Row]] = field(default_factory=lambda: {stage: {} for stage in (*STAGES, REFUSED)})

    def write(self, stage: str, index: int, logits: Tensor, picture: ImagePixels | None = None) -> None:
        """Write, or replace, files and row of an image's logits (C, h, w); ``picture`` saves reading it again.

        Raises NotFiniteError: logits that are NaN or infinite, which would look like class 0 everywhere.
        """
        relative = self.folder.relative[index]
        if not bool(logits.isfinite().all()):
            raise NotFiniteError(f"{relative}: the network's output is not finite; its weights are no use")
        picture = self.folder.picture(index) if picture is None else picture
        with torch.inference_mode():
            prediction = entropy_maps.Prediction.of(self._at_image_size(logits[None], picture), picture.valid)
        tiles = {**prediction.tiles(self.classes.colors), "pred_labelIds": prediction.ids(self.classes)}
        for kind, tile in tiles.items():
            panels.save_panel(self.file(stage, index, f"{kind}.png"), Image.fromarray(tile))
        if picture.place is not None:
            write_geotiffs(lambda kind: self.file(stage, index, kind), prediction, self.classes, picture.place)
        entropy = prediction.counted[1]
        self.rows[stage][relative.as_posix()] = Row(
            prediction.pixels(len(self.classes)),
            float(entropy.mean()) if entropy.size else 0.0,
            None if self.labels is None else self.labels.confusion(relative, prediction.classes, picture.valid),
        )

    def keep_before(self) -> None:
        """Files and rows of before become those of after."""
        before, after = (self.out / stage for stage in STAGES)
        shutil.rmtree(after, ignore_errors=True)
        shutil.copytree(before, after)
        self.rows["after"].clear()
        self.rows["after"].update(self.rows["before"])

    @torch.no_grad()
    def confusions_of(self, forward: Forward) -> list[NDArray[np.int64]]:
        """Those of the labelled images, in order, by a network that is called with images as it sees them."""
        found = []
        for index, relative in enumerate(self.folder.relative):
            if self.labels is not None and relative in self.labels.files:
                picture = self.folder.picture(index)
                logits = self._at_image_size(forward(self.folder.seen(index, picture)[0][None]), picture)
                predicted = logits.argmax(0).to(torch.uint8).cpu().numpy()
                found.append(self.labels.confusion(relative, predicted, picture.valid))
        return [table for table in found if table is not None]

    def file(self, stage: str, index: int, kind: str) -> Path:
        """Where an image's file of a kind is written to."""
        return output_path(self.out / stage, self.folder.names[index], kind)

    def _at_image_size(self, logits: Tensor, picture: ImagePixels) -> Tensor:
        """(1, C, h, w) → (C, H, W)."""
        size = (picture.values.shape[0], picture.values.shape[1])
        return upsampled(logits, size, self.align_corners)[0]
