"""What stands along the street: people, two-wheelers, furniture and trees, and the segments that line it.

Figures face the camera. A segment lies along the plane ``x = edge``, negative on the left, from ``near`` to ``far``.
"""

from __future__ import annotations

import numpy as np

from seg.data.street.canvas import Canvas, panel, panels
from seg.data.street.looks import Color

SKIN: tuple[Color, ...] = ((226, 182, 150), (196, 146, 110), (140, 96, 68), (92, 62, 46))
CLOTHES: tuple[Color, ...] = (
    (36, 40, 52), (60, 62, 66), (150, 40, 44), (54, 84, 140), (206, 200, 190), (74, 96, 66), (190, 150, 60),
    (120, 92, 120), (120, 86, 60)
)  # fmt: skip
RUBBER: Color = (40, 40, 42)
SIGN_BLUE: Color = (32, 84, 168)
SIGN_RED: Color = (196, 32, 36)
SIGN_WHITE: Color = (236, 236, 230)
SIGN_YELLOW: Color = (240, 192, 40)
#: Outlines of signs around their middle, in units of their half width: warning, information, direction, order.
SIGN_OUTLINES = (
    [(-1, -0.8), (1, -0.8), (0, 0.95)],
    [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    [(-1.7, -0.6), (1.7, -0.6), (1.7, 0.6), (-1.7, 0.6)],
    [(np.cos(angle), np.sin(angle)) for angle in np.linspace(0, 2 * np.pi, 13)[:-1]],
)
#: Metres; leaves nearer than this would hang over the picture as huge flat discs.
CLOSEST_LEAVES = 4.5


def _pick(rng: np.random.Generator, colors: tuple[Color, ...]) -> Color:
    return colors[rng.integers(len(colors))]


def _flat(x: float, z: float, outline: object) -> np.ndarray:
    """An outline of (right, up) metres as world points of an upright plane at (x, z)."""
    points = np.asarray(outline, np.float64)
    return np.column_stack((x + points[:, 0], points[:, 1], np.full(len(points), z)))


def draw_person(canvas: Canvas, x: float, z: float) -> None:
    """A standing or walking person of 1.1 to 1.9 m."""
    rng = canvas.rng
    tall = rng.uniform(1.1, 1.4) if rng.random() < 0.12 else rng.uniform(1.6, 1.9)
    top, bottom, skin = _pick(rng, CLOTHES), _pick(rng, CLOTHES), _pick(rng, SKIN)
    stride, lean = rng.uniform(0.02, 0.24), rng.uniform(-0.05, 0.05)
    canvas.darken(_flat(x, z, [(-0.3, 0), (0.3, 0), (0.35, 0.04), (-0.35, 0.04)]), 0.6)
    for foot, tone in ((-stride, 0.85), (stride, 1.0)):
        leg = [(foot - 0.1, 0), (foot + 0.1, 0), (0.17, 0.5 * tall), (-0.17, 0.5 * tall)]
        canvas.fill(_flat(x, z, leg), "person", bottom, tone * canvas.light.front)
    torso = [
        (-0.2, 0.46), (0.2, 0.46), (0.27 + lean, 0.8), (0.12 + lean, 0.86), (-0.12 + lean, 0.86), (-0.27 + lean, 0.8),
    ]  # fmt: skip
    canvas.fill(_flat(x, z, [(u, v * tall) for u, v in torso]), "person", top, canvas.light.front)
    for side in (-1, 1):
        hand = (x + side * rng.uniform(0.24, 0.36), 0.45 * tall, z)
        canvas.bar((x + side * 0.24, 0.8 * tall, z), hand, 0.1, "person", top, 0.9)
    canvas.disc((x + lean, 0.925 * tall, z), (0.105, 0.135), "person", skin)
    canvas.disc((x + lean, 0.96 * tall, z), (0.105, 0.085), None, (48, 38, 32))


def draw_bicycle(canvas: Canvas, x: float, z: float, turn: float) -> None:
    """A bicycle; ``turn`` is 1 seen from the side and near 0 seen from behind."""
    paint = _pick(canvas.rng, CLOTHES)
    reach, half = 0.54 * max(turn, 0.12), max(0.06, 0.34 * turn)
    for hub in (-reach, reach):
        # the label covers the disc, as annotators draw it, the picture its tyre
        canvas.disc((x + hub, 0.34, z), (half, 0.34), "bicycle", (34, 34, 36))
        canvas.disc((x + hub, 0.34, z), (half * 0.72, 0.34 * 0.72), None, (112, 110, 108))
    frame = [(-reach, 0.36), (-0.1 * turn, 0.3), (reach * 0.8, 0.8), (-0.3 * turn, 0.82)]
    canvas.fill(_flat(x, z, frame), "bicycle", paint, 0.8)
    for start, end in (((-reach, 0.36), (-0.2 * turn, 0.9)), ((reach, 0.36), (reach * 0.75, 0.98))):
        canvas.bar((x + start[0], start[1], z), (x + end[0], end[1], z), 0.07, "bicycle", paint)
    bar_width = 0.28 - 0.14 * turn
    handle = x + reach * 0.75
    canvas.bar((handle - bar_width, 1.0, z), (handle + bar_width, 1.0, z), 0.06, "bicycle", RUBBER)
    canvas.bar((x - 0.34 * turn, 0.92, z), (x - 0.06 * turn, 0.92, z), 0.09, "bicycle", RUBBER)


def draw_motorcycle(canvas: Canvas, x: float, z: float, turn: float) -> None:
    """A motorcycle or scooter; ``turn`` as for a bicycle."""
    paint = _pick(canvas.rng, ((170, 30, 30), (30, 34, 40), (40, 70, 150), (220, 214, 200), (60, 120, 80)))
    reach = 0.68 * max(turn, 0.1)
    half = max(0.16, 0.32 * turn)
    for hub in (-reach, reach):
        canvas.disc((x + hub, 0.32, z), (half, 0.32), "motorcycle", RUBBER)
        canvas.disc((x + hub, 0.32, z), (half * 0.4, 0.13), None, (150, 150, 150))
    wide = 0.26 * (1 - turn)
    body = [
        (-reach - wide, 0.4), (reach + wide, 0.34), (reach * 0.8 + wide, 1.0), (reach * 0.2, 0.96),
        (-reach * 0.9 - wide, 0.86),
    ]  # fmt: skip
    canvas.fill(_flat(x, z, body), "motorcycle", paint, canvas.light.front)
    canvas.bar((x - 0.62 * turn - 0.1, 0.86, z), (x + 0.1, 0.86, z), 0.16, "motorcycle", RUBBER)
    canvas.disc((x + reach * 0.9, 0.86, z), (0.1, 0.1), None, (250, 240, 200))
    handle = x + reach * 0.6
    canvas.bar((handle - 0.3, 1.1, z), (handle + 0.3, 1.1, z), 0.08, "motorcycle", RUBBER)


def draw_rider(canvas: Canvas, x: float, z: float, motorised: bool) -> None:
    """A rider on a bicycle or a motorcycle, seen from behind, ahead or aside."""
    rng = canvas.rng
    turn = rng.uniform(0.05, 0.45) if rng.random() < 0.7 else rng.uniform(0.6, 1.0)
    vehicle = draw_motorcycle if motorised else draw_bicycle
    vehicle(canvas, x, z, turn)
    top, bottom, skin = _pick(rng, CLOTHES), _pick(rng, CLOTHES), _pick(rng, SKIN)
    seat, lean = (0.86, 0.2 * turn) if motorised else (0.94, 0.3 * turn)
    for side in (-1, 1):
        knee = (x + side * 0.14 + 0.22 * turn, seat - 0.28, z)
        canvas.bar((x + side * 0.08, seat, z), knee, 0.17, "rider", bottom)
        canvas.bar(knee, (x + side * 0.14, 0.25, z), 0.13, "rider", bottom, 0.9)
    torso = [
        (-0.2, seat - 0.06), (0.2, seat - 0.06), (0.26 + lean, seat + 0.48), (0.1 + lean, seat + 0.58),
        (-0.26 + lean, seat + 0.48),
    ]  # fmt: skip
    canvas.fill(_flat(x, z, torso), "rider", top, canvas.light.front)
    canvas.bar((x + lean + 0.2, seat + 0.44, z), (x + 0.5 * turn + 0.2, 1.08, z), 0.1, "rider", top)
    head = (x + lean * 1.2, seat + 0.72, z)
    canvas.disc(head, (0.12, 0.15), "rider", skin)
    if motorised or rng.random() < 0.5:
        helmet = _pick(rng, ((200, 40, 40), (230, 230, 230), (40, 60, 120), (30, 30, 30)))
        canvas.disc((head[0], head[1] + 0.05, z), (0.15, 0.14), "rider", helmet)


def draw_lamp(canvas: Canvas, x: float, z: float, inward: float) -> None:
    """A street lamp whose arm reaches ``inward`` (-1 or 1) over the road."""
    canvas.bar((x, 0, z), (x, 6.5, z), 0.17, "pole", canvas.domain.pole)
    canvas.bar((x, 6.5, z), (x + 1.4 * inward, 6.8, z), 0.12, "pole", canvas.domain.pole)
    canvas.bar((x + 1.1 * inward, 6.75, z), (x + 1.7 * inward, 6.75, z), 0.2, "pole", (214, 210, 196))


def draw_traffic_light(canvas: Canvas, x: float, z: float, inward: float) -> None:
    """A mast with one light at its side and, often, a second one over the lane."""
    domain = canvas.domain
    heads = [(x, 2.9)]
    canvas.bar((x, 0, z), (x, 3.4, z), 0.18, "pole", domain.pole)
    if canvas.rng.random() < 0.5:
        reach = x + inward * canvas.rng.uniform(1.8, 3.2)
        canvas.bar((x, 3.3, z), (x, 5.4, z), 0.16, "pole", domain.pole)
        canvas.bar((x, 5.3, z), (reach, 5.5, z), 0.13, "pole", domain.pole)
        heads.append((reach, 5.2))
    lit = canvas.rng.integers(3)
    for column, row in heads:
        box = [(-0.24, -0.6), (0.24, -0.6), (0.24, 0.6), (-0.24, 0.6)]
        canvas.fill(_flat(column, z, [(u, row + v) for u, v in box]), "traffic light", domain.light_housing)
        for spot, color in enumerate(((236, 40, 36), (244, 176, 40), (60, 220, 120))):
            shade = color if spot == lit else (30, 32, 32)
            canvas.disc((column, row + 0.38 - 0.38 * spot, z), (0.15, 0.15), None, shade)


def draw_sign(canvas: Canvas, x: float, z: float) -> None:
    """A post with one or two signs: warning, order, information or direction."""
    rng = canvas.rng
    height = rng.uniform(2.3, 2.9)
    canvas.bar((x, 0, z), (x, height, z), 0.13, "pole", canvas.domain.pole)
    for row in (height, height - 0.95)[: 1 + int(rng.random() < 0.4)]:
        kind, half = int(rng.integers(4)), rng.uniform(0.36, 0.5)
        rim, inside = (
            (SIGN_RED, SIGN_WHITE),
            (SIGN_BLUE, SIGN_BLUE),
            (SIGN_YELLOW, (210, 160, 30)),
            (SIGN_RED, SIGN_WHITE) if rng.random() < 0.5 else (SIGN_BLUE, SIGN_WHITE),
        )[kind]
        outline = np.asarray(SIGN_OUTLINES[kind]) * half
        canvas.fill(_flat(x, z, outline + np.asarray((0, row))), "traffic sign", rim)
        canvas.fill(_flat(x, z, outline * 0.68 + np.asarray((0, row))), None, inside)
        mark = [(-0.3, -0.12), (0.3, -0.12), (0.3, 0.12), (-0.3, 0.12)]
        canvas.fill(_flat(x, z, np.asarray(mark) * half + np.asarray((0, row))), None, (40, 40, 44))


def draw_tree(canvas: Canvas, foliage: Color, x: float, z: float, height: float) -> None:
    """A tree: a trunk and a crown of leaf clusters, darker below and inside."""
    rng = canvas.rng
    crown = height * rng.uniform(0.3, 0.36)
    middle = height - crown
    canvas.bar((x, 0, z), (x, middle, z), 0.05 * height, "vegetation", (84, 68, 54))
    canvas.disc((x, middle, z), (crown * 0.95, crown), "vegetation", foliage, 0.72)
    # Small on the canvas, a crown needs fewer clusters to look ragged.
    count = int(np.clip(canvas.camera.focal * crown / z, 5, 26))
    angles = rng.uniform(0, 2 * np.pi, count)
    spread = np.sqrt(rng.random(count)) * crown
    for angle, far in zip(angles.tolist(), spread.tolist(), strict=True):
        up = np.sin(angle) * far
        clump = rng.uniform(0.14, 0.34) * crown
        gain = 0.92 + 0.28 * up / crown + rng.normal(0, 0.1)
        spot = (x + np.cos(angle) * far, middle + up, z)
        canvas.disc(spot, (clump, clump * 0.8), "vegetation", foliage, gain)


def draw_clutter(canvas: Canvas, x: float, z: float) -> None:
    """A bin, a box or a pushchair: things that the label table does not evaluate."""
    label = "static" if canvas.rng.random() < 0.7 else "dynamic"
    color = _pick(canvas.rng, ((60, 84, 60), (150, 120, 80), (90, 90, 96), (170, 90, 40)))
    wide, tall = canvas.rng.uniform(0.3, 0.6), canvas.rng.uniform(0.7, 1.3)
    canvas.fill(_flat(x, z, [(-wide, 0), (wide, 0), (wide, tall), (-wide, tall)]), label, color)
    lid = [(-wide, tall * 0.85), (wide, tall * 0.85), (wide, tall), (-wide, tall)]
    canvas.fill(_flat(x, z, lid), label, color, 0.7)


def vary(rng: np.random.Generator, color: Color, spread: float) -> Color:
    """The colour with a random brightness and a smaller random hue, ``spread`` in grey levels."""
    gain = rng.normal(0, spread)
    red, green, blue = (value + gain + shift for value, shift in zip(color, rng.normal(0, spread / 2, 3), strict=True))
    return float(red), float(green), float(blue)


def pick(rng: np.random.Generator, colors: tuple[Color, ...], spread: float) -> Color:
    """One of the colours, varied."""
    return vary(rng, colors[rng.integers(len(colors))], spread)


def upright(edge: float, near: float, far: float, high: float) -> np.ndarray:
    """A face (4, 3) of the plane ``x = edge``: near bottom, far bottom, far top, near top."""
    return np.asarray([(edge, 0.0, near), (edge, 0.0, far), (edge, high, far), (edge, high, near)])


def _side_gain(canvas: Canvas, edge: float) -> float:
    return canvas.light.left if edge > 0 else canvas.light.right


def window_grid(columns: int, rows: int, wide: float, tall: float, low: float) -> np.ndarray:
    """Window panes as fractions of a face above its ground floor, (columns * rows, 4, 2)."""
    across = (np.arange(columns) + 0.5) / columns
    up = low + (1 - low) * (np.arange(rows) + 0.5) / rows
    middle = np.stack(np.meshgrid(across, up), -1).reshape(-1, 1, 2)
    half = np.asarray((wide / columns / 2, tall * (1 - low) / rows / 2))
    return np.asarray(middle + np.asarray([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half)


def draw_building(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """A house front with windows, a ground floor with doors or shop windows, and a roof."""
    rng = canvas.rng
    paint = pick(rng, canvas.domain.facades, 12)
    storeys = int(rng.integers(3, 7))
    height = 3.1 * storeys + rng.uniform(0.2, 1.2)
    gain = _side_gain(canvas, edge)
    outward = 1.0 if edge > 0 else -1.0
    face = upright(edge, near, far, height)
    outline = [(0, 0), (9, 0), (9, height), (6, height + 2.6), (3, height + 2.6), (0, height)]
    gable = [(edge + outward * away, up, near) for away, up in outline]
    canvas.fill(gable, "building", paint, canvas.light.front * 0.9)
    roof = np.asarray([face[3], face[2], face[2] + (3 * outward, 2.6, 0), face[3] + (3 * outward, 2.6, 0)])
    canvas.fill(roof, "building", vary(rng, (132, 74, 58), 14), gain)
    canvas.fill(face, "building", paint, gain)
    canvas.fill(panel(face, (0, 1), (0, 2.9 / height)), None, vary(rng, paint, 22), gain)
    columns = max(2, round((far - near) / rng.uniform(2.2, 3.2)))
    grid = window_grid(columns, storeys - 1, rng.uniform(0.4, 0.6), rng.uniform(0.5, 0.66), 3.0 / height)
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
        shop = window_grid(int(rng.integers(2, 4)), 1, 0.8, 0.95, 0.0) * (1, 2.4 / height) + (0, 0.1 / height)
        canvas.fill_many(panels(face, shop), None, (60, 68, 76))
        sign = pick(rng, ((176, 40, 44), (36, 84, 150), (224, 190, 80), (50, 110, 70)), 12)
        canvas.fill(panel(face, (0.03, 0.97), (2.5 / height, 3.1 / height)), None, sign, gain)
        return
    door = float(rng.uniform(0.1, 0.7))
    canvas.fill(panel(face, (door, door + 0.12), (0, 2.3 / height)), None, vary(rng, (84, 62, 48), 16))
    row = window_grid(4, 1, 0.45, 0.5, 0.0) * (1, 2.9 / height)
    canvas.fill_many(panels(face, row), None, (66, 78, 92))


def draw_hedge(canvas: Canvas, edge: float, near: float, far: float, height: float) -> None:
    """A belt of bushes and trees behind a fence, with a ragged top."""
    rng = canvas.rng
    foliage = pick(rng, canvas.domain.foliage, 7)
    gain = 0.5 + 0.5 * _side_gain(canvas, edge)
    canvas.fill(upright(edge, near, far, height * 0.8), "vegetation", foliage, 0.72 * gain)
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
    domain = canvas.domain
    behind = edge + (3.0 if edge > 0 else -3.0)
    draw_hedge(canvas, behind, near, far + 4, canvas.rng.uniform(4, 8))
    paint, gain, height = pick(canvas.rng, domain.walls, 10), _side_gain(canvas, edge), canvas.rng.uniform(1.7, 2.7)
    face = upright(edge, near, far, height)
    canvas.fill(face, "wall", paint, gain)
    for row in np.arange(0.25, 1.0, 0.25):
        canvas.fill(panel(face, (0, 1), (row, row + 0.03)), None, paint, gain * 0.78)
    canvas.fill(panel(face, (0, 1), (0.92, 1.0)), None, paint, gain * 1.15)


def draw_fenced_garden(canvas: Canvas, edge: float, near: float, far: float) -> None:
    """A low hedge or a lawn behind a fence of slats; the gaps carry the fence's label too."""
    domain = canvas.domain
    behind = edge + (2.0 if edge > 0 else -2.0)
    draw_hedge(canvas, behind, near, far + 3, canvas.rng.uniform(3.5, 6.5))
    paint, gain, height = pick(canvas.rng, domain.fences, 10), _side_gain(canvas, edge), canvas.rng.uniform(1.3, 2.0)
    face = upright(edge, near, far, height)
    canvas.fill(face, "fence", pick(canvas.rng, domain.foliage, 8), 0.7)
    slats = window_grid(max(4, round((far - near) / 0.45)), 1, 0.62, 0.94, 0.0)
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
    canvas.fill(lawn, "terrain", vary(rng, canvas.domain.terrain, 8), canvas.light.top)
    for depth in sorted(rng.uniform(max(near, CLOSEST_LEAVES), far, 3).tolist(), reverse=True):
        place = edge + outward * rng.uniform(1.5, 7.0)
        draw_tree(canvas, pick(rng, canvas.domain.foliage, 10), place, depth, rng.uniform(5, 9))


SIDES = {"building": draw_building, "wall": draw_walled_garden, "fence": draw_fenced_garden, "park": draw_park}
