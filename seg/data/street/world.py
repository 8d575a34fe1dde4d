"""The street world: an endless supply of labelled streets in two looks, see :mod:`seg.data.street.looks`.

One scene grammar draws both domains: the plan of a street, what stands where, painted from the sky to the own car's
bonnet. A picture depends on nothing but its arguments and ``WORLD_VERSION``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np

from seg.data.labels import LABEL_ID
from seg.data.street import figures, vehicles
from seg.data.street.canvas import Camera, Canvas, Light
from seg.data.street.figures import SIDES, draw_hedge, pick, vary
from seg.data.street.looks import Color, Domain

#: Raised with every change that alters a single pixel: stored pairs are then drawn anew.
WORLD_VERSION = 1
SPLITS = {"train": 0, "val": 1}
RECTIFICATION_BORDER, OUT_OF_ROI = (LABEL_ID[name] for name in ("rectification border", "out of roi"))
#: Canvas pixels per pixel of the final picture, in each direction.
OVERSAMPLING = 2
# Relative strength of coarse blotches and fine grain per label; the rest has DEFAULT_TEXTURE.
DEFAULT_TEXTURE = (0.03, 0.03)
TEXTURES = {
    "road": (0.05, 0.05), "sidewalk": (0.05, 0.07), "building": (0.07, 0.05), "wall": (0.08, 0.07),
    "fence": (0.05, 0.06), "vegetation": (0.10, 0.16), "terrain": (0.07, 0.11), "sky": (0.0, 0.0),
}  # fmt: skip
#: Depth in metres where the street is closed off by a row of distant houses and trees.
FAR = 110.0
#: Depth in metres and the call that paints it.
Item = tuple[float, Callable[[], None]]


@dataclass(frozen=True)
class Street:
    """The plan of one street, in metres: kerbs bound the road, fronts the pavements; ``left_*`` are negative."""

    left_kerb: float
    right_kerb: float
    left_front: float
    right_front: float
    left_verge: float
    right_verge: float
    parked_left: bool
    parked_right: bool
    tram: bool  # rails in the middle of the oncoming half, and a tram on them
    heavy: str  # its rare vehicle, bus or truck


def draw_street(
    domain: Domain, split: str, index: int, *, seed: int = 0, size: tuple[int, int] = (192, 96)
) -> tuple[np.ndarray, np.ndarray]:
    """Draw street ``index``: the picture, (height, width, 3) RGB uint8, and its label ids, (height, width) uint8.

    ``seed`` is the whole data set's, ``split`` is train or val, which share no scene, ``size`` is (width, height).
    """
    rng = np.random.default_rng([seed, domain.code, SPLITS[split], index])
    canvas = _open_canvas(domain, rng, (size[0] * OVERSAMPLING, size[1] * OVERSAMPLING))
    street = plan_street(rng, index)
    _draw_sky(canvas)
    _draw_ground(canvas, street)
    _draw_backdrop(canvas)
    items = [*_side_items(canvas, street), *_traffic_items(canvas, street), *_pavement_items(canvas, street)]
    for _, paint in sorted(items, key=lambda item: -item[0]):
        paint()
    _draw_own_car(canvas)
    return _finish(canvas)


def plan_street(rng: np.random.Generator, index: int) -> Street:
    """Draw a plan; the index deals out trams, buses and trucks, so that a small data set holds every class."""
    left = rng.uniform(5.6, 8.2)
    right = rng.uniform(2.2, 4.7)
    verges = [float(rng.uniform(1.2, 2.6)) if rng.random() < 0.3 else 0.0 for _ in range(2)]
    pavements = rng.uniform(3.2, 7.0, 2)
    return Street(
        -left, right, -left - verges[0] - pavements[0], right + verges[1] + pavements[1], verges[0], verges[1],
        parked_left=bool(left > 7.0 and rng.random() < 0.7), parked_right=bool(right > 3.5 and rng.random() < 0.8),
        tram=index % 22 == 3, heavy={1: "bus", 5: "truck"}.get(index % 9, ""),
    )  # fmt: skip


def _open_canvas(domain: Domain, rng: np.random.Generator, size: tuple[int, int]) -> Canvas:
    width, rows = size
    camera = Camera(
        width, rows, focal=domain.focal * width * rng.uniform(0.95, 1.05),
        horizon=rows * (domain.horizon + rng.normal(0, 0.012)), center=width * (0.5 + rng.normal(0, 0.03)),
        height=domain.camera_height * rng.uniform(0.94, 1.06), bend=float(rng.normal(0, 0.0006)),
    )  # fmt: skip
    lit, dim = 1.0 + 0.12 * domain.sunlight, 1.0 - 0.42 * domain.sunlight
    left, right = (lit, dim) if rng.random() < 0.5 else (dim, lit)
    light = Light(left, right, 1.0 - 0.2 * domain.sunlight, 1.0 + 0.1 * domain.sunlight)
    return Canvas(camera, light, domain.haze * rng.uniform(0.7, 1.3), domain, rng)


def _draw_sky(canvas: Canvas) -> None:
    """A vertical gradient with soft clouds down to the horizon; the ground covers what is below."""
    rng = canvas.rng
    domain, rows = canvas.domain, min(canvas.camera.rows, int(canvas.camera.horizon) + 2)
    mix = (np.arange(rows, dtype=np.float32) / rows)[:, None, None]
    sky = (1 - mix) * np.asarray(domain.sky_top, np.float32) + mix * np.asarray(domain.sky_low, np.float32)
    clouds = cv2.resize(rng.random((4, 7), np.float32), (canvas.camera.width, rows), interpolation=cv2.INTER_CUBIC)
    cover = np.clip(1.6 * clouds - 0.7, 0, 1)[..., None] * (0.75 * (1 - 0.6 * mix))
    canvas.image[:rows] = sky * (1 - cover) + 244.0 * cover
    canvas.image[rows:] = domain.sky_low
    canvas.labels[:] = LABEL_ID["sky"]


def _draw_backdrop(canvas: Canvas) -> None:
    """Distant houses and trees that close the street."""
    rng = canvas.rng
    domain, start = canvas.domain, -FAR
    while start < FAR:
        wide, tall = rng.uniform(9, 22), rng.uniform(6, 17)
        face = [(start, 0, FAR), (start + wide, 0, FAR), (start + wide, tall, FAR), (start, tall, FAR)]
        if abs(start + wide / 2) > 12 or rng.random() < 0.8:
            canvas.fill(face, "building", pick(rng, domain.facades, 10), 0.9)
        start += wide
    for place in rng.uniform(-60, 60, 12).tolist():
        figures.draw_tree(canvas, pick(rng, domain.foliage, 8), place, FAR - 3, rng.uniform(6, 13))


def _strip(left: float, right: float) -> np.ndarray:
    """A strip of ground along the whole street, its edges sampled closely enough to bend."""
    depths = np.concatenate(([1.2], np.geomspace(2.5, FAR, 14)))
    there = np.column_stack((np.full(15, left), np.zeros(15), depths))
    back = np.column_stack((np.full(15, right), np.zeros(15), depths[::-1]))
    return np.concatenate((there, back))


def _draw_ground(canvas: Canvas, street: Street) -> None:
    rng = canvas.rng
    domain, gain = canvas.domain, canvas.light.top
    haze, canvas.haze = canvas.haze, 0.0  # Haze on the ground depends on the row: added below.
    stone, road = vary(rng, domain.sidewalk, 8), vary(rng, domain.road, 9)
    canvas.fill(_strip(-90, 90), "sidewalk", stone, gain)
    for verge, kerb in ((-street.left_verge, street.left_kerb), (street.right_verge, street.right_kerb)):
        if verge:
            canvas.fill(_strip(kerb, kerb + verge), "terrain", vary(rng, domain.terrain, 8), gain)
    canvas.fill(_strip(street.left_kerb - 0.18, street.right_kerb + 0.18), "sidewalk", stone, 1.16)
    canvas.fill(_strip(street.left_kerb, street.right_kerb), "road", road, gain)
    if street.parked_right and rng.random() < 0.3:
        bay = _strip(street.right_kerb - 2.1, street.right_kerb)
        canvas.fill(bay, "parking", vary(rng, domain.sidewalk, 10), 0.85)
    _draw_road_surface(canvas, street, road)
    canvas.haze = haze
    camera = canvas.camera
    below = np.arange(camera.rows) + 0.5 - camera.horizon
    depth = camera.focal * camera.height / below[below > 0]
    kept = np.exp(-haze * np.minimum(depth, FAR))[:, None, None]
    canvas.image[below > 0] = canvas.image[below > 0] * kept + np.asarray(canvas.domain.haze_color) * (1 - kept)


def _draw_road_surface(canvas: Canvas, street: Street, road: Color) -> None:
    """Repairs, rails, lane markings, a crossing now and then and the shadow of the houses."""
    rng = canvas.rng
    marking = vary(rng, canvas.domain.marking, 8)
    for _ in range(int(rng.integers(0, 4))):
        x, z = rng.uniform(street.left_kerb, street.right_kerb - 1.5), rng.uniform(4, 30)
        long, wide = rng.uniform(1, 6), rng.uniform(0.5, 1.5)
        patch = [(x, 0, z), (x + wide, 0, z), (x + wide, 0, z + long), (x, 0, z + long)]
        canvas.fill(patch, None, road, rng.uniform(0.75, 1.1))
    if street.tram:
        canvas.fill(_strip(-4.9, -2.3), "rail track", vary(rng, (112, 104, 96), 8))
        for rail in (-4.4, -2.9):
            canvas.fill(_strip(rail, rail + 0.12), None, (176, 176, 178))
    starts = np.arange(rng.uniform(2, 6), 80, 7.0)
    dashes = np.zeros((len(starts), 4, 3))
    dashes[:, :, 0] = np.asarray((-1.86, -1.7, -1.7, -1.86))
    dashes[:, :, 2] = np.stack((starts, starts, starts + 3.4, starts + 3.4), 1)
    canvas.fill_many(dashes, None, marking)
    for kerb, step in ((street.left_kerb, 0.35), (street.right_kerb, -0.35)):
        if rng.random() < 0.5:
            canvas.fill(_strip(kerb + step, kerb + step * 1.4), None, marking)
    if rng.random() < 0.2:
        near = rng.uniform(8, 22)
        for x in np.arange(street.left_kerb + 0.4, street.right_kerb - 0.5, 1.1):
            canvas.fill([(x, 0, near), (x + 0.55, 0, near), (x + 0.55, 0, near + 3), (x, 0, near + 3)], None, marking)
    shade = 1.0 - 0.45 * canvas.domain.sunlight
    reach = rng.uniform(0.1, 0.7)
    if canvas.light.left < canvas.light.right:
        canvas.darken(_strip(street.right_kerb * (1 - reach), 30), shade)
    else:
        canvas.darken(_strip(-30, street.left_kerb * (1 - reach)), shade)


def _draw_own_car(canvas: Canvas) -> None:
    """The bonnet of the own car at the bottom: ignored by every score."""
    width, rows = canvas.camera.width, canvas.camera.rows
    spot = (round(canvas.camera.center), round(rows * 1.02))
    axes = (round(width * canvas.rng.uniform(0.4, 0.5)), round(rows * canvas.rng.uniform(0.07, 0.11)))
    shade = float(canvas.rng.uniform(30, 70))
    cv2.ellipse(canvas.image, spot, axes, 0, 180, 360, (shade, shade, shade + 6), -1)
    cv2.ellipse(canvas.image, spot, (axes[0], axes[1] - 2), 0, 200, 340, (shade + 50,) * 3, 2)
    cv2.ellipse(canvas.labels, spot, axes, 0, 180, 360, LABEL_ID["ego vehicle"], -1)


def _side_items(canvas: Canvas, street: Street) -> Iterator[Item]:
    """Segments along both fronts, from the camera to the end of the street."""
    rng = canvas.rng
    kinds = list(SIDES)
    for edge in (street.left_front, street.right_front):
        green = rng.random()
        odds = np.asarray((0.68, 0.08, 0.13, 0.11)) if green < 0.6 else np.asarray((0.2, 0.25, 0.28, 0.27))
        near = rng.uniform(1.5, 5.0)
        while near < FAR - 10:
            far = near + rng.uniform(8, 18)
            kind = kinds[rng.choice(4, p=odds)]
            yield far - 0.01, partial(SIDES[kind], canvas, edge, near, far)
            if rng.random() < 0.12:
                far += rng.uniform(2, 6)  # A gap, through which trees are seen.
                behind = edge * 1.4
                yield far, partial(draw_hedge, canvas, behind, near, far + 9, 7.0)
            near = far


def _lane(rng: np.random.Generator, start: float, gap: float, stop: float = 85.0) -> Iterator[float]:
    """Depths of vehicles in one lane, ``gap`` metres apart on average behind a car's length."""
    depth = start + rng.exponential(gap)
    while depth < stop:
        yield depth
        depth += 5.5 + rng.exponential(gap)


def _traffic_items(canvas: Canvas, street: Street) -> Iterator[Item]:
    """Vehicles and riders on the road, parked cars along the kerbs."""
    rng = canvas.rng
    gap = canvas.domain.vehicle_gap
    heavy = {"bus": vehicles.draw_bus, "truck": vehicles.draw_truck}.get(street.heavy)
    if heavy:
        oncoming = bool(rng.random() < 0.5)
        place = -3.4 if oncoming else 0.2
        depth = rng.uniform(12, 30)
        yield depth, partial(heavy, canvas, place, depth, oncoming)
    if street.tram:
        depth = rng.uniform(14, 30)
        yield depth, partial(vehicles.draw_tram, canvas, -3.6, depth, True)
    lanes = [(0.1, 9.0, gap * 1.8, False, bool(heavy) and place > 0)]
    lanes.append((-3.5, 7.0, gap * 1.5, True, street.tram or (bool(heavy) and place < 0)))
    for x, start, spacing, oncoming, taken in lanes:
        for depth in _lane(rng, 40.0 if taken else start, spacing):
            large = (vehicles.draw_truck, vehicles.draw_bus)
            drawer = vehicles.draw_car if rng.random() > 0.035 else large[rng.integers(2)]
            yield depth, partial(drawer, canvas, x + rng.normal(0, 0.2), depth, oncoming)
    for parked, x in ((street.parked_right, street.right_kerb - 1.05), (street.parked_left, street.left_kerb + 1.05)):
        if parked:
            for depth in _lane(rng, 4.0, gap * 0.35):
                yield depth, partial(vehicles.draw_car, canvas, x, depth, x < 0)
    yield from _rider_items(canvas, street)


def _rider_items(canvas: Canvas, street: Street) -> Iterator[Item]:
    """Riders close to the right kerb or between the lanes, more of them where traffic is dense."""
    for _ in range(int(canvas.rng.poisson(10.0 / canvas.domain.vehicle_gap))):
        depth = canvas.rng.uniform(7, 28)
        x = canvas.rng.choice((min(street.right_kerb - 0.6, 2.2), -1.7, street.left_kerb + 0.8))
        yield depth, partial(figures.draw_rider, canvas, x, depth, bool(canvas.rng.random() < 0.35))


def _pavement_items(canvas: Canvas, street: Street) -> Iterator[Item]:
    """People, parked two-wheelers, trees, clutter and masts on both pavements."""
    rng = canvas.rng
    sides = (
        (street.left_kerb - street.left_verge, street.left_front, street.left_kerb, 1.0),
        (street.right_kerb + street.right_verge, street.right_front, street.right_kerb, -1.0),
    )
    for inner, front, kerb, inward in sides:
        low, high = sorted((inner - 0.5 * inward, front + 0.4 * inward))
        yield from _people_items(canvas, canvas.domain.people_gap, low, high)
        yield from _parked_items(canvas, front + 0.7 * inward, kerb - 0.4 * inward)
        post = kerb - 0.35 * inward
        for depth in _lane(rng, 5.0, 22.0, 70.0):
            yield depth, partial(figures.draw_lamp, canvas, post, depth, inward)
        for depth in _lane(rng, 6.0, 20.0, 50.0):
            yield depth, partial(figures.draw_sign, canvas, post, depth)
        if rng.random() < 0.5:
            depth = rng.uniform(9, 26)
            yield depth, partial(figures.draw_traffic_light, canvas, post, depth, inward)
        if rng.random() < 0.4:
            for depth in np.arange(rng.uniform(7, 14), 90, rng.uniform(9, 16)).tolist():
                foliage = pick(rng, canvas.domain.foliage, 10)
                yield depth, partial(figures.draw_tree, canvas, foliage, kerb - 0.9 * inward, depth, rng.uniform(5, 8))
        if rng.random() < 0.4:
            depth = rng.uniform(6, 20)
            yield depth, partial(figures.draw_clutter, canvas, rng.uniform(low, high), depth)


def _people_items(canvas: Canvas, gap: float, low: float, high: float) -> Iterator[Item]:
    """Groups of one to three people between ``low`` and ``high`` on the pavement."""
    for depth in _lane(canvas.rng, 4.0, gap, 60.0):
        for _ in range(int(canvas.rng.integers(1, 4))):
            spot = depth + canvas.rng.uniform(-0.8, 0.8)
            yield spot, partial(figures.draw_person, canvas, canvas.rng.uniform(low, high), spot)


def _parked_items(canvas: Canvas, stand: float, kerb: float) -> Iterator[Item]:
    """A row of bicycles at the house front or the kerb, sometimes a motorcycle."""
    rng = canvas.rng
    if rng.random() < 0.55:
        first = rng.uniform(6, 16)
        x = stand if rng.random() < 0.4 else kerb
        for step in range(int(rng.integers(1, 6))):
            depth = first + 0.9 * step
            yield depth, partial(figures.draw_bicycle, canvas, x + rng.normal(0, 0.2), depth, rng.uniform(0.4, 1.0))
    if rng.random() < 0.22:
        depth = rng.uniform(6, 14)
        yield depth, partial(figures.draw_motorcycle, canvas, kerb + rng.normal(0, 0.2), depth, rng.uniform(0.3, 1.0))


def _finish(canvas: Canvas) -> tuple[np.ndarray, np.ndarray]:
    """Texture, develop and downscale; the picture is averaged over area, the labels are sampled."""
    domain, rng = canvas.domain, canvas.rng
    labels = np.ascontiguousarray(canvas.labels[1::OVERSAMPLING, 1::OVERSAMPLING])
    textured = canvas.image * _texture(canvas.labels, domain, rng)
    small = cv2.resize(textured, labels.shape[::-1], interpolation=cv2.INTER_AREA)
    picture = np.clip(np.rint(_develop(small, domain, rng)), 0, 255).astype(np.uint8)
    if domain.jpeg_quality is not None:  # OpenCV wants and returns BGR
        _, stream = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, domain.jpeg_quality])
        picture = np.ascontiguousarray(np.asarray(cv2.imdecode(stream, cv2.IMREAD_COLOR))[..., ::-1])
    if domain.frame_border:  # a black left column, and a frame of one pixel outside the region of interest
        labels[[0, -1]] = OUT_OF_ROI
        labels[:, [0, -1]] = OUT_OF_ROI
        labels[:, 1] = RECTIFICATION_BORDER
        picture[:, :2] = 0
    return picture, labels


def _texture(labels: np.ndarray, domain: Domain, rng: np.random.Generator) -> np.ndarray:
    """Gain per canvas pixel, (rows, width, 1) float32 around 1, by the surface's label."""
    strengths = np.tile(np.asarray(DEFAULT_TEXTURE, np.float32), (256, 1))
    for name, pair in TEXTURES.items():
        strengths[LABEL_ID[name]] = pair
    strengths *= domain.texture
    rows, width = labels.shape
    blotches = rng.standard_normal((rows // 12 + 2, width // 12 + 2), np.float32)
    coarse = cv2.resize(blotches, (width, rows), interpolation=cv2.INTER_CUBIC)
    grain = rng.standard_normal((rows // 2 + 1, width // 2 + 1), np.float32)
    fine = cv2.resize(grain, (width, rows), interpolation=cv2.INTER_LINEAR)
    gain = 1 + strengths[:, 0][labels] * coarse + strengths[:, 1][labels] * fine
    return np.asarray(gain[..., None], np.float32)


def _develop(picture: np.ndarray, domain: Domain, rng: np.random.Generator) -> np.ndarray:
    """Lens blur, colour, exposure, vignetting and sensor noise, in this order."""
    if domain.blur > 0:
        picture = cv2.GaussianBlur(picture, (0, 0), domain.blur)
    grey = picture.mean(-1, keepdims=True)
    picture = grey + domain.saturation * (picture - grey)
    picture = 128 + domain.contrast * (picture - 128)
    exposure = np.exp(rng.normal(0, domain.exposure_jitter))
    picture = picture * np.asarray(domain.tint, np.float32) * np.float32(exposure)
    rows, width = picture.shape[:2]
    if domain.vignette > 0:
        up, across = np.linspace(-1, 1, rows)[:, None], np.linspace(-1, 1, width)
        picture = picture * (1 - domain.vignette * 0.5 * (up**2 + across**2))[..., None]
    if domain.noise > 0:
        picture = picture + domain.noise * rng.standard_normal(picture.shape, np.float32)
    return picture
