"""People, two-wheelers and street furniture: upright figures that face the camera."""

from __future__ import annotations

import numpy as np

from seg.demo.street.canvas import Canvas
from seg.demo.street.looks import Color

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
    canvas.bar((x, 0, z), (x, 6.5, z), 0.17, "pole", canvas.domain.palette.pole)
    canvas.bar((x, 6.5, z), (x + 1.4 * inward, 6.8, z), 0.12, "pole", canvas.domain.palette.pole)
    canvas.bar((x + 1.1 * inward, 6.75, z), (x + 1.7 * inward, 6.75, z), 0.2, "pole", (214, 210, 196))


def draw_traffic_light(canvas: Canvas, x: float, z: float, inward: float) -> None:
    """A mast with one light at its side and, often, a second one over the lane."""
    palette = canvas.domain.palette
    heads = [(x, 2.9)]
    canvas.bar((x, 0, z), (x, 3.4, z), 0.18, "pole", palette.pole)
    if canvas.rng.random() < 0.5:
        reach = x + inward * canvas.rng.uniform(1.8, 3.2)
        canvas.bar((x, 3.3, z), (x, 5.4, z), 0.16, "pole", palette.pole)
        canvas.bar((x, 5.3, z), (reach, 5.5, z), 0.13, "pole", palette.pole)
        heads.append((reach, 5.2))
    lit = canvas.rng.integers(3)
    for column, row in heads:
        box = [(-0.24, -0.6), (0.24, -0.6), (0.24, 0.6), (-0.24, 0.6)]
        canvas.fill(_flat(column, z, [(u, row + v) for u, v in box]), "traffic light", palette.light_housing)
        for spot, color in enumerate(((236, 40, 36), (244, 176, 40), (60, 220, 120))):
            shade = color if spot == lit else (30, 32, 32)
            canvas.disc((column, row + 0.38 - 0.38 * spot, z), (0.15, 0.15), None, shade)


def _sign_outline(kind: int) -> np.ndarray:
    """Outline of a sign around its middle, in units of its half width."""
    if kind == 0:
        return np.asarray([(-1, -0.8), (1, -0.8), (0, 0.95)])
    if kind == 1:
        return np.asarray([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    if kind == 2:
        return np.asarray([(-1.7, -0.6), (1.7, -0.6), (1.7, 0.6), (-1.7, 0.6)])
    angles = np.linspace(0, 2 * np.pi, 13)[:-1]
    return np.column_stack((np.cos(angles), np.sin(angles)))


def draw_sign(canvas: Canvas, x: float, z: float) -> None:
    """A post with one or two signs: warning, order, information or direction."""
    rng = canvas.rng
    height = rng.uniform(2.3, 2.9)
    canvas.bar((x, 0, z), (x, height, z), 0.13, "pole", canvas.domain.palette.pole)
    for row in (height, height - 0.95)[: 1 + int(rng.random() < 0.4)]:
        kind, half = int(rng.integers(4)), rng.uniform(0.36, 0.5)
        rim, inside = (
            (SIGN_RED, SIGN_WHITE),
            (SIGN_BLUE, SIGN_BLUE),
            (SIGN_YELLOW, (210, 160, 30)),
            (SIGN_RED, SIGN_WHITE) if rng.random() < 0.5 else (SIGN_BLUE, SIGN_WHITE),
        )[kind]
        outline = _sign_outline(kind) * half
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
