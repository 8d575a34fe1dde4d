"""The street world: an endless supply of labelled streets in two looks.

One scene grammar (:mod:`seg.demo.street.scene`) draws both domains; :mod:`seg.demo.street.looks` says how each of them
sees it. A picture depends on nothing but its arguments and ``WORLD_VERSION``.
"""

from __future__ import annotations

import cv2
import numpy as np

from seg.data.labels import LABEL_ID
from seg.demo.street.canvas import Canvas
from seg.demo.street.looks import Domain
from seg.demo.street.scene import draw_scene

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


def draw_street(
    domain: Domain, split: str, index: int, *, seed: int = 0, size: tuple[int, int] = (192, 96)
) -> tuple[np.ndarray, np.ndarray]:
    """Draw street ``index``: the picture, (height, width, 3) RGB uint8, and its label ids, (height, width) uint8.

    The same bytes for the same arguments. ``seed`` is the whole data set's, ``split`` is train or val, which share no
    scene, ``size`` is (width, height).
    """
    rng = np.random.default_rng([seed, domain.code, SPLITS[split], index])
    canvas = draw_scene(domain, rng, index, (size[0] * OVERSAMPLING, size[1] * OVERSAMPLING))
    return _finish(canvas, domain, rng)


def _finish(canvas: Canvas, domain: Domain, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Texture, develop and downscale; the picture is averaged over area, the labels are sampled."""
    labels = np.ascontiguousarray(canvas.labels[1::OVERSAMPLING, 1::OVERSAMPLING])
    textured = canvas.image * _texture(canvas.labels, domain, rng)
    small = cv2.resize(textured, labels.shape[::-1], interpolation=cv2.INTER_AREA)
    picture = np.clip(np.rint(_develop(small, domain, rng)), 0, 255).astype(np.uint8)
    if domain.jpeg_quality is not None:
        picture = _through_jpeg(picture, domain.jpeg_quality)
    if domain.frame_border:
        _mark_border(picture, labels)
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


def _through_jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    """The picture after JPEG compression; OpenCV wants and returns BGR."""
    _, stream = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.ascontiguousarray(np.asarray(cv2.imdecode(stream, cv2.IMREAD_COLOR))[..., ::-1])


def _mark_border(picture: np.ndarray, labels: np.ndarray) -> None:
    """A black left column from rectification and a frame of one pixel outside the region of interest."""
    labels[[0, -1]] = OUT_OF_ROI
    labels[:, [0, -1]] = OUT_OF_ROI
    labels[:, 1] = RECTIFICATION_BORDER
    picture[:, :2] = 0
