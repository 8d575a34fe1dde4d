"""One frame of a video: the rendered environment, the policy's action probabilities as bars, and their entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_PICTURE = 360
_PANEL = 340
_MARGIN = 16
_HEADER = 76
_SIZE = (_PICTURE + _PANEL + 3 * _MARGIN, _HEADER + _PICTURE + _MARGIN)
_INK, _GREY, _PAPER = "#1a1a1a", "#6b6b6b", "#ffffff"
#: The action that was taken, and the others (Okabe and Ito's vermillion and sky blue, told apart by any eye).
_TAKEN, _OTHER = "#D55E00", "#56B4E9"
_MOST_ACTIONS = 16


@dataclass(frozen=True)
class Moment:
    """What a frame says besides the picture.

    Args:
        about: first line, such as environment and objective.
        title: second line, such as the rank and the return of the episode.
        task: third line, what the environment asks for; may be empty.
        step: steps done before this moment.
        steps: steps of the whole episode.
        reward: of the last step.
        total: return so far.
        heads: action probabilities, one array per action dimension.
        taken: the action that comes next, one index per dimension; empty at the end of the episode.
        names: of the actions, per dimension.
    """

    about: str
    title: str
    task: str
    step: int
    steps: int
    reward: float
    total: float
    heads: Sequence[np.ndarray]
    taken: Sequence[int]
    names: Sequence[Sequence[str]]

    @property
    def entropy(self) -> float:
        """Of the action distribution in nats, summed over its dimensions."""
        return sum(float(-np.sum(p * np.log(np.maximum(p, 1e-300)))) for p in self.heads)

    @property
    def most_entropy(self) -> float:
        """log A, summed over the action dimensions; 0 where there is but one action."""
        return sum(math.log(len(p)) for p in self.heads)


def draw(picture: np.ndarray, moment: Moment) -> Image.Image:
    """The frame, RGB; its size depends on nothing, so that all frames of a video fit together.

    Args:
        picture: (H, W, 3) uint8, as ``env.render()`` returns it.
        moment: what to write beside it.
    """
    frame = Image.new("RGB", _SIZE, _PAPER)
    canvas = ImageDraw.Draw(frame)
    canvas.text((_MARGIN, 8), moment.about, fill=_GREY, font=_font(14))
    canvas.text((_MARGIN, 27), moment.title, fill=_INK, font=_font(17))
    canvas.text((_MARGIN, 51), moment.task, fill=_GREY, font=_font(14))
    image = Image.fromarray(picture)
    scale = _PICTURE / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    frame.paste(image, (_MARGIN, _HEADER))
    left = _PICTURE + 2 * _MARGIN
    top = _facts(canvas, left, moment)
    _bars(canvas, left, top, moment)
    return frame


def _facts(canvas: ImageDraw.ImageDraw, left: int, moment: Moment) -> int:
    """Step, reward and entropy; returns where the bars may begin."""
    share = f", {moment.entropy / moment.most_entropy:.0%} of log A" if moment.most_entropy else ""
    state = "episode over" if not moment.taken else f"step {moment.step} of {moment.steps}"
    lines = [
        f"{state}   reward {moment.reward:.3f}   return {moment.total:.3f}",
        f"policy entropy {moment.entropy:.3f} nats{share}",
    ]
    for row, line in enumerate(lines):
        canvas.text((left, _HEADER + 22 * row), line, fill=_INK, font=_font(15))
    bar = _HEADER + 48
    canvas.rectangle((left, bar, left + _PANEL, bar + 10), outline=_GREY)
    if moment.most_entropy:
        width = _PANEL * min(moment.entropy / moment.most_entropy, 1.0)
        canvas.rectangle((left, bar, left + width, bar + 10), fill=_GREY)
    return bar + 26


def _bars(canvas: ImageDraw.ImageDraw, left: int, top: int, moment: Moment) -> None:
    rows = _rows(moment)
    height = min(30, (_SIZE[1] - _MARGIN - top) // max(len(rows), 1))
    font = _font(min(15, height - 3))
    label, number = 90, 52
    room = _PANEL - label - number
    for row, (name, probability, taken) in enumerate(rows):
        y = top + row * height
        if taken:  # a mark besides the colour
            canvas.polygon([(left, y + 4), (left, y + height - 9), (left + 8, y + height / 2 - 2)], fill=_TAKEN)
        canvas.text((left + 14, y), name, fill=_INK, font=font)
        canvas.rectangle((left + label, y + 1, left + label + room, y + height - 6), outline="#d9d9d9")
        if probability * room >= 1:
            end = left + label + probability * room
            canvas.rectangle((left + label, y + 1, end, y + height - 6), fill=_TAKEN if taken else _OTHER)
        canvas.text((left + label + room + 8, y), f"{probability:.3f}", fill=_INK, font=font)


def _rows(moment: Moment) -> list[tuple[str, float, bool]]:
    """Name, probability and whether it is taken; of very many actions the most probable ones."""
    rows = [
        (name if len(moment.heads) == 1 else f"{dimension}: {name}", float(probability),
         bool(moment.taken) and moment.taken[dimension] == index)
        for dimension, (head, names) in enumerate(zip(moment.heads, moment.names, strict=True))
        for index, (probability, name) in enumerate(zip(head, names, strict=True))
    ]  # fmt: skip
    least = sorted((row[1] for row in rows), reverse=True)[:_MOST_ACTIONS][-1]
    return [row for row in rows if row[1] >= least or row[2]][:_MOST_ACTIONS]


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
