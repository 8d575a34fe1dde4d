"""Predictions as label ids, in Cityscapes' submission format."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dem_apps.errors import InputError
from dem_apps.runtime.files import write_new
from seg.data.datasets import Sample
from seg.data.files import cut
from seg.data.labels import IGNORE_INDEX, ClassSet
from seg.data.pixel_format import resized_mask


class PredictionWriter:
    """Writes predictions as ``<image's name>_pred_labelIds.png``, all in one folder.

    Args:
        folder: made if it is missing.
        classes: whose ids the files hold.

    Raises:
        InputError: the folder holds predictions already.
    """

    def __init__(self, folder: Path, classes: ClassSet) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.glob("*_pred_labelIds.png"))):
            what = "holds predictions already, which are never overwritten" if folder.is_dir() else "is no folder"
            raise InputError(f"--save-predictions: {folder} {what}; give a new folder")
        self._folder = folder
        self._ids = torch.from_numpy(classes.to_ids())
        self._written: dict[str, str] = {}

    def __call__(self, _index: int, sample: Sample, logits: Tensor) -> None:
        """Write the prediction of an image's (C, H, W) logits.

        Raises:
            InputError: another image's prediction has the same name.
        """
        name = f"{cut(Path(sample.name).stem)}_pred_labelIds.png"
        if name in self._written:
            raise InputError(
                f"--save-predictions: {self._written[name]} and {sample.name} would both become {name}; "
                "give every image a name of its own"
            )
        self._written[name] = sample.name
        self._folder.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        ids = self._ids[logits.argmax(0).cpu()].numpy()
        if sample.valid is not None:
            ids[~resized_mask(sample.valid, ids.shape[::-1])] = IGNORE_INDEX
        Image.fromarray(ids).save(content, format="PNG")
        # another command may write to the folder meanwhile
        write_new(self._folder / name, content.getvalue(), "--save-predictions")
