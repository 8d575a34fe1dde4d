"""The street world, an endless supply of labelled streets in two looks.

:mod:`seg.data.street.figures` has the looks. One scene grammar draws both domains: the plan of a
street, what stands where, from the sky to the own car's bonnet. A picture depends on nothing but
its arguments and ``WORLD_VERSION``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from seg.data.files import Size
from seg.data.labels import LABEL_ID
from seg.data.street.canvas import FAR, NEAR, Array, Canvas
from seg.data.street.figures import (
    FIGURES,
    VEHICLES,
    WALLS,
    Face,
    Look,
    Outlines,
    Part,
    Plane,
    boxes,
    discs,
    grid,
    plane,
    polygon,
    upright,
)

#: Raised with every change that alters a single pixel, so that stored pairs are drawn anew.
WORLD_VERSION = 3
SPLITS = {"train": 0, "val": 1}
#: Objects on a pavement: mean metres between two, farthest depth, and range of places.
#: Places go from the kerb, 0, to the fronts, 1.
_PAVEMENT = {
    "person": (8.0, 60.0, (0.1, 0.95)),
    "lamp": (26.0, 70.0, (0.06, 0.08)),
    "sign": (22.0, 50.0, (0.06, 0.1)),
    "signal": (35.0, 35.0, (0.06, 0.08)),
    "tree": (18.0, 90.0, (0.2, 0.25)),
    "bicycle": (14.0, 28.0, (0.08, 0.9)),
    "motorcycle": (50.0, 20.0, (0.08, 0.12)),
    "clutter": (60.0, 20.0, (0.2, 0.9)),
}
#: Fronts along the street: share of a built side, share of a green side, and heights.
#: Heights are the smallest and the largest, in metres.
_FRONTS = {
    "building": (0.68, 0.2, 10.0, 19.0),
    "wall": (0.09, 0.27, 1.7, 2.7),
    "fence": (0.12, 0.26, 1.3, 2.0),
    "park": (0.11, 0.27, 0.0, 0.0),
}


def draw_street(
    look: Look, split: str, index: int, *, seed: int = 0, size: Size = (192, 96)
) -> tuple[Array, Array]:
    """Draw street ``index`` as a picture and its label ids.

    Args:
        look: the domain's.
        split: train or val, which share no scene.
        index: the street's.
        seed: the whole data set's.
        size: (width, height).

    Returns:
        The picture, (height, width, 3) RGB uint8; the label ids, (height, width) uint8.
    """
    rng = np.random.default_rng([seed, look.code, SPLITS[split], index])
    canvas = Canvas(look, rng, size)
    # dealt out by the index, so that a small data set holds every class
    rare = "tram" if index % 22 == 3 else {1: "bus", 5: "truck"}.get(index % 9, "")
    kerbs = rng.uniform((-8.2, 2.2), (-5.6, 4.7))
    verges = kerbs + (-1, 1) * rng.uniform(1.2, 2.6, 2) * (rng.random(2) < 0.3)
    fronts = verges + (-1, 1) * rng.uniform(3.2, 7.0, 2)
    _draw_ground(canvas, kerbs, verges, rare == "tram")
    _draw_backdrop(canvas)
    _draw_traffic(canvas, kerbs, rare)
    for verge, front in zip(verges.tolist(), fronts.tolist(), strict=True):
        _draw_front(canvas, front)
        _draw_pavement(canvas, verge, front)
    _draw_bonnet(canvas)
    picture, labels = canvas.develop()
    # Cityscapes has a black left column, and one pixel of frame outside the region of interest
    if look.code:
        labels[[0, -1]] = labels[:, [0, -1]] = LABEL_ID["out of roi"]
        labels[:, 1] = LABEL_ID["rectification border"]
        picture[:, :2] = 0
    return picture, labels


def _strip(left: float, right: float) -> Outlines:
    """Return a strip of ground along the whole street.

    Its edges are sampled closely enough to bend.
    """
    depths = np.concatenate(([NEAR], np.geomspace(2.5, FAR, 14)))
    outward, back = (np.stack((np.full(15, x), depths), -1) for x in (left, right))
    return np.concatenate((outward, back[::-1]))[None]


def _draw_ground(canvas: Canvas, kerbs: Array, verges: Array, rails: bool) -> None:
    """Draw pavements, lawns, the road with its markings, and the houses' shadow.

    There are rails or, now and then, a crossing.
    """
    rng = canvas.rng
    left, right = kerbs.tolist()
    stone = canvas.color("pavement")
    marking = canvas.color("marking")
    canvas.ground("sidewalk", _strip(-90, 90), stone)
    for kerb, verge in zip(kerbs, verges, strict=True):
        if kerb != verge:
            canvas.ground("terrain", _strip(kerb, verge), canvas.color("lawn"))
    canvas.ground("sidewalk", _strip(left - 0.18, right + 0.18), 1.1 * stone)
    canvas.ground("road", _strip(left, right), canvas.color("road"))
    if rails:
        _draw_rails(canvas)
    elif rng.random() < 0.2:
        near = rng.uniform(8, 22)
        bars = [(x, near, x + 0.56, near + 3.4) for x in np.arange(left + 0.4, right - 0.5, 1.1)]
        canvas.ground("road", boxes(bars), marking)
    dashes = [(-1.86, depth, -1.7, depth + 3.4) for depth in np.arange(rng.uniform(2, 9), 80, 7)]
    canvas.ground("road", boxes(dashes), marking)
    for edge in (left + 0.35, right - 0.5):
        if rng.random() < 0.5:
            canvas.ground("road", _strip(edge, edge + 0.14), marking)
    reach = rng.uniform(0.1, 0.7)
    sun_from_right = canvas.light["left"] < canvas.light["right"]
    shadow = _strip(right * reach, 30) if sun_from_right else _strip(-30, left * reach)
    canvas.shade(shadow, 1 - 0.45 * canvas.numbers["sunlight"])


def _draw_rails(canvas: Canvas) -> None:
    canvas.ground("rail track", _strip(-4.9, -2.3), 1.2 * canvas.color("wood"))
    for rail in (-4.4, -2.9):
        canvas.ground("rail track", _strip(rail, rail + 0.12), 1.3 * canvas.color("metal"))


def _depths(
    canvas: Canvas, depth: float, gap: float, stop: float, length: float = 0.0
) -> Iterator[float]:
    """Yield random depths up to ``stop`` for things of this length.

    They lie ``gap`` metres apart on average, behind what is there.
    """
    while (depth := depth + canvas.rng.exponential(gap)) < stop:
        yield depth
        depth += length


def _draw_backdrop(canvas: Canvas) -> None:
    """Draw distant houses and trees that close the street."""
    for x in range(-110, 110, 15):
        outline = boxes(x, 0, x + canvas.rng.uniform(12, 20), canvas.rng.uniform(5, 16))
        canvas.stand_facing(FAR, (Part("building", "house", outline, 0.9),))
    for x in canvas.rng.uniform(-60, 60, 12).tolist():
        _draw_figure(canvas, "tree", x, FAR - 3)


def _draw_front(canvas: Canvas, edge: float) -> None:
    """Draw houses, walls, fences and parks along one side, from the camera to the far end."""
    rng = canvas.rng
    outward = float(np.sign(edge))
    side = "left" if edge > 0 else "right"
    green = int(rng.random() > 0.6)
    near = rng.uniform(1.5, 5.0)
    while near < FAR - 10:
        kind = str(rng.choice([*_FRONTS], p=[row[green] for row in _FRONTS.values()]))
        length = rng.uniform(8, 18)
        height = rng.uniform(*_FRONTS[kind][2:])
        front = (upright(edge, near, 0, length, height), WALLS[kind], side)
        behind: Face
        if kind == "building":
            gable = Part("building", "house", boxes(0, 0, 9, 1), 0.9)
            behind = (upright(edge, near, outward, 0, height), (gable,), "near")
        else:
            canvas.ground(
                "terrain", boxes(edge, near, 9 * edge, near + length), canvas.color("lawn")
            )
            hedge = edge + outward * rng.uniform(2, 8)
            behind = (upright(hedge, near, 0, length + 5, rng.uniform(4, 8)), WALLS["hedge"], side)
        near += length
        canvas.stand(near, behind, front)


def _draw_traffic(canvas: Canvas, kerbs: Array, rare: str) -> None:
    """Draw vehicles and riders on the road, and parked cars along the kerbs.

    ``rare`` names the tram, bus or truck that is to be there, if any.
    """
    rng = canvas.rng
    gap = canvas.numbers["vehicle gap"]
    left, right = kerbs.tolist()
    lanes = [(0.1, 9.0, 1.3 * gap), (-3.5, 7.0, 1.1 * gap)]
    if right > 3.5 and rng.random() < 0.8:
        lanes.append((right - 1.05, 4.0, 0.35 * gap))
    if left < -7 and rng.random() < 0.7:
        lanes.append((left + 1.05, 4.0, 0.35 * gap))
    if rare:
        lane = 1 if rare == "tram" else int(rng.integers(2))
        depth = rng.uniform(12, 26)
        _draw_vehicle(canvas, rare, lanes[lane][0], depth)
        lanes[lane] = (lanes[lane][0], depth + 26, gap)
    for x, start, spacing in lanes:
        for depth in _depths(canvas, start, spacing, 85.0, length=5.5):
            name = str(rng.choice(("car", "van", "truck", "bus"), p=(0.8, 0.165, 0.02, 0.015)))
            _draw_vehicle(canvas, name, x + rng.normal(0, 0.15), depth)
    for depth in _depths(canvas, 7.0, gap, 30.0):
        x = float(rng.choice((min(right - 0.6, 2.2), -1.7, left + 0.8)))
        _draw_figure(canvas, "rider", x, depth)


def _draw_pavement(canvas: Canvas, verge: float, front: float) -> None:
    """Draw people, furniture, parked two-wheelers and trees on one pavement."""
    for name, (gap, stop, place) in _PAVEMENT.items():
        gap *= canvas.numbers["people gap"] / 13 if name == "person" else 1
        for depth in _depths(canvas, 4.0, gap, stop):
            x = verge + canvas.rng.uniform(*place) * (front - verge)
            _draw_figure(canvas, name, x, depth)


def _draw_figure(canvas: Canvas, name: str, x: float, depth: float) -> None:
    """Draw one of the alternatives of a figure, of random size and turn.

    Arms of masts reach over the road.
    """
    rng = canvas.rng
    alternatives = FIGURES[name]
    size = rng.uniform(0.85, 1.15)
    # two-wheelers are seen from nearly behind to aside
    turn = rng.uniform(0.3, 1.0) if name in ("bicycle", "motorcycle", "rider") else 1.0
    parts = alternatives[rng.integers(len(alternatives))]
    canvas.stand_facing(depth, parts, x, -turn * size * np.sign(x), size)


def _draw_vehicle(canvas: Canvas, name: str, x: float, depth: float) -> None:
    """Draw a vehicle with its visible end at x and depth.

    One left of the middle of the road comes towards the camera.
    """
    label, (lower, upper), width, length, (low, waist, roof), (start, end), slant, panes, wheel = (
        VEHICLES[name]
    )
    half = width / 2
    whole = boxes(0, 0, 1, 1)
    oncoming = x < -1
    edge, facing = (x - half, "left") if x > 0 else (x + half, "right")
    cabin = [Part(label, upper, whole)]
    glass = [Part(label, "glass", boxes(0.08, 0.12, 0.92, 0.88))]
    windows = grid(panes, 1, 0.88, 0.74) * (end - start - 2 * slant, roof - waist) + (
        start + slant,
        waist,
    )
    cabin_side = polygon(start, waist, end, waist, end - slant, roof, start + slant, roof)
    side = [
        Part(label, lower, boxes(0, low, length, waist)),
        Part(label, upper, cabin_side),
        Part(label, "glass", windows),
        Part(label, "rubber", discs(wheel, wheel, 0.18 * length, wheel, 0.8 * length, wheel)),
    ]
    lamps = boxes(-0.92, -0.34, -0.6, -0.14, 0.6, -0.34, 0.92, -0.14) * (half, 1) + (0, waist)
    visible_end = [
        Part(label, lower, boxes(-half, low, half, waist)),
        Part(
            label,
            "rubber",
            boxes(-half, 0, 0.2 - half, low + 0.1, half - 0.2, 0, half, low + 0.1),
        ),
        Part(label, "white" if oncoming else "red", lamps),
    ]

    def across(y: float, first: float, up: float, ahead: float) -> Plane:
        """Return a plane as wide as the vehicle."""
        return plane((x - half, y, depth + first), (width, 0, 0), (0, up, ahead))

    canvas.shade(boxes(x - half, depth - 0.2, x + half, depth + length), 0.5)
    canvas.stand(
        depth,
        (across(waist, 0, 0, length), [Part(label, lower, whole)], "top"),
        (across(roof, start + slant, 0, end - start - 2 * slant), cabin, "top"),
        (upright(edge, depth, 0, 1), side, facing),
        (upright(x, depth, 1, 0), visible_end, "near"),
        (
            across(waist, start, roof - waist, slant),
            cabin + glass if panes or oncoming else cabin,
            "near",
        ),
    )


def _draw_bonnet(canvas: Canvas) -> None:
    """Draw the own car's bonnet at the lower edge of the picture."""
    drop = NEAR * (canvas.height - canvas.horizon) / canvas.focal
    bonnet = discs(0.55, 0.04, 0, canvas.camera_height - drop)
    canvas.stand_facing(NEAR, (Part("ego vehicle", "rubber", bonnet),))
