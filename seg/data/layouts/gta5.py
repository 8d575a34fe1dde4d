"""GTA5 (Richter et al., ECCV 2016), with ``images/NNNNN.png`` and ``labels/NNNNN.png``.

All of it is for training.
"""

from __future__ import annotations

from pathlib import Path

from seg.data.labels import CITYSCAPES_IDS
from seg.data.layouts.layout import Layout, Pairs, listed


def _pairs(root: Path, split: str) -> Pairs:
    return [(image, root / "labels" / image.name) for image in listed(root, "images", "*.png")]


GTA5 = Layout(_pairs, CITYSCAPES_IDS)
