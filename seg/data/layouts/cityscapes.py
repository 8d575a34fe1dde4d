"""Cityscapes (Cordts et al., CVPR 2016): ``leftImg8bit/SPLIT/CITY/…`` and ``gtFine/SPLIT/CITY/…_labelIds.png``."""

from __future__ import annotations

from pathlib import Path

from seg.data.labels import CITYSCAPES_IDS
from seg.data.layouts.layout import Layout, Pairs, listed


def _pairs(root: Path, split: str) -> Pairs:
    images = listed(root / "leftImg8bit" / split, "*/*_leftImg8bit.png", root, "cityscapes")
    labels = root / "gtFine" / split
    return [
        (
            image,
            labels
            / image.parent.name
            / image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png"),
        )
        for image in images
    ]


CITYSCAPES = Layout(_pairs, CITYSCAPES_IDS)
