"""Pinhole camera and the pair of canvases, picture and labels, that every shape is drawn on.

World coordinates are metres: X to the right of the camera, Y up from the road, Z ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from seg.data.labels import LABEL_ID
from seg.data.street.looks import Color, Domain

Pair = tuple[float, float]
Point = tuple[float, float, float]
#: Depth in metres at which shapes reaching behind the camera are cut.
NEAR = 1.2


@dataclass(frozen=True)
class Camera:
    """A pinhole camera over a road that may bend; ``focal``, ``horizon`` and ``center`` are pixels of the canvas."""

    width: int
    rows: int
    focal: float
    horizon: float
    center: float
    height: float  # metres
    bend: float  # sideways drift of the street, metres per squared metre ahead

    def project(self, points: np.ndarray) -> np.ndarray:
        """World points (..., 3) to pixel coordinates (..., 2), column before row."""
        depth = np.maximum(points[..., 2], NEAR)
        scale = self.focal / depth
        pixels = np.empty((*points.shape[:-1], 2))
        pixels[..., 0] = self.center + (points[..., 0] + self.bend * depth * depth) * scale
        pixels[..., 1] = self.horizon + (self.height - points[..., 1]) * scale
        return pixels

    def project_point(self, x: float, y: float, z: float) -> tuple[int, int, float]:
        """Column, row and pixels per metre of one point; plain floats, for it is called often."""
        scale = self.focal / z
        column = self.center + (x + self.bend * z * z) * scale
        return round(column), round(self.horizon + (self.height - y) * scale), scale


@dataclass(frozen=True)
class Light:
    """Brightness of the faces that look left, right, to the camera and up; 1 is neutral."""

    left: float
    right: float
    front: float
    top: float


class Canvas:
    """Picture (rows, width, 3) RGB uint8 and label ids (rows, width) uint8; ``label=None`` paints the picture only."""

    def __init__(self, camera: Camera, light: Light, haze: float, domain: Domain, rng: np.random.Generator) -> None:
        self.camera, self.light, self.haze = camera, light, haze
        self.domain, self.rng = domain, rng
        self.image = np.zeros((camera.rows, camera.width, 3), np.uint8)
        self.labels = np.zeros((camera.rows, camera.width), np.uint8)

    def tone(self, color: Sequence[float], depth: float, gain: float = 1.0) -> Color:
        """The colour as seen through ``depth`` metres of haze, after a brightness ``gain``."""
        kept = math.exp(-self.haze * depth)
        veil, kept = 1.0 - kept, kept * gain
        red, green, blue = self.domain.haze_color
        return (
            min(255.0, max(0.0, color[0] * kept + red * veil)),
            min(255.0, max(0.0, color[1] * kept + green * veil)),
            min(255.0, max(0.0, color[2] * kept + blue * veil)),
        )

    def fill(self, points: object, label: str | None, color: Color, gain: float = 1.0) -> None:
        """Fill one polygon given by world points (N, 3)."""
        world = np.asarray(points, np.float64)
        depths = world[:, 2].tolist()
        if max(depths) > NEAR:
            depth = max(NEAR, sum(depths) / len(depths))
            self._paint([self.camera.project(world)], label, self.tone(color, depth, gain))

    def fill_many(self, polygons_NK3: np.ndarray, label: str | None, color: Color, gain: float = 1.0) -> None:
        """Fill N polygons of K world points each in one colour."""
        polygons_NK3 = polygons_NK3[polygons_NK3[:, :, 2].min(1) > NEAR]
        if len(polygons_NK3):
            depth = float(polygons_NK3[..., 2].mean())
            pixels = self.camera.project(polygons_NK3)
            self._paint(list(pixels), label, self.tone(color, depth, gain))

    def disc(self, center: Point, radii: Pair, label: str | None, color: Color, gain: float = 1.0) -> None:
        """An upright ellipse facing the camera: ``radii`` are its half width and half height."""
        if center[2] <= NEAR:
            return
        column, row, scale = self.camera.project_point(*center)
        axes = (max(1, round(radii[0] * scale)), max(1, round(radii[1] * scale)))
        if not -axes[0] < column < self.camera.width + axes[0]:
            return
        shade, spot = self.tone(color, center[2], gain), (column, row)
        cv2.ellipse(self.image, spot, axes, 0, 0, 360, shade, -1)
        if label is not None:
            cv2.ellipse(self.labels, spot, axes, 0, 0, 360, LABEL_ID[label], -1)

    def bar(self, start: Point, end: Point, width: float, label: str | None, color: Color, gain: float = 1.0) -> None:
        """A straight bar of ``width`` metres, never thinner than one pixel of the canvas."""
        if min(start[2], end[2]) <= NEAR:
            return
        *first, scale = self.camera.project_point(*start)
        *last, _ = self.camera.project_point(*end)
        depth = 0.5 * (start[2] + end[2])
        thickness = max(1, round(width * scale))
        cv2.line(self.image, first, last, self.tone(color, depth, gain), thickness)
        if label is not None:
            cv2.line(self.labels, first, last, LABEL_ID[label], thickness)

    def darken(self, points: object, gain: float) -> None:
        """Multiply the picture under a polygon of world points (N, 3): a cast shadow."""
        pixels = np.rint(self.camera.project(np.asarray(points, np.float64))).astype(np.int32)
        limits = (self.camera.width, self.camera.rows)
        low = np.clip(pixels.min(0), 0, limits)
        high = np.clip(pixels.max(0) + 1, 0, limits)
        if (high <= low).any():
            return
        window = self.image[low[1] : high[1], low[0] : high[0]]
        mask = np.zeros(window.shape[:2], np.uint8)
        cv2.fillPoly(mask, [(pixels - low).astype(np.int32)], 1)
        shaded = cv2.convertScaleAbs(window, alpha=gain)
        cv2.copyTo(shaded, mask, window)

    def _paint(self, polygons: Sequence[np.ndarray], label: str | None, color: Color) -> None:
        pixels = [np.rint(polygon).astype(np.int32) for polygon in polygons]
        cv2.fillPoly(self.image, pixels, color)
        if label is not None:
            cv2.fillPoly(self.labels, pixels, LABEL_ID[label])


def panel(face: np.ndarray, across: Pair, up: Pair) -> np.ndarray:
    """A rectangle inside a face, both (4, 3) world points from bottom left on, by its limits as fractions."""
    corners = [(across[0], up[0]), (across[1], up[0]), (across[1], up[1]), (across[0], up[1])]
    return np.asarray(panels(face, np.asarray(corners)[None])[0])


def panels(face: np.ndarray, corners_NK2: np.ndarray) -> np.ndarray:
    """Many shapes inside one face: fractions (N, K, 2) to world points (N, K, 3)."""
    across, up = corners_NK2[..., :1], corners_NK2[..., 1:]
    low = face[0] * (1 - across) + face[1] * across
    high = face[3] * (1 - across) + face[2] * across
    return np.asarray(low * (1 - up) + high * up)
