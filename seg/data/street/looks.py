"""How a street looks: the game's and the camera's look as plain numbers, and the looks between and beyond them.

Colours are RGB in 0 to 255, lengths in metres, camera numbers in fractions of the image width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Domain:
    """How one domain sees, fills and spoils the street."""

    code: int  # part of the random seed, so that no two domains draw the same streets
    # base colours; every drawn object varies around one of them
    sky_top: Color
    sky_low: Color
    road: Color
    marking: Color
    sidewalk: Color
    terrain: Color
    foliage: tuple[Color, ...]
    facades: tuple[Color, ...]
    walls: tuple[Color, ...]
    fences: tuple[Color, ...]
    pole: Color
    light_housing: Color
    camera_height: float  # metres above the road
    focal: float  # focal length / image width
    horizon: float  # height of the horizon / image height, counted from the top
    vehicle_gap: float  # mean free metres between the vehicles of one lane; smaller is denser
    people_gap: float  # mean metres of pavement per group of people
    sunlight: float  # 0 is an overcast day without shadows, 1 a hard sun
    haze: float  # extinction per metre; 0.01 hides 63 % of an object 100 m away
    haze_color: Color
    texture: float  # strength of the surface textures; 0 is flat paint
    saturation: float
    contrast: float
    tint: Color  # gain of each colour channel, 1 is neutral
    blur: float  # standard deviation of the lens blur in pixels of the final image
    noise: float  # standard deviation of the sensor noise in grey levels
    vignette: float  # share of the light that is missing in the corners
    jpeg_quality: int | None  # None stores the picture as drawn
    exposure_jitter: float  # standard deviation of the logarithm of each picture's exposure
    frame_border: bool  # whether a thin frame is marked as out of the region of interest, as Cityscapes does


GAME_STREET = Domain(
    code=0,
    sky_top=(84, 150, 228),
    sky_low=(186, 214, 240),
    road=(116, 116, 122),
    marking=(240, 238, 228),
    sidewalk=(186, 178, 166),
    terrain=(128, 170, 74),
    foliage=((64, 136, 48), (88, 150, 52), (48, 116, 58)),
    facades=((222, 192, 142), (182, 96, 74), (234, 224, 198), (146, 168, 182), (206, 150, 120), (160, 160, 166)),
    walls=((196, 184, 164), (170, 122, 98), (150, 150, 150)),
    fences=((96, 72, 50), (60, 66, 70), (200, 200, 196)),
    pole=(120, 124, 128),
    light_housing=(188, 150, 40),
    camera_height=1.75, focal=0.92, horizon=0.40, vehicle_gap=17.0, people_gap=13.0,
    sunlight=0.9, haze=0.0015, haze_color=(196, 216, 238),
    texture=0.45, saturation=1.15, contrast=1.08, tint=(1.02, 1.0, 0.98),
    blur=0.0, noise=0.0, vignette=0.0, jpeg_quality=None, exposure_jitter=0.04, frame_border=False,
)  # fmt: skip

CAMERA_STREET = Domain(
    code=1,
    sky_top=(126, 172, 222),
    sky_low=(202, 218, 234),
    road=(104, 101, 98),
    marking=(196, 192, 180),
    sidewalk=(142, 132, 126),
    terrain=(112, 116, 76),
    foliage=((66, 88, 56), (84, 96, 58), (58, 74, 58)),
    facades=((168, 156, 138), (138, 98, 84), (192, 184, 164), (124, 124, 122), (176, 142, 112), (148, 150, 142)),
    walls=((146, 138, 126), (132, 102, 88), (118, 116, 112)),
    fences=((80, 70, 58), (66, 72, 66), (152, 150, 142)),
    pole=(106, 108, 106),
    light_housing=(48, 52, 50),
    camera_height=1.35, focal=1.05, horizon=0.43, vehicle_gap=12.5, people_gap=9.0,
    sunlight=0.3, haze=0.005, haze_color=(206, 212, 214),
    texture=0.8, saturation=0.9, contrast=0.94, tint=(0.97, 1.01, 0.96),
    blur=0.4, noise=3.0, vignette=0.2, jpeg_quality=85, exposure_jitter=0.12, frame_border=True,
)  # fmt: skip

#: Quality that leaves a JPEG as drawn, for the domain that stores no JPEG.
_NO_JPEG = 100
#: Smallest and largest value of each number of a domain; colours are 0 to 255.
_LIMITS = {
    "camera_height": (0.8, 3.0), "focal": (0.6, 1.6), "horizon": (0.3, 0.55), "vehicle_gap": (6.0, 40.0),
    "people_gap": (5.0, 40.0), "sunlight": (0.0, 1.0), "haze": (0.0, 0.03), "texture": (0.0, 2.0),
    "saturation": (0.0, 2.0), "contrast": (0.3, 2.0), "blur": (0.0, 2.0), "noise": (0.0, 20.0), "vignette": (0.0, 0.8),
    "jpeg_quality": (20, _NO_JPEG), "exposure_jitter": (0.0, 0.5), "tint": (0.5, 1.5),
}  # fmt: skip


def target_look(seed: int = 0, gap: float = 1.0) -> Domain:
    """The target's look in the world of a seed.

    Every number of it lies on the line from the game, a gap of 0, through the demo's camera, 1, and up to 2. Worlds of
    another seed than 0 draw a factor from 0.5 to 1.5 for each number, so that their gaps differ in kind as well.
    """
    if (seed, gap) == (0, 1.0):
        return CAMERA_STREET
    # a stream of its own: the streets of a world are drawn from [seed, domain, split, index]
    rng = np.random.default_rng([seed, CAMERA_STREET.code, 2])
    look = _between(GAME_STREET, CAMERA_STREET, lambda: gap * float(rng.uniform(0.5, 1.5)) if seed else gap)
    return dataclasses.replace(look, code=CAMERA_STREET.code, frame_border=CAMERA_STREET.frame_border)


def _between(start: Domain, end: Domain, share: Callable[[], float]) -> Domain:
    """A look on the line from ``start`` through ``end``; ``share`` is drawn once a number or colour, in field order."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(start):
        first, second, limits = getattr(start, field.name), getattr(end, field.name), _LIMITS.get(field.name, (0, 255))
        if field.name == "jpeg_quality":
            changed[field.name] = round(_on_line(_NO_JPEG, second, share(), limits))
        elif isinstance(first, tuple) and isinstance(first[0], tuple):
            pairs = zip(first, second, strict=True)
            changed[field.name] = tuple(_on_line(a, b, share(), limits) for a, b in pairs)
        elif isinstance(first, tuple | float):
            changed[field.name] = _on_line(first, second, share(), limits)
    return dataclasses.replace(start, **changed)


def _on_line(first: Any, second: Any, share: float, limits: tuple[float, float]) -> Any:
    """A number, or a colour channel by channel."""
    if isinstance(first, tuple):
        return tuple(_on_line(a, b, share, limits) for a, b in zip(first, second, strict=True))
    return float(np.clip(first + share * (second - first), *limits))
