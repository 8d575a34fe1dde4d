"""What is written of each image before and after: its prediction, its entropy map, and a row of numbers.

Shapes: C classes, h × w the logits' resolution, H × W an image's own size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import write_atomically
from seg.adaptation.evidence import Forward
from seg.adaptation.image_folder import ImageFolder
from seg.adaptation.labelled import Labels
from seg.adaptation.work import Work
from seg.data.image_pixels import ImagePixels
from seg.data.labels import ClassSet
from seg.maps import entropy_maps, panels
from seg.maps.run_pictures import output_path, write_geotiffs
from seg.models.predictor import upsampled

#: Of the pictures of an image and stage.
KINDS = ("prediction", "entropy", "pred_labelIds")
#: Beside them, of an image that says where it lies.
GEOTIFFS = ("prediction", "entropy")


@dataclass(frozen=True)
class PredictionWriter:
    """Writes into one folder per stage; a row stands for an image whose pictures are on the disk.

    Args:
        work: keeps the rows.
        folder: the images.
        classes: C names and colours.
        labels: of some of the images, or None.
        align_corners: of the upsampling.
    """

    work: Work
    folder: ImageFolder
    classes: ClassSet
    labels: Labels | None
    align_corners: bool

    def write(
        self,
        stage: str,
        index: int,
        logits: Tensor,
        picture: ImagePixels | None = None,
        row_of: str | None = None,
    ) -> None:
        """Files and row of one image.

        Args:
            stage: ``before`` or ``after``.
            index: of the image.
            logits: (C, h, w).
            picture: the image, where it has been read already.
            row_of: the stage that the row is kept for, where it is another.

        Raises:
            NotFiniteError: logits that are NaN or infinite, which would look like class 0 everywhere.
        """
        relative = self.folder.relative[index]
        if not bool(logits.isfinite().all()):
            raise NotFiniteError(f"{relative}: the network's output is not finite; its weights are no use")
        picture = self.folder.picture(index) if picture is None else picture
        size = (picture.values.shape[0], picture.values.shape[1])
        with torch.inference_mode():
            prediction = entropy_maps.Prediction.of(upsampled(logits[None], size, self.align_corners)[0], picture.valid)
        tiles: dict[str, NDArray[np.uint8]] = {
            **prediction.tiles(self.classes.colors),
            "pred_labelIds": prediction.ids(self.classes),
        }
        for kind, tile in tiles.items():
            panels.save_panel(self.file(stage, index, kind), Image.fromarray(tile))
        if picture.place is not None:
            write_geotiffs(lambda kind: self._output(stage, index, kind), prediction, self.classes, picture.place)
        classes, entropy = prediction.counted
        row: dict[str, Any] = {
            "image": relative.as_posix(),
            "pixels": np.bincount(classes.ravel(), minlength=len(self.classes)).tolist(),
            "entropy": float(entropy.mean()) if entropy.size else 0.0,
        }
        table = None if self.labels is None else self.labels.confusion(relative, prediction.classes, picture.valid)
        if table is not None:
            row["confusion"] = table
        self.work.add_row(row_of or stage, row)

    @torch.no_grad()
    def tables(self, forward: Forward) -> list[NDArray[np.int64]]:
        """(C, C) pixels by label and prediction of every labelled image, in order.

        Args:
            forward: a network, from images as it sees them.
        """
        found = []
        for index, relative in enumerate(self.folder.relative):
            if self.labels is None or relative not in self.labels.files:
                continue
            picture = self.folder.picture(index)
            logits = forward(self.folder.seen(index, picture)[None])
            size = (picture.values.shape[0], picture.values.shape[1])
            predicted = upsampled(logits, size, self.align_corners)[0].argmax(0).to(torch.uint8).cpu().numpy()
            found.append(np.asarray(self.labels.confusion(relative, predicted, picture.valid), np.int64))
        return found

    def copy(self, stage: str, other: str, index: int) -> None:
        """An image's files of one stage as those of another."""
        for kind in [f"{kind}.png" for kind in KINDS] + [f"{kind}.tif" for kind in GEOTIFFS]:
            before, place = self._output(stage, index, kind), self._output(other, index, kind)
            if kind.endswith(".png") or before.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(place, before.read_bytes())

    def file(self, stage: str, index: int, kind: str) -> Path:
        """Where an image's picture of a kind is written to."""
        return self._output(stage, index, f"{kind}.png")

    def _output(self, stage: str, index: int, kind: str) -> Path:
        return output_path(self.work.out / stage, self.folder.names[index], kind)
