"""What is written about an image is named by it, and no two images by one name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from seg.data.datasets import Sample
from seg.data.files import flat_names, output_names
from seg.data.labels import CITYSCAPES_CLASSES
from seg.training.run import TrainingRun

#: Few letters, so that names collide in every way: by stem, suffix, case, number behind them, length.
PART = st.sampled_from(["a", "A", "a_2", "b", "0", "0.png", "a_0", "val", "é" * 120, "é" * 119 + "x", "a" * 240])
SUFFIX = st.sampled_from([".png", ".jpg", ".PNG"])
IMAGE = st.builds(
    lambda folders, stem, suffix: "/".join([*folders, stem + suffix]), st.lists(PART, max_size=3), PART, SUFFIX
)
IMAGES = st.lists(IMAGE, min_size=1, max_size=12, unique=True)


@given(IMAGES)
def test_flat_names_share_no_file(images: list[str]) -> None:
    names = flat_names(images)
    entries = [entry.lower() for name in names for entry in (name, f"{name}.png")]
    assert len(set(entries)) == 2 * len(images)
    assert not any("/" in name for name in names)
    assert all(len(os.fsencode(f"{name}.png.tmp")) <= 255 for name in names)


@given(IMAGES)
def test_names_of_an_export_share_no_file(images: list[str]) -> None:
    names = output_names([Path(image) for image in images])
    assert len({str(name).lower() for name in names}) == len(images)
    assert all(len(os.fsencode(f"{name.name}_pred_labelIds.png.tmp")) <= 255 for name in names)


def test_a_stem_of_its_own_is_the_name() -> None:
    assert flat_names(["val/a/0.png", "val/b/0.png", "val/b/1.png"]) == ["val_a_0", "val_b_0", "1"]


class Images:
    """Three validation images, two of which share a stem."""

    names = ("val/a/0.png", "val/b/0.png", "val/c.png")

    def __len__(self) -> int:
        return 3

    def name(self, index: int) -> str:
        return self.names[index]


def test_every_shown_image_has_its_own_map(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(
        pair=SimpleNamespace(target_val=Images(), classes=CITYSCAPES_CLASSES), maps=3, path=tmp_path, folder=None,
        stop_if_asked=lambda: None, state=None, progress=None,
        _to_look_at=lambda _, sample, logits: (sample.image, None, logits),
    )  # fmt: skip
    show = TrainingRun._on_map_sample(run, write=True)
    for index in range(3):
        sample = Sample(Images.names[index], np.full((8, 8, 3), index, np.uint8), None)
        show(index, sample, torch.zeros(19, 8, 8))
    assert sorted(file.name for file in (tmp_path / "entropy_maps").glob("*.png")) == [
        "c.png",
        "val_a_0.png",
        "val_b_0.png",
    ]
    assert len(list((tmp_path / "entropy_maps").glob("*/image.png"))) == 3
