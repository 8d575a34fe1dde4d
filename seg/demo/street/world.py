"""The street world: an endless supply of labelled streets in two looks.

One scene grammar (``scene``) draws both domains; ``domains`` says how each of them
sees it. A picture depends on nothing but its arguments and ``WORLD_VERSION``.
"""

from __future__ import annotations

import numpy as np

from seg.demo.street.domains import CAMERA_STREET, GAME_STREET, Domain
from seg.demo.street.render import OVERSAMPLING, finish
from seg.demo.street.scene import draw_scene

WORLD_VERSION = 1
"""Raise it with every change that alters a single pixel: stored pairs are then drawn anew."""

SPLITS = {"train": 0, "val": 1}

__all__ = ["CAMERA_STREET", "GAME_STREET", "SPLITS", "WORLD_VERSION", "Domain", "draw_street"]


def draw_street(
    domain: Domain, split: str, index: int, *, seed: int = 0, size: tuple[int, int] = (192, 96), finer: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one street.

    Args:
        domain: the look, such as ``GAME_STREET`` or ``CAMERA_STREET``.
        split: ``"train"`` or ``"val"``; the two never share a scene.
        index: number of the scene, from 0.
        seed: seed of the whole data set, from 0.
        size: (width, height) in pixels; at least (32, 16). Twice as wide as high looks best.
        finer: how many times as wide and as high the same street is drawn, for people to look at.

    Returns:
        The picture, (height, width, 3) RGB uint8, and its Cityscapes label ids, (height, width)
        uint8, both ``finer`` times as large. They are the same bytes for the same arguments.

    Raises:
        ValueError: for an unknown split or a size too small for a street.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: the street world has {', '.join(SPLITS)}")
    if size[0] < 32 or size[1] < 16:
        raise ValueError(f"size {size} is too small for a street: at least (32, 16)")
    rng = np.random.default_rng([seed, domain.code, SPLITS[split], index])
    canvas = draw_scene(domain, rng, index, (size[0] * OVERSAMPLING, size[1] * OVERSAMPLING), finer)
    return finish(canvas, domain, rng)
