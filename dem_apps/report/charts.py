"""Line charts as inline SVG that needs no script, reads in both colour schemes, and comes with its numbers as a table.

Colours are classes (``c0`` to ``c7``) that the page's style sheet sets for light and dark; every series has a dash
pattern of its own as well, so that nothing depends on colour alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

COLOURS = 8
_WIDTH, _HEIGHT = 380, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 34
_MOST_POINTS, _TABLE_ROWS = 300, 12

Line = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        name: for the legend and the table.
        x: rising.
        y: as many values.
        band: lower and upper edge around the line, or None.
        faint: single runs behind their mean.
        colour: number of its colour and dash pattern; None draws a thin grey guide that is no data.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    faint: tuple[Line, ...] = ()
    colour: int | None = 0


@dataclass(frozen=True)
class Chart:
    """What the page shows of a chart.

    Args:
        title: above it.
        note: what the numbers are, in small letters.
        svg: the picture.
        legend: class and name of each series.
        header: of the table of numbers.
        rows: of the same, already as text.
    """

    title: str
    note: str
    svg: Markup
    legend: list[tuple[str, str]]
    header: list[str]
    rows: list[list[str]]


def line_chart(
    title: str,
    series: Sequence[Series],
    note: str = "",
    x_name: str = "step",
    bounds: tuple[float | None, float | None] = (None, None),
    marks: Sequence[float] = (),
) -> Chart:
    """A chart of one or several series.

    Args:
        title: its heading.
        series: at least one with a point.
        note: unit and meaning.
        x_name: under the axis.
        bounds: lowest and highest value that the vertical axis shows at least; None takes the data's.
        marks: x at which a vertical line stands, such as alarms.
    """
    data = [line for line in series if line.colour is not None]
    frame = _Frame.around(series, bounds)
    parts = [frame.axes(x_name)]
    parts += [frame.mark(x) for x in marks if frame.x_low <= x <= frame.x_high]
    parts += [frame.band(line) for line in series if line.band is not None]
    parts += [frame.path(*single, f"faint {_style(line)}") for line in series for single in line.faint]
    parts += [frame.path(line.x, line.y, _style(line), None if line.colour is None else line.name) for line in series]
    parts.append(Markup('<line class="pointer" y1="{}" y2="{}" visibility="hidden"/>').format(_TOP, _HEIGHT - _BOTTOM))
    header, rows = _table(data, x_name)
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, _described(title, data), Markup("").join(parts)
    )
    legend = [(_style(line), line.name) for line in data]
    return Chart(title, note, svg, legend, header, rows)


def short(value: float | None, digits: int = 4) -> str:
    """A number with up to ``digits`` significant digits; a dash where there is none."""
    if value is None:
        return "–"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], at most ``most`` + 1 of them."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [position * step for position in range(first, last + 1)]


@dataclass(frozen=True)
class _Frame:
    """The data's ranges, and where they lie in the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def around(cls, series: Sequence[Series], bounds: tuple[float | None, float | None]) -> _Frame:
        xs = [x for line in series for x in line.x]
        ys = [y for line in series for y in line.y]
        ys += [y for line in series for _, values in line.faint for y in values]
        edges = [y for line in series for edge in line.band or () for y in edge]
        if edges:
            # an interval of two seeds is 25 standard errors wide and would leave next to nothing of the lines; and it
            # may reach where no value can be
            room = max(ys) - min(ys) or math.inf
            lowest = max(min(edges), min(ys) - room, -math.inf if bounds[0] is None else bounds[0])
            highest = min(max(edges), max(ys) + room, math.inf if bounds[1] is None else bounds[1])
            ys += [lowest, highest]
        ys += [bound for bound in bounds if bound is not None]
        (x_low, x_high), (y_low, y_high) = _widened(min(xs), max(xs)), _widened(min(ys), max(ys))
        margin = 0.04 * (y_high - y_low)
        low_is_bound, high_is_bound = y_low == bounds[0], y_high == bounds[1]
        return cls(x_low, x_high, y_low - margin * (not low_is_bound), y_high + margin * (not high_is_bound))

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (self.y_high - value) / (self.y_high - self.y_low) * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self, x_name: str) -> Markup:
        right, base = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            parts.append(_line("grid", _LEFT, y, right, y))
            parts.append(_text("end", _LEFT - 6, y + 4, _tick(value)))
        for value in ticks(self.x_low, self.x_high, 4):
            parts.append(_line("tick", self.x(value), base, self.x(value), base + 4))
            anchor = "end" if self.x(value) > right - 12 else "middle"
            parts.append(_text(anchor, self.x(value), base + 16, _tick(value)))
        parts.append(_line("axis", _LEFT, base, right, base))
        parts.append(_text("middle", (_LEFT + right) / 2, _HEIGHT - 3, x_name))
        return Markup("").join(parts)

    def mark(self, x: float) -> Markup:
        return _line("mark", self.x(x), _TOP, self.x(x), _HEIGHT - _BOTTOM)

    def path(self, xs: Sequence[float], ys: Sequence[float], style: str, name: str | None = None) -> Markup:
        """A line; one with a name shows its values under the pointer."""
        if len(xs) == 1:
            dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"/>')
            return dot.format(style, self.x(xs[0]), self.y(ys[0]))
        kept = _thinned(ys)
        points = " ".join(f"{self.x(xs[i]):.1f},{self.y(ys[i]):.1f}" for i in kept)
        values = ""
        if name is not None:
            numbers = ";".join(f"{short(xs[i])}|{short(ys[i])}" for i in kept)
            values = Markup(' data-name="{}" data-values="{}"').format(name, numbers)
        return Markup('<polyline class="line {}" points="{}"{}/>').format(style, points, values)

    def band(self, line: Series) -> Markup:
        low, high = ([min(max(y, self.y_low), self.y_high) for y in edge] for edge in line.band or ((), ()))
        there = [(line.x[i], high[i]) for i in range(len(line.x))]
        back = [(line.x[i], low[i]) for i in reversed(range(len(line.x)))]
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in there + back)
        return Markup('<polygon class="band {}" points="{}"/>').format(_style(line), points)


def _style(line: Series) -> str:
    if line.colour is None:
        return "guide"
    # a second round of the colours has other dash patterns
    return f"c{line.colour % COLOURS} d{(line.colour + line.colour // COLOURS) % 4}"


def _widened(low: float, high: float) -> tuple[float, float]:
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    room = 0.5 * abs(low) or 0.5
    return low - room, high + room


def _thinned(values: Sequence[float]) -> list[int]:
    """Positions to draw: all, or of each stretch the lowest and the highest, so that no spike is lost."""
    if len(values) <= _MOST_POINTS:
        return list(range(len(values)))
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), _MOST_POINTS // 2):
        part = np.asarray(values)[stretch]
        kept |= {int(stretch[part.argmin()]), int(stretch[part.argmax()])}
    return sorted(kept)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(style, x1, y1, x2, y2)


def _text(anchor: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(anchor, x, y, text)


def _tick(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    # 1e-06 is longer than the room beside the axis
    return re.sub(r"e([-+])0", r"e\1", f"{0.0 if abs(value) < 1e-12 else value:.6g}")


def _described(title: str, series: Sequence[Series]) -> str:
    """What a screen reader says of the picture; the numbers are in the table below it."""
    ends = [f"{line.name} ends at {short(line.y[-1])}, range {short(min(line.y))} to {short(max(line.y))}"
            for line in series[:COLOURS]]  # fmt: skip
    more = f"; and {len(series) - COLOURS} more" if len(series) > COLOURS else ""
    return f"Line chart, {title}: {'; '.join(ends)}{more}"


def _table(series: Sequence[Series], x_name: str) -> tuple[list[str], list[list[str]]]:
    xs = sorted({x for line in series for x in line.x})
    if len(xs) > _TABLE_ROWS:
        xs = [xs[round(i * (len(xs) - 1) / (_TABLE_ROWS - 1))] for i in range(_TABLE_ROWS)]
    header = [x_name]
    columns: list[dict[float, str]] = []
    for line in series:
        header.append(line.name)
        columns.append({x: short(y) for x, y in zip(line.x, line.y, strict=True)})
        if line.band is not None:
            header.append("band")
            edges = zip(line.x, *line.band, strict=True)
            columns.append({x: f"{short(low)} to {short(high)}" for x, low, high in edges})
    return header, [[short(x), *(column.get(x, "–") for column in columns)] for x in xs]
