"""The canvas of a street: a pinhole camera sees world points, metres to the right, up from the road and ahead of it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from seg.data.labels import LABEL_ID
from seg.data.street.figures import PAINTS
from seg.data.street.looks import Color, Look

#: Metres: shapes that reach nearer are cut, and the street ends at the second.
NEAR, FAR = 1.2, 110.0
#: Canvas pixels per pixel of the picture, in each direction.
OVERSAMPLING = 2
#: Strength of the grain by the label of a surface; others have the first.
_TEXTURES = {
    "": 0.04, "road": 0.07, "sidewalk": 0.08, "building": 0.08, "wall": 0.1, "fence": 0.08, "vegetation": 0.18,
    "terrain": 0.13, "sky": 0.0,
}  # fmt: skip


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
        image = (self.image * kept + np.asarray(self.color("low sky", 0)) * (1 - kept)) * self._texture()
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

    def _texture(self) -> NDArray[np.float32]:
        """(H, W, 1) factors around 1, by the label of the surface."""
        strengths = np.full(256, _TEXTURES[""], np.float32)
        for name, strength in _TEXTURES.items():
            strengths[LABEL_ID.get(name, 255)] = strength
        noise = self.rng.standard_normal((self.labels.shape[0] // 3, self.labels.shape[1] // 3), np.float32)
        grain = cv2.resize(noise, self.labels.shape[::-1], interpolation=cv2.INTER_CUBIC)
        return (1 + self.numbers["texture"] * strengths[self.labels] * grain)[..., None]
