"""Vehicles of the street world: cars, trucks, buses and trams, built from shaded blocks.

Every vehicle stands along the street at ``(x, z)``: the middle of the end that the camera sees.
"""

from __future__ import annotations

import numpy as np

from seg.data.street.canvas import Canvas, Pair, panel, panels
from seg.data.street.figures import window_grid
from seg.data.street.looks import Color

GLASS: Color = (44, 54, 64)
RUBBER: Color = (26, 26, 28)
REAR_LAMP: Color = (196, 24, 22)
HEAD_LAMP: Color = (250, 244, 214)
CAR_PAINTS: tuple[Color, ...] = (
    (232, 232, 230), (176, 180, 184), (98, 102, 108), (30, 30, 34), (160, 24, 26), (30, 62, 140), (40, 92, 64),
    (206, 164, 60), (120, 84, 58), (92, 150, 190)
)  # fmt: skip
CARGO_PAINTS: tuple[Color, ...] = ((226, 224, 216), (190, 120, 50), (60, 96, 150), (150, 150, 150))
BUS_PAINTS: tuple[Color, ...] = ((224, 176, 40), (200, 44, 40), (60, 130, 180), (230, 228, 220))
TRAM_PAINTS: tuple[Color, ...] = ((232, 226, 210), (222, 190, 60), (150, 190, 120))


class _Block:
    """The faces of a block that may taper: ``near``, ``side`` (the one in view) and ``top``."""

    def __init__(self, x: float, widths: Pair, ys: Pair, bottom_z: Pair, top_z: Pair | None = None) -> None:
        rings = []
        for width, y, (near, far) in zip(widths, ys, (bottom_z, top_z or bottom_z), strict=True):
            left, right = x - width / 2, x + width / 2
            rings.append(((left, y, near), (right, y, near), (right, y, far), (left, y, far)))
        low, high = np.asarray(rings, np.float64)
        self.near = np.stack((low[0], low[1], high[1], high[0]))
        self.top = high
        # A block right of the camera shows its left side and the other way round.
        inner, outer = (0, 3) if x > 0 else (1, 2)
        self.side = np.stack((low[inner], low[outer], high[outer], high[inner]))
        self.faces_left = x > 0

    def paint(self, canvas: Canvas, label: str, color: Color) -> None:
        """Paint top, side and near face, each in its own light."""
        light = canvas.light
        canvas.fill(self.top, label, color, light.top)
        canvas.fill(self.side, label, color, light.left if self.faces_left else light.right)
        canvas.fill(self.near, label, color, light.front)


def _ground_shadow(canvas: Canvas, x: float, z: float, width: float, length: float) -> None:
    half = 0.58 * width
    near, far = z - 0.25, z + length
    canvas.darken([(x - half, 0, near), (x + half, 0, near), (x + half, 0, far), (x - half, 0, far)], 0.5)


def _wheels(canvas: Canvas, block: _Block, label: str, radius: float, spots: tuple[float, ...]) -> None:
    """Discs on the visible side at fractions of its length, and two tyres under the near face."""
    angles = np.linspace(0, 2 * np.pi, 9)[:-1]
    start, end = block.side[0], block.side[1]
    for spot in spots:
        hub = start + (end - start) * spot
        ring = np.zeros((8, 3))
        ring[:, 0] = hub[0]
        ring[:, 1] = radius + radius * np.sin(angles)
        ring[:, 2] = hub[2] + radius * np.cos(angles)
        canvas.fill(ring, label, RUBBER)
        canvas.fill(ring * 0.5 + ring.mean(0) * 0.5, None, (120, 120, 122))
    left, right = block.near[0], block.near[1]
    top = float(left[1]) + 0.05
    for side, inward in ((left[0], 0.22), (right[0], -0.22)):
        tyre = [(side, 0, left[2]), (side + inward, 0, left[2]), (side + inward, top, left[2]), (side, top, left[2])]
        canvas.fill(tyre, label, RUBBER)


def _lamps(canvas: Canvas, face: np.ndarray, up: Pair, oncoming: bool) -> None:
    color = HEAD_LAMP if oncoming else REAR_LAMP
    for across in ((0.04, 0.2), (0.8, 0.96)):
        canvas.fill(panel(face, across, up), None, color)


def draw_car(canvas: Canvas, x: float, z: float, oncoming: bool) -> None:
    """A saloon, estate or van of a random paint."""
    rng = canvas.rng
    paint = CAR_PAINTS[rng.integers(len(CAR_PAINTS))]
    is_van = rng.random() < 0.18
    width, length = rng.uniform(1.7, 1.9), rng.uniform(3.9, 4.7)
    roof = rng.uniform(1.8, 2.0) if is_van else rng.uniform(1.4, 1.6)
    waist = roof * rng.uniform(0.56, 0.62)
    boot = 0.1 if is_van else rng.uniform(0.1, 0.8)
    _ground_shadow(canvas, x, z, width, length)
    body = _Block(x, (width, width * 0.96), (0.24, waist), (z, z + length))
    sill, top = (z + boot, z + length * 0.76), (z + boot + 0.35, z + length * 0.62)
    cabin = _Block(x, (width * 0.94, width * 0.74), (waist, roof), sill, top)
    body.paint(canvas, "car", paint)
    _wheels(canvas, body, "car", 0.32, (0.2, 0.8))
    cabin.paint(canvas, "car", paint)
    for across in ((0.06, 0.46), (0.52, 0.94)):
        canvas.fill(panel(cabin.side, across, (0.12, 0.86)), None, GLASS)
    canvas.fill(panel(cabin.near, (0.08, 0.92), (0.12, 0.88)), None, GLASS, 1.15)
    canvas.fill(panel(body.near, (0.0, 1.0), (0.0, 0.24)), None, (58, 58, 60))
    canvas.fill(panel(body.near, (0.37, 0.63), (0.3, 0.46)), None, (226, 226, 220))
    _lamps(canvas, body.near, (0.55, 0.8), oncoming)


def draw_truck(canvas: Canvas, x: float, z: float, oncoming: bool) -> None:
    """A box lorry: a chassis with a cargo box, and a cab where its front is seen."""
    cargo = CARGO_PAINTS[canvas.rng.integers(len(CARGO_PAINTS))]
    paint = CAR_PAINTS[canvas.rng.integers(len(CAR_PAINTS))]
    length, height = canvas.rng.uniform(6.0, 8.5), canvas.rng.uniform(2.9, 3.5)
    _ground_shadow(canvas, x, z, 2.4, length)
    cab_length = 1.9 if oncoming else 0.0
    chassis = _Block(x, (2.2, 2.2), (0.5, 1.0), (z, z + length))
    box = _Block(x, (2.45, 2.45), (0.95, height), (z + cab_length, z + length))
    chassis.paint(canvas, "truck", (52, 52, 54))
    _wheels(canvas, chassis, "truck", 0.48, (0.14, 0.72, 0.88))
    box.paint(canvas, "truck", cargo)
    if oncoming:
        cab = _Block(x, (2.3, 2.2), (0.5, height * 0.82), (z, z + cab_length), (z + 0.2, z + cab_length))
        cab.paint(canvas, "truck", paint)
        canvas.fill(panel(cab.near, (0.07, 0.93), (0.5, 0.88)), None, GLASS)
        canvas.fill(panel(cab.side, (0.15, 0.75), (0.52, 0.86)), None, GLASS)
        _lamps(canvas, cab.near, (0.08, 0.2), oncoming)
        return
    canvas.fill(panel(box.near, (0.485, 0.515), (0.02, 0.98)), None, (70, 70, 70))
    canvas.fill(panel(box.near, (0.0, 1.0), (0.0, 0.05)), None, (70, 70, 70))
    canvas.fill(panel(box.side, (0.15, 0.85), (0.4, 0.62)), None, paint)
    _lamps(canvas, chassis.near, (0.3, 0.8), oncoming)


def draw_bus(canvas: Canvas, x: float, z: float, oncoming: bool) -> None:
    """A city bus: one bright box with a row of windows and a destination sign."""
    paint = BUS_PAINTS[canvas.rng.integers(len(BUS_PAINTS))]
    length = canvas.rng.uniform(9.5, 12.5)
    _ground_shadow(canvas, x, z, 2.5, length)
    body = _Block(x, (2.5, 2.45), (0.34, 3.05), (z, z + length))
    body.paint(canvas, "bus", paint)
    _wheels(canvas, body, "bus", 0.48, (0.22, 0.74))
    canvas.fill_many(panels(body.side, window_grid(7, 1, 0.84, 1, 0) * (1, 0.37) + (0, 0.45)), None, GLASS)
    canvas.fill(panel(body.near, (0.07, 0.93), (0.4, 0.8)), None, GLASS, 1.2)
    canvas.fill(panel(body.near, (0.2, 0.8), (0.86, 0.96)), None, (240, 150, 30) if oncoming else (40, 40, 40))
    _lamps(canvas, body.near, (0.08, 0.2), oncoming)


def draw_tram(canvas: Canvas, x: float, z: float, oncoming: bool) -> None:
    """A tram of two cars: long, light, with a dark belt of glass and a coloured skirt."""
    paint = TRAM_PAINTS[canvas.rng.integers(len(TRAM_PAINTS))]
    skirt = ((170, 36, 40), (36, 70, 130), (40, 100, 70))[canvas.rng.integers(3)]
    for start, length in ((z + 13.0, 12.0), (z, 12.6)):
        nose = 0.7 if start == z else 0.0
        body = _Block(x, (2.5, 2.2), (0.3, 3.5), (start, start + length), (start + nose, start + length))
        body.paint(canvas, "train", paint)
        canvas.fill(panel(body.side, (0.0, 1.0), (0.0, 0.3)), None, skirt)
        canvas.fill(panel(body.near, (0.0, 1.0), (0.0, 0.3)), None, skirt)
        canvas.fill_many(panels(body.side, window_grid(6, 1, 0.84, 1, 0) * (1, 0.38) + (0, 0.42)), None, GLASS)
        canvas.fill(panel(body.near, (0.08, 0.92), (0.4, 0.84)), None, GLASS)
    canvas.fill(panel(body.near, (0.3, 0.7), (0.88, 0.97)), None, (250, 190, 60))
    _lamps(canvas, body.near, (0.14, 0.24), oncoming)
    canvas.bar((x, 3.5, z + 6), (x - 0.5, 4.6, z + 6), 0.08, "train", (60, 60, 62))
