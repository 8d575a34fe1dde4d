"""What lines the street: facades, garden walls, fences and parks, one segment after the other.

A segment lies along the plane ``x = edge``, negative on the left, from depth ``near`` to ``far``.
"""

from __future__ import annotations

import numpy as np

from seg.demo.street.canvas import Canvas, panel, panels
from seg.demo.street.figures import draw_tree
from seg.demo.street.looks import Color

#: Metres; leaves nearer than this would hang over the picture as huge flat discs.
CLOSEST_LEAVES = 4.5


def vary(rng: np.random.Generator, color: Color, spread: float) -> Color:
    """The colour with a random brightness and a smaller random hue, ``spread`` in grey levels."""
    gain = rng.normal(0, spread)
    red, green, blue = (value + gain + shift for value, shift in zip(color, rng.normal(0, spread / 2, 3), strict=True))
    return float(red), float(green), float(blue)


def pick(rng: np.random.Generator, colors: tuple[Color, ...], spread: float) -> Color:
    """One of the colours, varied."""
    return vary(rng, colors[rng.integers(len(colors))], spread)


def upright(edge: float, near: float, far: float, low: float, high: float) -> np.ndarray:
    """A face (4, 3) of the plane ``x = edge``: near bottom, far bottom, far top, near top."""
    return np.asarray([(edge, low, near), (edge, low, far), (edge, high, far), (edge, high, near)])


def _side_gain(canvas: Canvas, edge: float) -> float:
    return canvas.light.left if edge > 0 else canvas.light.right


def _window_grid(columns: int, rows: int, wide: float, tall: float, low: float) -> np.ndarray:
    """Window panes as fractions of a face above its ground floor, (columns * rows, 4, 2)."""
    across = (np.arange(columns) + 0.5) / columns
    up = low + (1 - low) * (np.arange(rows) + 0.5) / rows
    middle = np.stack(np.meshgrid(across, up), -1).reshape(-1, 1, 2)
    half = np.asarray((wide / columns / 2, tall * (1 - low) / rows / 2))
    return np.asarray(middle + np.asarray([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half)


def draw_building(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """A house front with windows, a ground floor with doors or shop windows, and a roof."""
    rng = canvas.rng
    paint = pick(rng, canvas.domain.palette.facades, 12)
    storeys = int(rng.integers(3, 7))
    height = 3.1 * storeys + rng.uniform(0.2, 1.2)
    gain = _side_gain(canvas, edge)
    outward = 1.0 if edge > 0 else -1.0
    face = upright(edge, near, far, 0.0, height)
    outline = [(0, 0), (9, 0), (9, height), (6, height + 2.6), (3, height + 2.6), (0, height)]
    gable = [(edge + outward * away, up, near) for away, up in outline]
    canvas.fill(gable, "building", paint, canvas.light.front * 0.9)
    roof = np.asarray([face[3], face[2], face[2] + (3 * outward, 2.6, 0), face[3] + (3 * outward, 2.6, 0)])
    canvas.fill(roof, "building", vary(rng, (132, 74, 58), 14), gain)
    canvas.fill(face, "building", paint, gain)
    canvas.fill(panel(face, (0, 1), (0, 2.9 / height)), None, vary(rng, paint, 22), gain)
    columns = max(2, round((far - near) / rng.uniform(2.2, 3.2)))
    grid = _window_grid(columns, storeys - 1, rng.uniform(0.4, 0.6), rng.uniform(0.5, 0.66), 3.0 / height)
    panes = panels(face, grid)
    pane = vary(rng, (66, 78, 92), 14)
    canvas.fill_many(panes + np.asarray((0, -0.12, 0)), None, vary(rng, paint, 30), gain)
    canvas.fill_many(panes, None, pane)
    bright = panes[rng.random(len(panes)) < 0.25]
    canvas.fill_many(bright, None, (172, 186, 196))
    _ground_floor(canvas, face, height, gain)
    canvas.fill(panel(face, (0, 1), (1 - 0.35 / height, 1)), None, vary(rng, paint, 20), gain * 1.1)


def _ground_floor(canvas: Canvas, face: np.ndarray, height: float, gain: float) -> None:
    """Shop windows below an awning, or a door between windows."""
    rng = canvas.rng
    if rng.random() < 0.45:
        shop = _window_grid(int(rng.integers(2, 4)), 1, 0.8, 0.95, 0.0) * (1, 2.4 / height) + (0, 0.1 / height)
        canvas.fill_many(panels(face, shop), None, (60, 68, 76))
        sign = pick(rng, ((176, 40, 44), (36, 84, 150), (224, 190, 80), (50, 110, 70)), 12)
        canvas.fill(panel(face, (0.03, 0.97), (2.5 / height, 3.1 / height)), None, sign, gain)
        return
    door = float(rng.uniform(0.1, 0.7))
    canvas.fill(panel(face, (door, door + 0.12), (0, 2.3 / height)), None, vary(rng, (84, 62, 48), 16))
    row = _window_grid(4, 1, 0.45, 0.5, 0.0) * (1, 2.9 / height)
    canvas.fill_many(panels(face, row), None, (66, 78, 92))


def draw_hedge(canvas: Canvas, edge: float, near: float, far: float, height: float) -> None:
    """A belt of bushes and trees behind a fence, with a ragged top."""
    rng = canvas.rng
    foliage = pick(rng, canvas.domain.palette.foliage, 7)
    gain = 0.5 + 0.5 * _side_gain(canvas, edge)
    canvas.fill(upright(edge, near, far, 0.0, height * 0.8), "vegetation", foliage, 0.72 * gain)
    # Small on the canvas, a belt needs fewer clusters to look ragged.
    count = int(np.clip(300.0 * (far - near) / (near + far), 12, 60))
    depths = rng.uniform(max(near, CLOSEST_LEAVES), far, count)
    heights = rng.uniform(0.1, 0.95, count) * height
    order = np.argsort(-depths)
    for depth, up in zip(depths[order].tolist(), heights[order].tolist(), strict=True):
        size = height * rng.uniform(0.07, 0.2)
        tone = gain * (0.72 + 0.4 * up / height + rng.normal(0, 0.09))
        canvas.disc((edge, up, depth), (size * 1.2, size), "vegetation", foliage, tone)


def draw_walled_garden(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """Trees behind a wall."""
    palette = canvas.domain.palette
    behind = edge + (3.0 if edge > 0 else -3.0)
    draw_hedge(canvas, behind, near, far + 4, canvas.rng.uniform(4, 8))
    paint, gain, height = pick(canvas.rng, palette.walls, 10), _side_gain(canvas, edge), canvas.rng.uniform(1.7, 2.7)
    face = upright(edge, near, far, 0.0, height)
    canvas.fill(face, "wall", paint, gain)
    for row in np.arange(0.25, 1.0, 0.25):
        canvas.fill(panel(face, (0, 1), (row, row + 0.03)), None, paint, gain * 0.78)
    canvas.fill(panel(face, (0, 1), (0.92, 1.0)), None, paint, gain * 1.15)


def draw_fenced_garden(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """A low hedge or a lawn behind a fence of slats; the gaps carry the fence's label too."""
    palette = canvas.domain.palette
    behind = edge + (2.0 if edge > 0 else -2.0)
    draw_hedge(canvas, behind, near, far + 3, canvas.rng.uniform(3.5, 6.5))
    paint, gain, height = pick(canvas.rng, palette.fences, 10), _side_gain(canvas, edge), canvas.rng.uniform(1.3, 2.0)
    face = upright(edge, near, far, 0.0, height)
    canvas.fill(face, "fence", pick(canvas.rng, palette.foliage, 8), 0.7)
    slats = _window_grid(max(4, round((far - near) / 0.45)), 1, 0.62, 0.94, 0.0)
    canvas.fill_many(panels(face, slats), None, paint, gain)
    for row in (0.2, 0.8):
        canvas.fill(panel(face, (0, 1), (row, row + 0.09)), None, paint, gain * 0.85)


def draw_park(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """A lawn that ends at bushes, with a few trees."""
    rng = canvas.rng
    outward = 1.0 if edge > 0 else -1.0
    back = edge + 9 * outward
    draw_hedge(canvas, back, near, far + 6, rng.uniform(4, 8))
    lawn = [(edge, 0.0, near), (edge, 0.0, far), (back, 0.0, far), (back, 0.0, near)]
    canvas.fill(lawn, "terrain", vary(rng, canvas.domain.palette.terrain, 8), canvas.light.top)
    for depth in sorted(rng.uniform(max(near, CLOSEST_LEAVES), far, 3).tolist(), reverse=True):
        place = edge + outward * rng.uniform(1.5, 7.0)
        draw_tree(canvas, pick(rng, canvas.domain.palette.foliage, 10), place, depth, rng.uniform(5, 9))


SIDES = {"building": draw_building, "wall": draw_walled_garden, "fence": draw_fenced_garden, "park": draw_park}
