"""How the target of a street world looks: the demo's camera, or another one between the game and far beyond it."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from seg.demo.street.domains import CAMERA_STREET, GAME_STREET, Domain, StreetPalette

LARGEST_GAP = 2.0
Numbers = TypeVar("Numbers", Domain, StreetPalette)
#: Quality that leaves a JPEG as drawn, for the domain that stores no JPEG.
_NO_JPEG = 100
#: What a number of a domain may be, where going beyond the camera could leave sense behind.
_LIMITS = {
    "camera_height": (0.8, 3.0),
    "focal": (0.6, 1.6),
    "horizon": (0.3, 0.55),
    "vehicle_gap": (6.0, 40.0),
    "people_gap": (5.0, 40.0),
    "sunlight": (0.0, 1.0),
    "haze": (0.0, 0.03),
    "texture": (0.0, 2.0),
    "saturation": (0.0, 2.0),
    "contrast": (0.3, 2.0),
    "blur": (0.0, 2.0),
    "noise": (0.0, 20.0),
    "vignette": (0.0, 0.8),
    "jpeg_quality": (20, _NO_JPEG),
    "exposure_jitter": (0.0, 0.5),
    "tint": (0.5, 1.5),
}
_COLOR = (0.0, 255.0)


def target_look(seed: int = 0, gap: float = 1.0) -> Domain:
    """The target's look in the world of a seed.

    Every number of it lies on the line from the game through the demo's camera: at the game for a gap of 0, at the
    camera for 1, beyond for more. Worlds of another seed than 0 draw a factor from 0.5 to 1.5 for each number, so that
    their gaps differ in kind as well: here colours, there haze or noise.

    Args:
        seed: of the world; 0 with a gap of 1 is the demo's camera itself.
        gap: 0 to 2.

    Raises:
        ValueError: a gap out of this range.
    """
    if not 0.0 <= gap <= LARGEST_GAP:
        raise ValueError(f"gap must be from 0 to {LARGEST_GAP:g}, got {gap:g}")
    if (seed, gap) == (0, 1.0):
        return CAMERA_STREET
    # a stream of its own: the streets of a world are drawn from [seed, domain, split, index]
    rng = np.random.default_rng([seed, CAMERA_STREET.code, 2])
    return dataclasses.replace(
        _between(GAME_STREET, CAMERA_STREET, _Factors(rng if seed else None, gap)),
        code=CAMERA_STREET.code, frame_border=CAMERA_STREET.frame_border,
    )  # fmt: skip


class _Factors:
    """How far to go from one number to the other; one draw a number, in the order of the fields."""

    def __init__(self, rng: np.random.Generator | None, gap: float) -> None:
        self._rng = rng
        self._gap = gap

    def draw(self) -> float:
        return self._gap * (1.0 if self._rng is None else float(self._rng.uniform(0.5, 1.5)))


def _between(start: Numbers, end: Numbers, factors: _Factors) -> Numbers:
    """A dataclass of numbers, colours and dataclasses of these, on the line from ``start`` through ``end``."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(start):
        first, second = getattr(start, field.name), getattr(end, field.name)
        limits = _LIMITS.get(field.name, _COLOR)
        if dataclasses.is_dataclass(first):
            changed[field.name] = _between(first, second, factors)
        elif field.name == "jpeg_quality":
            changed[field.name] = round(_on_line(_NO_JPEG, second, factors.draw(), limits))
        elif isinstance(first, tuple) and isinstance(first[0], tuple):
            changed[field.name] = tuple(
                _color(a, b, factors.draw(), limits) for a, b in zip(first, second, strict=True)
            )
        elif isinstance(first, tuple):
            changed[field.name] = _color(first, second, factors.draw(), limits)
        elif isinstance(first, float):
            changed[field.name] = _on_line(first, second, factors.draw(), limits)
    return dataclasses.replace(start, **changed)


def _color(
    first: tuple[float, ...], second: tuple[float, ...], share: float, limits: tuple[float, float]
) -> tuple[float, ...]:
    return tuple(_on_line(a, b, share, limits) for a, b in zip(first, second, strict=True))


def _on_line(first: float, second: float, share: float, limits: tuple[float, float]) -> float:
    return float(np.clip(first + share * (second - first), *limits))
