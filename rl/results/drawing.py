"""What the figures of runs share: a panel per environment, a style per arm, one legend above."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dem_apps.errors import InputError, printable
from dem_apps.runtime.files import write_atomically
from rl.results.returns_table import short

#: Colour, line (a name, or the lengths of dashes and gaps) and marker.
Style = tuple[str, str | tuple[int, tuple[int, ...]], str]
#: Told apart by people with any colour vision (Okabe and Ito, jfly.uni-koeln.de/color), and by line and marker.
_STYLES: list[Style] = [
    ("#000000", ":", "o"), ("#0072B2", "--", "s"), ("#D55E00", "-", "^"), ("#009E73", "-.", "D"),
    ("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"), ("#56B4E9", (0, (8, 2)), "P"), ("#E69F00", (0, (1, 1)), "X"),
    ("#0072B2", ":", "<"), ("#D55E00", "--", ">"), ("#009E73", "-", "*"), ("#CC79A7", "--", "h"), ("#56B4E9", ":", "d"),
]  # fmt: skip


#: That a figure can tell apart.
MOST_ARMS = len(_STYLES)
FIGURE_SUFFIXES = (".png", ".svg")


def styles(count: int) -> list[Style]:
    """As many as there are arms.

    Raises:
        InputError: more than can be told apart.
    """
    if count > MOST_ARMS:
        raise InputError(f"a figure can tell {MOST_ARMS} arms apart, not {count}; draw fewer runs at once")
    return _STYLES[:count]


def panels_of(envs: Sequence[str]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a titled panel per environment, steps on the horizontal axis."""
    columns = min(3, len(envs))
    rows = math.ceil(len(envs) / columns)
    figure = Figure(figsize=(2.6 + 2.8 * columns, 1.1 + 2.5 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, env in zip(panels, envs, strict=False):
        title_above(panel, env)
        panel.xaxis.set_major_formatter(FuncFormatter(steps_text))
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.grid(alpha=0.3)
    for panel in panels[len(envs) :]:
        panel.axis("off")
    return figure, dict(zip(envs, panels, strict=False))


def title_above(panel: Axes, env: str) -> None:
    """Name a panel's environment, in as many lines as it takes; a dollar in a name is no formula."""
    panel.set_title(_lines(printable(short(env)), 2.8, 11), fontsize=11, parse_math=False)


def outer_labels(figure: Figure, across: str, up: str = "") -> None:
    """Say once what all panels have on their axes; no line is longer than the figure is wide, or high."""
    figure.supxlabel(_lines(across, figure.get_figwidth(), 10), fontsize=10)
    if up:
        figure.supylabel(_lines(up, figure.get_figheight(), 11), fontsize=11)


def _lines(text: str, inches: float, points: int) -> str:
    """A letter is rarely wider than six tenths of its height; the rest is margin."""
    return textwrap.fill(text, max(12, int(72 * inches / (0.6 * points)) - 3))


def legend_above(figure: Figure, lines: Mapping[str, Line2D]) -> None:
    """Name the arms; no row is wider than the figure."""
    arms = list(map(printable, lines))
    # at 10 points a letter is up to 7 points wide, and the line before it takes 55 with its margins
    fitting = int(72 * figure.get_figwidth() / (7 * max(map(len, arms), default=1) + 55))
    legend = figure.legend(
        list(lines.values()), arms, loc="outside upper center", ncols=max(1, min(len(arms), 4, fitting)), frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def steps_text(steps: float, _position: int) -> str:
    """``500k``, ``2M``."""
    if steps >= 1e6:
        return f"{steps / 1e6:g}M"
    return f"{steps / 1e3:g}k" if steps >= 1e3 else f"{steps:g}"


def save(figure: Figure, path: Path) -> None:
    """``PATH.png`` and ``PATH.svg``, without dates and random ids, so that equal results give equal files."""
    with mpl.rc_context({"svg.hashsalt": "rl", "svg.fonttype": "path"}):
        for suffix, metadata in zip(FIGURE_SUFFIXES, ({}, {"Date": None}), strict=True):
            content = io.BytesIO()
            figure.savefig(content, format=suffix[1:], dpi=150, metadata=metadata)
            write_atomically(path.with_suffix(suffix), content.getvalue())
