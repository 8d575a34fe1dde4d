"""The camera of a look.

It projects a street's surfaces, paints them from far to near and develops the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from seg.data.files import Size
from seg.data.labels import LABEL_ID
from seg.data.street.figures import Face, Look, Outlines, Part, upright

#: Strength of the grain of a surface by its label; others have 0.04.
_GRAIN = {
    "sky": 0.0,
    "road": 0.07,
    "sidewalk": 0.08,
    "building": 0.08,
    "wall": 0.1,
    "fence": 0.08,
    "vegetation": 0.18,
    "terrain": 0.13,
}
#: Metres ahead: corners nearer than the first are moved there, and the street ends at the second.
NEAR, FAR = 1.2, 110.0
#: Canvas pixels per pixel of the picture, in each direction.
OVERSAMPLING = 2
#: Directions of x and of depth for outlines on the ground.
_GROUND = np.asarray(((1, 0, 0), (0, 0, 1)), np.float64)
Array = NDArray[Any]


class Surface(NamedTuple):
    """Polygons (N, K, 3) of one colour and label."""

    depth: float  #: metres
    label: str
    color: Array  #: (3,) RGB, 0 to 255
    points: Array


class Canvas:
    """A street as surfaces. World points are metres to the right of the camera, above the road and ahead."""

    def __init__(self, look: Look, rng: np.random.Generator, size: Size) -> None:
        self.rng = rng
        self.numbers = look.numbers
        self._size = size
        self._paints = {name: np.asarray(colors) for name, colors in look.paints.items()}
        self._width, self.height = (side * OVERSAMPLING for side in size)
        self.focal = self.numbers["focal"] * self._width * rng.uniform(0.95, 1.05)
        self.horizon = self.height * (self.numbers["horizon"] + rng.normal(0, 0.012))
        self._center = self._width * (0.5 + rng.normal(0, 0.03))
        self.camera_height = self.numbers["camera height"] * rng.uniform(0.94, 1.06)
        # sideways drift of the street, metres per squared metre ahead
        self._bend = rng.normal(0, 0.0006)
        sun = self.numbers["sunlight"]
        left, right = rng.permutation((1 + 0.12 * sun, 1 - 0.42 * sun)).tolist()
        #: Brightness of the faces that look left, right, to the camera and up.
        self.light = {"left": left, "right": right, "near": 1 - 0.2 * sun, "top": 1 + 0.1 * sun}
        self._shade = np.ones((self.height, self._width), np.float32)
        #: Painted first, in the order of the calls; what nothing is painted on is the sky.
        self._ground = [Surface(FAR, "sky", self.color("sky"), np.empty((0, 3, 3)))]
        self._standing: list[Surface] = []

    def color(self, paint: str) -> Array:
        """Return one of a paint's colours, varied in brightness and less in hue."""
        shift = self.rng.normal(0, 8) + self.rng.normal(0, 4, 3)
        color: Array = shift + self.rng.choice(self._paints[paint])
        return color

    def ground(self, label: str, outlines: Outlines, color: Array) -> None:
        """Paint outlines by x and depth on the ground."""
        self._ground.append(Surface(FAR, label, self.light["top"] * color, outlines @ _GROUND))

    def shade(self, outlines: Outlines, gain: float) -> None:
        """Cast a shadow of this brightness on the ground within outlines by x and depth."""
        cv2.fillPoly(self._shade, [*self._projected(outlines @ _GROUND)], gain)

    def stand(self, depth: float, *faces: Face) -> None:
        """Set up faces, which share the colours of their paints, in front of all that stands deeper."""
        colors: dict[str, Array] = {}
        for (origin, *directions), parts, side in faces:
            for label, paint, outlines, gain in parts:
                if paint not in colors:
                    colors[paint] = self.color(paint)
                tone = self.light[side] * gain * colors[paint]
                self._standing.append(Surface(depth, label, tone, origin + outlines @ directions))

    def stand_facing(
        self,
        depth: float,
        parts: Iterable[Part],
        x: float = 0.0,
        across: float = 1.0,
        up: float = 1.0,
    ) -> None:
        """Set up parts that face the camera, with the lengths of a unit across and up."""
        self.stand(depth, (upright(x, depth, across, 0, up), parts, "near"))

    def develop(self) -> tuple[Array, Array]:
        """Develop the picture and its label ids.

        Returns:
            The picture, (h, w, 3) RGB; the label ids, (h, w).
        """
        self._standing.sort(key=lambda surface: -surface.depth)
        depths, labels, colors, points = zip(*self._ground, *self._standing, strict=True)
        painted = np.zeros_like(self._shade, np.int32)
        for number, polygons in enumerate(points):
            cv2.fillPoly(painted, [*self._projected(polygons)], number)
        picture = cv2.resize(
            self._lit(painted, depths, colors), self._size, interpolation=cv2.INTER_AREA
        )
        sampled = painted[1::OVERSAMPLING, 1::OVERSAMPLING]
        grain = np.asarray([_GRAIN.get(label, 0.04) for label in labels], np.float32)
        ids = np.asarray([LABEL_ID[label] for label in labels], np.uint8)
        return self._sensed(picture, grain[sampled]), ids[sampled]

    def _projected(self, points: Array) -> Array:
        """Project polygons (N, K, 3) to canvas pixels (N, K, 2)."""
        x, y, depth = np.moveaxis(points, -1, 0)
        depth = depth.clip(NEAR)  # a hedge may begin behind the camera
        scale = self.focal / depth
        columns = self._center + (x + self._bend * depth**2) * scale
        rows = self.horizon + (self.camera_height - y) * scale
        pixels: Array = np.rint(np.stack((columns, rows), -1)).astype(np.int32)
        return pixels

    def _lit(self, painted: Array, depths: Sequence[float], colors: Sequence[Array]) -> Array:
        """Return the painted canvas in the surfaces' colours, in shadow and haze."""
        haze = self.numbers["haze"]
        below = np.arange(self.height) + 0.5 - self.horizon
        ground = np.exp(-haze * self.focal * self.camera_height / below.clip(1))
        sky = 1 - np.linspace(0, 1, self.height) ** 0.7
        rows = np.where(below > 0, ground, sky).astype(np.float32)
        clear = np.exp(-haze * np.asarray(depths, np.float32))
        lies = painted < len(self._ground)
        visible = np.where(lies, rows[:, None], clear[painted])
        shade = np.where(lies, self._shade, np.float32(1))
        tones = np.asarray(colors, np.float32).T.copy()
        low_sky = self._paints["low sky"][0].astype(np.float32)
        # channel by channel, which is four times as fast
        channels = zip(tones, low_sky, strict=True)
        lit = [far + visible * (tone[painted] * shade - far) for tone, far in channels]
        return np.asarray(cv2.merge(lit))

    def _sensed(self, picture: Array, grain: Array) -> Array:
        """Return the picture after texture, lens and sensor."""
        numbers = self.numbers
        normal = self.rng.standard_normal
        width, height = self._size
        coarse = normal((height * 2 // 3, width * 2 // 3), np.float32)
        noise = cv2.resize(coarse, self._size, interpolation=cv2.INTER_CUBIC)
        picture = picture * (1 + numbers["texture"] * grain * noise)[..., None]
        if numbers["blur"]:
            picture = cv2.GaussianBlur(picture, (0, 0), numbers["blur"])
        grey = picture.mean(-1, keepdims=True)
        picture = 128 + numbers["contrast"] * (
            grey + numbers["saturation"] * (picture - grey) - 128
        )
        up, across = (np.linspace(-1, 1, side) ** 2 for side in (height, width))
        light = 1 - 0.5 * numbers["vignette"] * np.add.outer(up, across)
        light *= np.exp(numbers["exposure"] * normal())
        picture = picture * light[..., None] + numbers["noise"] * normal(picture.shape, np.float32)
        picture = np.rint(picture).clip(0, 255).astype(np.uint8)
        if numbers["jpeg quality"] < 100:
            quality = round(numbers["jpeg quality"])
            _, stream = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])
            picture = np.asarray(cv2.imdecode(stream, cv2.IMREAD_COLOR))
        return picture
