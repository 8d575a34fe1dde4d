"""The street world: an endless supply of labelled streets in two looks, see :mod:`seg.data.street.figures`.

One scene grammar draws both domains: the plan of a street, what stands where, painted from the sky to the own car's
bonnet. A picture depends on nothing but its arguments and ``WORLD_VERSION``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from seg.data.labels import CITYSCAPES_IDS, LABEL_ID
from seg.data.street.figures import FIGURES, PAINTS, VEHICLES, WALLS, Color, Look, Part, box, discs, grid, shape

#: Raised with every change that alters a single pixel: stored pairs are then drawn anew.
WORLD_VERSION = 2
SPLITS = {"train": 0, "val": 1}
#: What stands on a pavement: mean metres between two, farthest depth, place from the kerb, 0, to the fronts, 1.
_PAVEMENT = {
    "person": (8.0, 60.0, (0.1, 0.95)), "lamp": (26.0, 70.0, (0.06, 0.08)), "sign": (22.0, 50.0, (0.06, 0.1)),
    "signal": (35.0, 35.0, (0.06, 0.08)), "tree": (18.0, 90.0, (0.2, 0.25)), "bicycle": (14.0, 28.0, (0.08, 0.9)),
    "motorcycle": (50.0, 20.0, (0.08, 0.12)), "clutter": (60.0, 20.0, (0.2, 0.9)),
}  # fmt: skip
#: What lines the street: its share of a built and of a green side, its smallest and largest height in metres.
_FRONTS = {
    "building": (0.68, 0.2, 10.0, 19.0), "wall": (0.09, 0.27, 1.7, 2.7), "fence": (0.12, 0.26, 1.3, 2.0),
    "park": (0.11, 0.27, 0.0, 0.0),
}  # fmt: skip
#: Metres: shapes that reach nearer are cut, and the street ends at the second.
NEAR, FAR = 1.2, 110.0
#: Canvas pixels per pixel of the picture, in each direction.
OVERSAMPLING = 2
#: Strength of the grain of a surface by its label; others have 0.04.
_TEXTURES = {
    "road": 0.07, "sidewalk": 0.08, "building": 0.08, "wall": 0.1, "fence": 0.08, "vegetation": 0.18, "terrain": 0.13,
    "sky": 0.0,
}  # fmt: skip
Item = tuple[float, Callable[[], None]]  # depth in metres, and the call that paints it


def draw_street(
    look: Look, split: str, index: int, *, seed: int = 0, size: tuple[int, int] = (192, 96)
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draw street ``index``: the picture, (height, width, 3) RGB uint8, and its label ids, (height, width) uint8.

    ``seed`` is the whole data set's, ``split`` is train or val, which share no scene, ``size`` is (width, height).
    """
    rng = np.random.default_rng([seed, look.code, SPLITS[split], index])
    canvas = Canvas(look, rng, size)
    # dealt out by the index, so that a small data set holds every class
    rare = "tram" if index % 22 == 3 else {1: "bus", 5: "truck"}.get(index % 9, "")
    kerbs = rng.uniform((-8.2, 2.2), (-5.6, 4.7))
    verges = kerbs + (-1, 1) * rng.uniform(1.2, 2.6, 2) * (rng.random(2) < 0.3)
    fronts = verges + (-1, 1) * rng.uniform(3.2, 7.0, 2)
    _draw_ground(canvas, kerbs, verges, rare == "tram")
    items = [*_backdrop(canvas), *_traffic(canvas, kerbs, rare)]
    for verge, front in zip(verges.tolist(), fronts.tolist(), strict=True):
        items += [*_front(canvas, front), *_pavement(canvas, verge, front)]
    for _, paint in sorted(items, key=lambda item: -item[0]):
        paint()
    height, width = canvas.labels.shape
    bonnet = (round(canvas.center), round(1.02 * height)), (round(0.45 * width), round(0.09 * height))
    cv2.ellipse(canvas.image, *bonnet, 0, 180, 360, canvas.color("rubber"), -1)
    cv2.ellipse(canvas.labels, *bonnet, 0, 180, 360, LABEL_ID["ego vehicle"], -1)
    picture, labels = canvas.developed()
    if look.code:  # as Cityscapes: a black left column, and a frame of one pixel outside the region of interest
        labels[[0, -1]] = labels[:, [0, -1]] = LABEL_ID["out of roi"]
        labels[:, 1], picture[:, :2] = LABEL_ID["rectification border"], 0
    return picture, labels


def _strip(left: float, right: float) -> NDArray[np.float64]:
    """A strip of ground along the whole street, its edges sampled closely enough to bend."""
    depths = np.concatenate(([1.2], np.geomspace(2.5, FAR, 14)))
    there, back = (np.stack((np.full(15, x), np.zeros(15), depths), -1) for x in (left, right))
    return np.concatenate((there, back[::-1]))


def _draw_ground(canvas: Canvas, kerbs: NDArray[np.float64], verges: NDArray[np.float64], rails: bool) -> None:
    """Pavements, lawns, the road with its markings, rails or, now and then, a crossing, and the houses' shadow."""
    rng, gain, (left, right) = canvas.rng, canvas.light["top"], kerbs.tolist()
    stone, marking = canvas.color("pavement"), canvas.color("marking")
    canvas.fill(_strip(-90, 90), "sidewalk", stone, gain)
    for kerb, verge in zip(kerbs, verges, strict=True):
        canvas.fill(_strip(kerb, verge), "terrain" if kerb != verge else "", canvas.color("lawn"), gain)
    canvas.fill(_strip(left - 0.18, right + 0.18), "sidewalk", stone, 1.16)
    canvas.fill(_strip(left, right), "road", canvas.color("road"), gain)
    dash = np.asarray([(-1.86, 0, 0), (-1.7, 0, 0), (-1.7, 0, 3.4), (-1.86, 0, 3.4)])
    if rails:
        canvas.fill(_strip(-4.9, -2.3), "rail track", canvas.color("wood"), 1.3)
        canvas.fill([_strip(rail, rail + 0.12) for rail in (-4.4, -2.9)], "", canvas.color("metal"), 1.4)
    elif rng.random() < 0.2:
        near, bars = rng.uniform(8, 22), np.arange(left + 0.4, right - 0.5, 1.1)
        canvas.fill([dash * (3.5, 1, 1) + (x + 6.5, 0, near) for x in bars], "", marking)
    canvas.fill([dash * (1, 0, 1) + (0, 0, depth) for depth in np.arange(rng.uniform(2, 9), 80, 7)], "", marking)
    for edge in (left + 0.35, right - 0.5):
        if rng.random() < 0.5:
            canvas.fill(_strip(edge, edge + 0.14), "", marking)
    reach = rng.uniform(0.1, 0.7)
    shadow = (right * reach, 30) if canvas.light["left"] < canvas.light["right"] else (-30, left * reach)
    canvas.shade(_strip(*shadow), 1 - 0.45 * canvas.numbers["sunlight"])
    below = np.arange(len(canvas.depth)) + 0.5 - canvas.horizon
    canvas.depth[below > 0] = np.minimum(canvas.focal * canvas.camera_height / below[below > 0], FAR)[:, None]


def _depths(canvas: Canvas, depth: float, gap: float, stop: float, length: float = 0.0) -> Iterator[float]:
    """Random depths up to ``stop``, ``gap`` metres apart on average behind what is there, of this length."""
    while (depth := depth + canvas.rng.exponential(gap)) < stop:
        yield depth
        depth += length


def _backdrop(canvas: Canvas) -> Iterator[Item]:
    """Distant houses and trees that close the street."""
    for x in range(-110, 110, 15):
        house = Part("building", "house", box((x, 0, x + canvas.rng.uniform(12, 20), canvas.rng.uniform(5, 16))), 0.9)
        yield FAR, partial(canvas.paint, _upright(0, FAR, 1, FAR), (house,), "near")
    for x in canvas.rng.uniform(-60, 60, 12).tolist():
        yield FAR - 3, partial(_figure, canvas, "tree", x, FAR - 3)


def _front(canvas: Canvas, edge: float) -> Iterator[Item]:
    """Houses, walls, fences and parks along one side, from the camera to the end of the street."""
    rng, outward, side = canvas.rng, float(np.sign(edge)), "left" if edge > 0 else "right"
    green, near = int(rng.random() > 0.6), rng.uniform(1.5, 5.0)
    while near < FAR - 10:
        far, kind = near + rng.uniform(8, 18), str(rng.choice([*_FRONTS], p=[row[green] for row in _FRONTS.values()]))
        face = _upright(edge, near, edge, far, rng.uniform(*_FRONTS[kind][2:]))
        yield far - 0.01, partial(canvas.paint, face, WALLS[kind], side)
        if kind == "building":
            gable = Part("building", "house", box((0, 0, 9, 10)), 0.9)
            yield far, partial(canvas.paint, _upright(edge, near, edge + outward, near), (gable,), "near")
        else:
            behind = edge + outward * rng.uniform(2, 8)
            hedge = _upright(behind, near, behind, far + 5, rng.uniform(4, 8))
            yield far, partial(canvas.paint, hedge, WALLS["hedge"], side)
            lawn = [(edge, 0, near), (edge, 0, far), (9 * edge, 0, far), (9 * edge, 0, near)]
            yield far + 1, partial(canvas.fill, lawn, "terrain", canvas.color("lawn"), canvas.light["top"])
        near = far


def _traffic(canvas: Canvas, kerbs: NDArray[np.float64], rare: str) -> Iterator[Item]:
    """Vehicles and riders on the road, parked cars along the kerbs, and the tram, bus or truck that is to be there."""
    rng, gap, (left, right) = canvas.rng, canvas.numbers["vehicle gap"], kerbs.tolist()
    lanes = [(0.1, 9.0, 1.3 * gap), (-3.5, 7.0, 1.1 * gap)]
    lanes += [(right - 1.05, 4.0, 0.35 * gap)] * int(right > 3.5 and rng.random() < 0.8)
    lanes += [(left + 1.05, 4.0, 0.35 * gap)] * int(left < -7 and rng.random() < 0.7)
    if rare:
        lane, depth = 1 if rare == "tram" else int(rng.integers(2)), rng.uniform(12, 26)
        yield depth, partial(_vehicle, canvas, rare, lanes[lane][0], depth)
        lanes[lane] = (lanes[lane][0], depth + 26, gap)
    for x, start, spacing in lanes:
        for depth in _depths(canvas, start, spacing, 85.0, length=5.5):
            name = str(rng.choice(("car", "van", "truck", "bus"), p=(0.8, 0.165, 0.02, 0.015)))
            yield depth, partial(_vehicle, canvas, name, x + rng.normal(0, 0.15), depth)
    for depth in _depths(canvas, 7.0, gap, 30.0):
        x = float(rng.choice((min(right - 0.6, 2.2), -1.7, left + 0.8)))
        yield depth, partial(_figure, canvas, "rider", x, depth)


def _pavement(canvas: Canvas, verge: float, front: float) -> Iterator[Item]:
    """People, furniture, parked two-wheelers and trees on one pavement."""
    for name, (gap, stop, place) in _PAVEMENT.items():
        gap *= canvas.numbers["people gap"] / 13 if name == "person" else 1
        for depth in _depths(canvas, 4.0, gap, stop):
            x = verge + canvas.rng.uniform(*place) * (front - verge)
            yield depth, partial(_figure, canvas, name, x, depth)


def _figure(canvas: Canvas, name: str, x: float, z: float) -> None:
    """One of the alternatives of a figure, of random size and turn; arms of masts reach over the road."""
    rng, alternatives = canvas.rng, FIGURES[name]
    size = rng.uniform(0.85, 1.15)
    # two-wheelers are seen from nearly behind to aside
    turn = rng.uniform(0.3, 1.0) if name in ("bicycle", "motorcycle", "rider") else 1.0
    parts = alternatives[rng.integers(len(alternatives))]
    canvas.paint(_upright(x, z, x - turn * size * np.sign(x), z, size), parts, "near")


def _upright(x: float, z: float, to_x: float, to_z: float, height: float = 1.0) -> list[tuple[float, float, float]]:
    """The corners of an upright face, from bottom left on."""
    return [(x, 0, z), (to_x, 0, to_z), (to_x, height, to_z), (x, height, z)]


def _vehicle(canvas: Canvas, name: str, x: float, z: float) -> None:
    """A vehicle whose visible end is at (x, z); one left of the middle of the road comes towards the camera."""
    label, (lower, upper), width, length, (low, waist, roof), (start, end), slant, panes, wheel = VEHICLES[name]
    half, whole, oncoming, colors = width / 2, box((0, 0, 1, 1)), x < -1, dict[str, Color]()
    edge, facing = (x - half, "left") if x > 0 else (x + half, "right")

    def level(y: float, near: float, far: float) -> NDArray[np.float64]:
        corners = ((-half, near), (half, near), (half, far), (-half, far))
        return np.asarray([(x + across, y, z + depth) for across, depth in corners])

    canvas.shade(level(0, -0.2, length), 0.5)
    cabin = (Part(label, upper, whole), Part("", "glass", box((0.08, 0.12, 0.92, 0.88))))
    windows = grid(panes, 1, 0.88, 0.74) * (end - start - 2 * slant, roof - waist) + (start + slant, waist)
    side = (
        Part(label, lower, box((0, low, length, waist))),
        Part(label, upper, shape(start, waist, end, waist, end - slant, roof, start + slant, roof)),
        Part("", "glass", windows),
        Part(label, "rubber", discs(wheel, wheel, (0.18 * length, wheel), (0.8 * length, wheel))),
    )
    lamps = box((-0.92, -0.34, -0.6, -0.14), (0.6, -0.34, 0.92, -0.14)) * (half, 1) + (0, waist)
    visible_end = (
        Part(label, lower, box((-half, low, half, waist))),
        Part(label, "rubber", box((-half, 0, 0.2 - half, low + 0.1), (half - 0.2, 0, half, low + 0.1))),
        Part("", "white" if oncoming else "red", lamps),
    )
    front = [*level(waist, start, end)[:2], *level(roof, start + slant, end)[1::-1]]
    for face, parts, light in (
        (level(waist, 0, length), (Part(label, lower, whole),), "top"),
        (level(roof, start + slant, end - slant), cabin[:1], "top"),
        (_upright(edge, z, edge, z + 1), side, facing),
        (_upright(x, z, x + 1, z), visible_end, "near"),
        (front, cabin if panes or oncoming else cabin[:1], "near"),
    ):
        canvas.paint(face, parts, light, colors)


class Canvas:
    """Picture (H, W, 3) RGB and depth in metres (H, W), float32, and label ids (H, W) uint8."""

    def __init__(self, look: Look, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.numbers, self._paints = rng, look.numbers, {**PAINTS, **look.paints}
        width, height = (side * OVERSAMPLING for side in size)
        self.focal = self.numbers["focal"] * width * rng.uniform(0.95, 1.05)
        self.horizon = height * (self.numbers["horizon"] + rng.normal(0, 0.012))
        self.center = width * (0.5 + rng.normal(0, 0.03))
        self.camera_height = self.numbers["camera height"] * rng.uniform(0.94, 1.06)
        self.bend = rng.normal(0, 0.0006)  # sideways drift of the street, metres per squared metre ahead
        sun = self.numbers["sunlight"]
        left, right = rng.permutation((1 + 0.12 * sun, 1 - 0.42 * sun)).tolist()
        #: Brightness of the faces that look left, right, to the camera and up.
        self.light = {"left": left, "right": right, "near": 1 - 0.2 * sun, "top": 1 + 0.1 * sun}
        self.image = np.zeros((height, width, 3), np.float32)
        self.depth = np.zeros((height, width), np.float32)
        self.labels = np.full((height, width), LABEL_ID["sky"], np.uint8)
        mix = np.linspace(0, 1, height)[:, None, None] ** 0.7
        self.image[:] = (1 - mix) * self.color("sky") + mix * self.color("low sky")

    def color(self, paint: str, spread: float = 8.0) -> Color:
        """One of a paint's colours, varied in brightness and less in hue by ``spread`` grey levels."""
        colors = self._paints[paint]
        shift = self.rng.normal(0, spread) + self.rng.normal(0, spread / 2, 3)
        return tuple((np.asarray(colors[self.rng.integers(len(colors))]) + shift).tolist())

    def fill(self, polygons: ArrayLike, label: str, color: Color, gain: ArrayLike = 1.0) -> None:
        """Fill one polygon (K, 3) of world points or several (N, K, 3); without a label in the picture alone."""
        depths, polygons = self._projected(polygons)
        tones = np.multiply.outer(np.broadcast_to(gain, len(depths)), color).tolist()
        for depth, pixels, tone in zip(depths, polygons, tones, strict=True):
            if depth <= NEAR:
                continue
            cv2.fillPoly(self.image, pixels, tone)
            cv2.fillPoly(self.depth, pixels, depth)
            if label:
                cv2.fillPoly(self.labels, pixels, LABEL_ID[label])

    def paint(
        self, face: ArrayLike, parts: tuple[Part, ...], light: str, colors: dict[str, Color] | None = None
    ) -> None:
        """Paint parts on a face, the world points (4, 3) of the corners of its unit square from bottom left on.

        ``light`` is the side it looks to; ``colors`` are those of its paints, and others are drawn and added.
        """
        corners, colors = np.asarray(face), {} if colors is None else colors
        for label, paint, outlines, gain in parts:
            if paint not in colors:
                colors[paint] = self.color(paint)
            across, up = outlines[..., :1], outlines[..., 1:]
            low, high = (corners[a] + (corners[b] - corners[a]) * across for a, b in ((0, 1), (3, 2)))
            self.fill(low + (high - low) * up, label, colors[paint], self.light[light] * gain)

    def shade(self, polygon: ArrayLike, gain: float) -> None:
        """Multiply the picture under a polygon (K, 3) of world points: a shadow."""
        mask = np.zeros_like(self.labels)
        cv2.fillPoly(mask, self._projected(polygon)[1][0], 1)
        self.image[mask == 1] *= gain

    def _projected(self, polygons: ArrayLike) -> tuple[list[float], NDArray[np.int32]]:
        """Mean depths of polygons, NEAR for those behind the camera, and their pixels (N, 1, K, 2)."""
        points = np.asarray(polygons, np.float64)
        x, y, z = np.moveaxis(points.reshape(-1, *points.shape[-2:]), -1, 0)
        depth = z.clip(NEAR)
        columns = self.center + (x + self.bend * depth**2) * self.focal / depth
        rows = self.horizon + (self.camera_height - y) * self.focal / depth
        pixels = np.rint(np.stack((columns, rows), -1)).clip(-9999, 9999).astype(np.int32)
        return depth.mean(1).tolist(), pixels[:, None]

    def developed(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The picture (h, w, 3) after haze, texture, lens and sensor, and the labels (h, w), which are sampled."""
        numbers, normal = self.numbers, self.rng.standard_normal
        labels = np.ascontiguousarray(self.labels[1::OVERSAMPLING, 1::OVERSAMPLING])
        kept = np.exp(-numbers["haze"] * self.depth)[..., None]
        image = self.image * kept + np.asarray(self.color("low sky", 0)) * (1 - kept)
        strengths = np.array([_TEXTURES.get(CITYSCAPES_IDS.get(each, ""), 0.04) for each in range(256)], np.float32)
        noise = normal([side // 3 for side in self.labels.shape], np.float32)
        grain = cv2.resize(noise, self.labels.shape[::-1], interpolation=cv2.INTER_CUBIC)
        image = image * (1 + numbers["texture"] * strengths[self.labels] * grain)[..., None]
        image = np.asarray(cv2.resize(image, labels.shape[::-1], interpolation=cv2.INTER_AREA))
        if numbers["blur"]:
            image = cv2.GaussianBlur(image, (0, 0), numbers["blur"])
        grey = image.mean(-1, keepdims=True)
        image = 128 + numbers["contrast"] * (grey + numbers["saturation"] * (image - grey) - 128)
        up, across = (np.linspace(-1, 1, side) ** 2 for side in labels.shape)
        light = np.exp(numbers["exposure"] * normal()) * (1 - 0.5 * numbers["vignette"] * np.add.outer(up, across))
        image = image * light[..., None] + numbers["noise"] * normal(image.shape, np.float32)
        picture = np.rint(image).clip(0, 255).astype(np.uint8)
        if numbers["jpeg quality"] < 100:
            _, stream = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, round(numbers["jpeg quality"])])
            picture = np.asarray(cv2.imdecode(stream, cv2.IMREAD_COLOR))
        return picture, labels
