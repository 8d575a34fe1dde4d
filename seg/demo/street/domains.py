"""The two looks of the street world: plain numbers, one frozen dataclass per domain.

Colours are RGB in 0 to 255, lengths in metres, camera numbers in fractions of the image width.
"""

from __future__ import annotations

from dataclasses import dataclass

Color = tuple[float, float, float]


@dataclass(frozen=True)
class StreetPalette:
    """Base colours; every drawn object varies around one of them."""

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


@dataclass(frozen=True)
class Domain:
    """How one domain sees, fills and spoils the street."""

    code: int
    """Part of the random seed, so that no two domains draw the same streets."""
    palette: StreetPalette
    camera_height: float
    """Metres above the road."""
    focal: float
    """Focal length / image width."""
    horizon: float
    """Height of the horizon / image height, counted from the top."""
    vehicle_gap: float
    """Mean free metres between the vehicles of one lane; smaller is denser."""
    people_gap: float
    """Mean metres of pavement per group of people."""
    sunlight: float
    """0 is an overcast day without shadows, 1 a hard sun."""
    haze: float
    """Extinction per metre; 0.01 hides 63 % of an object 100 m away."""
    haze_color: Color
    texture: float
    """Strength of the surface textures; 0 is flat paint."""
    saturation: float
    contrast: float
    tint: Color
    """Gain of each colour channel, 1 is neutral."""
    blur: float
    """Standard deviation of the lens blur in pixels of the final image."""
    noise: float
    """Standard deviation of the sensor noise in grey levels."""
    vignette: float
    """Share of the light that is missing in the corners."""
    jpeg_quality: int | None
    """None stores the picture as drawn."""
    exposure_jitter: float
    """Standard deviation of the logarithm of each picture's exposure."""
    frame_border: bool
    """Whether a thin frame is marked as out of the region of interest, as Cityscapes does."""


GAME_STREET = Domain(
    code=0,
    palette=StreetPalette(
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
    ),
    camera_height=1.75,
    focal=0.92,
    horizon=0.40,
    vehicle_gap=17.0,
    people_gap=13.0,
    sunlight=0.9,
    haze=0.0015,
    haze_color=(196, 216, 238),
    texture=0.45,
    saturation=1.15,
    contrast=1.08,
    tint=(1.02, 1.0, 0.98),
    blur=0.0,
    noise=0.0,
    vignette=0.0,
    jpeg_quality=None,
    exposure_jitter=0.04,
    frame_border=False,
)

CAMERA_STREET = Domain(
    code=1,
    palette=StreetPalette(
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
    ),
    camera_height=1.35,
    focal=1.05,
    horizon=0.43,
    vehicle_gap=12.5,
    people_gap=9.0,
    sunlight=0.3,
    haze=0.005,
    haze_color=(206, 212, 214),
    texture=0.8,
    saturation=0.9,
    contrast=0.94,
    tint=(0.97, 1.01, 0.96),
    blur=0.4,
    noise=3.0,
    vignette=0.2,
    jpeg_quality=85,
    exposure_jitter=0.12,
    frame_border=True,
)
