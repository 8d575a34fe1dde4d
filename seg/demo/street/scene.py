"""The scene grammar: one street painted back to front, from the sky to the own car's bonnet."""

from __future__ import annotations

import cv2
import numpy as np

from seg.data.labels import LABEL_ID
from seg.demo.street.canvas import Camera, Canvas, Light
from seg.demo.street.figures import draw_tree
from seg.demo.street.looks import Color, Domain
from seg.demo.street.placing import FAR, Street, place_objects, plan_street
from seg.demo.street.sides import pick, vary


def draw_scene(domain: Domain, rng: np.random.Generator, index: int, size: tuple[int, int], finer: int = 1) -> Canvas:
    """Paint one street on a canvas of ``size`` (width, height) pixels, each ``finer`` times in both directions."""
    canvas = _open_canvas(domain, rng, (size[0] * finer, size[1] * finer), finer)
    street = plan_street(rng, index)
    _draw_sky(canvas)
    _draw_ground(canvas, street)
    _draw_backdrop(canvas)
    for _, paint in place_objects(canvas, street):
        paint()
    _draw_own_car(canvas)
    return canvas


def _open_canvas(domain: Domain, rng: np.random.Generator, size: tuple[int, int], finer: int) -> Canvas:
    width, rows = size
    camera = Camera(
        width=width,
        rows=rows,
        focal=domain.focal * width * rng.uniform(0.95, 1.05),
        horizon=rows * (domain.horizon + rng.normal(0, 0.012)),
        center=width * (0.5 + rng.normal(0, 0.03)),
        height=domain.camera_height * rng.uniform(0.94, 1.06),
        bend=float(rng.normal(0, 0.0006)),
        finer=finer,
    )
    lit, dim = 1.0 + 0.12 * domain.sunlight, 1.0 - 0.42 * domain.sunlight
    left, right = (lit, dim) if rng.random() < 0.5 else (dim, lit)
    light = Light(left, right, 1.0 - 0.2 * domain.sunlight, 1.0 + 0.1 * domain.sunlight)
    return Canvas(camera, light, domain.haze * rng.uniform(0.7, 1.3), domain, rng)


def _draw_sky(canvas: Canvas) -> None:
    """A vertical gradient with soft clouds down to the horizon; the ground covers what is below."""
    rng = canvas.rng
    palette, rows = canvas.domain.palette, min(canvas.camera.rows, int(canvas.camera.horizon) + 2)
    mix = (np.arange(rows, dtype=np.float32) / rows)[:, None, None]
    sky = (1 - mix) * np.asarray(palette.sky_top, np.float32) + mix * np.asarray(palette.sky_low, np.float32)
    clouds = cv2.resize(rng.random((4, 7), np.float32), (canvas.camera.width, rows), interpolation=cv2.INTER_CUBIC)
    cover = np.clip(1.6 * clouds - 0.7, 0, 1)[..., None] * (0.75 * (1 - 0.6 * mix))
    canvas.image[:rows] = sky * (1 - cover) + 244.0 * cover
    canvas.image[rows:] = palette.sky_low
    canvas.labels[:] = LABEL_ID["sky"]


def _draw_backdrop(canvas: Canvas) -> None:
    """Distant houses and trees that close the street."""
    rng = canvas.rng
    palette, start = canvas.domain.palette, -FAR
    while start < FAR:
        wide, tall = rng.uniform(9, 22), rng.uniform(6, 17)
        face = [(start, 0, FAR), (start + wide, 0, FAR), (start + wide, tall, FAR), (start, tall, FAR)]
        if abs(start + wide / 2) > 12 or rng.random() < 0.8:
            canvas.fill(face, "building", pick(rng, palette.facades, 10), 0.9)
        start += wide
    for place in rng.uniform(-60, 60, 12).tolist():
        draw_tree(canvas, pick(rng, palette.foliage, 8), place, FAR - 3, rng.uniform(6, 13))


def _strip(left: float, right: float) -> np.ndarray:
    """A strip of ground along the whole street, its edges sampled closely enough to bend."""
    depths = np.concatenate(([1.2], np.geomspace(2.5, FAR, 14)))
    there = np.column_stack((np.full(15, left), np.zeros(15), depths))
    back = np.column_stack((np.full(15, right), np.zeros(15), depths[::-1]))
    return np.concatenate((there, back))


def _draw_ground(canvas: Canvas, street: Street) -> None:
    rng = canvas.rng
    palette, gain = canvas.domain.palette, canvas.light.top
    haze, canvas.haze = canvas.haze, 0.0  # Haze on the ground depends on the row: added below.
    stone, road = vary(rng, palette.sidewalk, 8), vary(rng, palette.road, 9)
    canvas.fill(_strip(-90, 90), "sidewalk", stone, gain)
    for verge, kerb in ((-street.left_verge, street.left_kerb), (street.right_verge, street.right_kerb)):
        if verge:
            canvas.fill(_strip(kerb, kerb + verge), "terrain", vary(rng, palette.terrain, 8), gain)
    canvas.fill(_strip(street.left_kerb - 0.18, street.right_kerb + 0.18), "sidewalk", stone, 1.16)
    canvas.fill(_strip(street.left_kerb, street.right_kerb), "road", road, gain)
    if street.parked_right and rng.random() < 0.3:
        bay = _strip(street.right_kerb - 2.1, street.right_kerb)
        canvas.fill(bay, "parking", vary(rng, palette.sidewalk, 10), 0.85)
    _draw_road_surface(canvas, street, road)
    canvas.haze = haze
    depth = canvas.camera.row_depth()
    kept = np.exp(-haze * np.minimum(depth, FAR))[:, None, None]
    first = int(np.argmax(np.isfinite(depth)))
    veil = np.asarray(canvas.domain.haze_color) * (1 - kept[first:])
    canvas.image[first:] = canvas.image[first:] * kept[first:] + veil


def _draw_road_surface(canvas: Canvas, street: Street, road: Color) -> None:
    """Repairs, rails, lane markings, a crossing now and then and the shadow of the houses."""
    rng = canvas.rng
    marking = vary(rng, canvas.domain.palette.marking, 8)
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
    rim = 2 * canvas.camera.finer
    cv2.ellipse(canvas.image, spot, (axes[0], axes[1] - rim), 0, 200, 340, (shade + 50,) * 3, rim)
    cv2.ellipse(canvas.labels, spot, axes, 0, 180, 360, LABEL_ID["ego vehicle"], -1)
