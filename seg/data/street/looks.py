"""How a street looks: in the source, a game, in the target, to a camera, and between and beyond them, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Color = tuple[float, ...]  # RGB, 0 to 255

#: Every number of a look: the game's, the camera's, the smallest and the largest.
_NUMBERS = {
    "camera height": (1.75, 1.35, 0.8, 3.0),  # metres
    "focal": (0.92, 1.05, 0.6, 1.6),  # focal length / image width
    "horizon": (0.40, 0.43, 0.3, 0.55),  # its row / image height
    "vehicle gap": (17.0, 12.5, 6.0, 40.0),  # mean free metres between the vehicles of a lane
    "people gap": (13.0, 9.0, 5.0, 40.0),  # mean metres of pavement between people
    "sunlight": (0.9, 0.3, 0.0, 1.0),  # 0 is an overcast day without shadows
    "haze": (0.0015, 0.005, 0.0, 0.03),  # extinction per metre
    "texture": (0.45, 0.8, 0.0, 2.0),  # strength of the surfaces' textures
    "saturation": (1.15, 0.9, 0.0, 2.0),
    "contrast": (1.08, 0.94, 0.3, 2.0),
    "blur": (0.0, 0.4, 0.0, 2.0),  # standard deviation in pixels
    "noise": (0.0, 3.0, 0.0, 20.0),  # standard deviation in grey levels
    "vignette": (0.0, 0.2, 0.0, 0.8),  # share of the light that is missing in the corners
    "jpeg quality": (100.0, 85.0, 20.0, 100.0),  # 100 leaves a picture as drawn
    "exposure": (0.04, 0.12, 0.0, 0.5),  # standard deviation of the logarithm of a picture's
}
#: Alternative colours of what looks otherwise in the game and to the camera.
_PAINTS: dict[str, tuple[tuple[Color, ...], tuple[Color, ...]]] = {
    "sky": (((84, 150, 228),), ((126, 172, 222),)),
    "low sky": (((186, 214, 240),), ((202, 218, 234),)),
    "road": (((118, 116, 120),), ((101, 102, 94),)),
    "marking": (((244, 238, 224),), ((190, 194, 174),)),
    "pavement": (((188, 178, 164),), ((138, 133, 121),)),
    "lawn": (((128, 170, 74),), ((109, 117, 73),)),
    "leaves": (((64, 136, 48), (88, 150, 52), (48, 116, 58)), ((64, 89, 54), (81, 97, 56), (56, 75, 56))),
    "house": (((224, 192, 140), (184, 96, 74), (234, 224, 198), (150, 166, 180)),
              ((163, 158, 134), (134, 99, 82), (186, 186, 158), (122, 125, 118))),
    "wall": (((196, 184, 164), (170, 122, 98), (150, 150, 150)), ((142, 139, 121), (128, 103, 85), (114, 117, 108))),
    "fence": (((96, 72, 50), (60, 66, 70), (200, 200, 196)), ((78, 71, 56), (64, 73, 64), (147, 151, 136))),
    "pole": (((120, 124, 128),), ((103, 109, 102),)),
    "housing": (((188, 150, 40),), ((47, 53, 48),)),
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How one domain sees, fills and spoils the street."""

    code: int  #: 0 is the source, 1 the target; part of the random seed, so that the two have no street in common
    numbers: dict[str, float]
    paints: dict[str, tuple[Color, ...]]


SOURCE_LOOK = Look(0, {name: row[0] for name, row in _NUMBERS.items()}, {name: row[0] for name, row in _PAINTS.items()})


def target_look(seed: int = 0, gap: float = 1.0) -> Look:
    """The target's look in the world of a seed.

    Every number of it lies on the line from the game, a gap of 0, through the demo's camera, 1, and up to 2. Worlds of
    another seed than 0 draw a factor from 0.5 to 1.5 for each number, so that their gaps differ in kind as well.
    """
    rng = np.random.default_rng([seed, 1, 2])  # a stream apart from the streets'

    def between(game: Sequence[float], camera: Sequence[float], low: float, high: float) -> Color:
        share = gap * rng.uniform(0.5, 1.5) if seed else gap
        return tuple((np.add(game, share * np.subtract(camera, game))).clip(low, high).tolist())

    numbers = {name: between([game], [camera], *limits)[0] for name, (game, camera, *limits) in _NUMBERS.items()}
    pairs = {name: zip(*colors, strict=True) for name, colors in _PAINTS.items()}
    return Look(1, numbers, {name: tuple(between(*pair, 0, 255) for pair in pairs[name]) for name in pairs})
