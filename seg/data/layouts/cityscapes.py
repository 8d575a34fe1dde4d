"""Cityscapes (Cordts et al., CVPR 2016): ``leftImg8bit/SPLIT/CITY/…`` and ``gtFine/SPLIT/CITY/…_labelIds.png``."""

from __future__ import annotations

from pathlib import Path

from seg.data.labels import CITYSCAPES_IDS
from seg.data.layouts.layout import Layout, Pairs, listed


def _pairs(root: Path, split: str) -> Pairs:
    pairs = []
    for image in listed(root, f"leftImg8bit/{split}", "*/*_leftImg8bit.png"):
        frame = image.name.removesuffix("_leftImg8bit.png")
        city = root / "gtFine" / split / image.parent.name
        pairs.append((image, city / f"{frame}_gtFine_labelIds.png"))
    return pairs


CITYSCAPES = Layout(_pairs, CITYSCAPES_IDS)
