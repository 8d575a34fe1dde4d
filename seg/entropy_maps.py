"""Pictures of what a model is sure of: image | prediction | entropy, every entropy on the one scale from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dem_apps.entropy import shannon_entropy

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
_BAR_WIDTH, _TITLE_HEIGHT, _GAP = 44, 18, 4


def normalised_entropy(logits: Tensor) -> NDArray[np.float32]:
    """(C, H, W) logits → (H, W) Shannon entropy divided by log C: 0 is certain, 1 is uniform."""
    entropy: NDArray[np.float32] = (shannon_entropy(logits, 0) / math.log(logits.shape[0])).clamp(0, 1).cpu().numpy()
    return entropy


def coloured_prediction(prediction: NDArray[np.integer], palette: Sequence[tuple[int, int, int]]) -> NDArray[np.uint8]:
    """(H, W) train ids → (H, W, 3) colours."""
    return np.asarray(palette, dtype=np.uint8)[prediction]


def coloured_entropy(entropy: NDArray[np.floating]) -> NDArray[np.uint8]:
    """(H, W) in 0 to 1 → (H, W, 3) in the perceptual map magma; the scale never adapts to the image."""
    coloured: NDArray[np.uint8] = (matplotlib.colormaps["magma"](entropy)[..., :3] * 255).round().astype(np.uint8)
    return coloured


def panel(
    image: NDArray[np.uint8], prediction: NDArray[np.uint8], entropy: NDArray[np.uint8], caption: str
) -> Image.Image:
    """Image | prediction | entropy side by side with titles and the colour bar.

    Args:
        image: (H, W, 3) RGB.
        prediction: coloured classes, shown at the image's size whatever its own: labels may be larger than images.
        entropy: coloured entropy, likewise.
        caption: said behind the last title, such as the mean entropy.
    """
    enlarge = max(1, round(384 / image.shape[1]))
    width, height = image.shape[1] * enlarge, image.shape[0] * enlarge
    tiles = [
        Image.fromarray(tile).resize((width, height), Image.Resampling.NEAREST) for tile in (image, prediction, entropy)
    ]
    canvas = Image.new("RGB", (3 * width + 2 * _GAP + _BAR_WIDTH, height + _TITLE_HEIGHT), "white")
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=12)
    for column, (tile, title) in enumerate(zip(tiles, ("image", "prediction", f"entropy, {caption}"), strict=True)):
        left = column * (width + _GAP)
        canvas.paste(tile, (left, _TITLE_HEIGHT))
        draw.text((left + 2, 2), title, fill="black", font=font)
    _draw_bar(canvas, 3 * width + 2 * _GAP + 6, _TITLE_HEIGHT, height, font)
    return canvas


def save_panel(path: Path, picture: Image.Image) -> None:
    """Write a PNG in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    picture.save(temporary, format="PNG")
    temporary.replace(path)


def _draw_bar(canvas: Image.Image, left: int, top: int, height: int, font: Font) -> None:
    ramp = coloured_entropy(np.linspace(1.0, 0.0, height)[:, None].repeat(10, axis=1))
    canvas.paste(Image.fromarray(ramp), (left, top))
    draw = ImageDraw.Draw(canvas)
    for value in (0.0, 0.5, 1.0):
        y = top + (1.0 - value) * (height - 12)
        draw.text((left + 13, y - 1), f"{value:.1f}", fill="black", font=font)
