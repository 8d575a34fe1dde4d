"""What a training says about its own numbers and pictures: ``metrics_info.json`` in the run folder.

Pages, tables and figures are made from this description, so they know no application, and a new metric is shown with
its title, unit and direction as soon as the training that writes it describes it. A key of ``eval.json`` is written
with dots: ``checkpoints.best.miou``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json

FILE = "metrics_info.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]{0,99}")
#: Which direction is an improvement; empty where neither is.
Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A key of ``metrics.jsonl``, drawn over the steps.

    Args:
        name: the key.
        title: its name in a legend, and above a chart of its own.
        chart: heading of the chart that all metrics with this heading share; empty for one of the further metrics.
        unit: what one of it is.
        note: what else a reader has to know.
        low: what the vertical axis shows at least.
        high: likewise.
        std: the metric that is its standard deviation, drawn as a band.
        scale: what it is multiplied with for display.
    """

    name: str
    title: str
    chart: str = ""
    unit: str = ""
    better: Better = ""
    note: str = ""
    low: float | None = None
    high: float | None = None
    std: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Score:
    """A number of ``eval.json``, shown in the table of final scores.

    Args:
        key: where it stands, with dots.
        title: its heading.
        unit: what one of it is, where the title does not say.
        note: said in small letters below the heading, in place of unit and direction.
        warning: whether the note is a warning, such as that target labels were used.
        scale: what it is multiplied with for display, such as 100 for per cent.
        digits: behind the point.
        std: key of its standard deviation, shown beside the value of a single run.
    """

    key: str
    title: str
    unit: str = ""
    better: Better = ""
    note: str = ""
    warning: bool = False
    scale: float = 1.0
    digits: int = 3
    std: str = ""

    def text(self, value: float, sign: str = "") -> str:
        """The value as it is displayed; ``sign="+"`` for differences."""
        return f"{self.scale * value:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that a run keeps: what chose it, and the keys of its score (one of the scores) and of its step."""

    name: str
    chosen_by: str
    score: str
    step: str


@dataclass(frozen=True)
class ClassColumn:
    """A further mapping from classes to numbers, shown for a single run: its key, heading, and what it is."""

    key: str
    title: str
    note: str = ""
    scale: float = 1.0
    digits: int = 3


@dataclass(frozen=True)
class ClassScores:
    """Mappings of ``eval.json`` from the name of a class to a number in 0 to 1, shown as bars.

    Args:
        key: of the main one.
        share: key of each class's share of the labels, which tells rare classes.
        columns: further mappings beside it.
    """

    heading: str
    key: str
    title: str
    share: str = ""
    columns: tuple[ClassColumn, ...] = ()


@dataclass(frozen=True)
class Reliability:
    """A line through bins of ``eval.json``: keys of three lists, ``x`` and ``y`` being means over ``count`` items."""

    title: str
    note: str
    count: str
    x: str
    x_title: str
    y: str


@dataclass(frozen=True)
class Counts:
    """The key of a list of ``eval.json``, one count per bin of a histogram."""

    title: str
    key: str


@dataclass(frozen=True)
class Histogram:
    """Counts of ``eval.json`` in bins between ``edges``, the key of a list that is one longer than its parts."""

    title: str
    note: str
    edges: str
    x_title: str
    parts: tuple[Counts, ...]


@dataclass(frozen=True)
class View:
    """One of the pictures that a run writes of an image, ``FOLDER/IMAGE/NAME.png``.

    Args:
        alt: what it shows, in words, with ``{run}`` and ``{image}`` for their names.
        classes: whether its colours are classes, between which no colour may be made.
        low: what the dark end of its colour scale is; empty where it has none.
        high: what the light end is.
        hatched: what a hatched area in it is.
        optional: whether an image may well be without it.
        note: what its colours are, said beside its name.
    """

    name: str
    alt: str
    classes: bool = False
    low: str = ""
    high: str = ""
    hatched: str = ""
    optional: bool = False
    note: str = ""


@dataclass(frozen=True)
class Pictures:
    """Pictures of images.

    Args:
        folder: in the run folder.
        views: in the order in which they are shown; of a file ``FOLDER/IMAGE.png`` the first three side by side.
        colours: the file that names the colours: ``{"classes": [{"name": …, "color": [r, g, b]}]}``.
    """

    heading: str
    folder: str
    views: tuple[View, ...]
    colours: str = ""


@dataclass(frozen=True)
class MetricsInfo:
    """All that a run says about what it holds.

    Args:
        verdict: the score of ``scores`` that a page begins with; empty takes the first.
        control: what a run has to be compared with, in words: "a run with --loss none"; empty where nothing is.
        heading: what kind of runs these are; runs of one heading are compared with each other.
        summary: what sets this run apart, in a few words, such as "trained on source alone"; empty says nothing.
        settings: those that a page names first.
        steps: the setting that says how long the run lasts.
        checkpoint_score: what the score of a checkpoint is.
        certainty: heading above reliability and histogram.
        videos: heading above the recordings in ``videos/``.
    """

    heading: str
    summary: str = ""
    settings: tuple[str, ...] = ()
    verdict: str = ""
    control: str = ""
    steps: str = ""
    metrics: tuple[Metric, ...] = ()
    scores: tuple[Score, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    checkpoint_score: str = "score"
    classes: ClassScores | None = None
    certainty: str = ""
    reliability: Reliability | None = None
    histogram: Histogram | None = None
    pictures: Pictures | None = None
    videos: str = "Videos"

    def document(self) -> dict[str, Any]:
        """For :meth:`dem_apps.runtime.run_folder.RunFolder.create`; see :func:`read_metrics_info`."""
        return dataclasses.asdict(self)


#: Stands in for runs that are older than the description: their metrics go by the names that they were logged under.
UNDESCRIBED = MetricsInfo(
    "Runs that do not describe their metrics",
    pictures=Pictures(
        "Pictures",
        "entropy_maps",
        tuple(View(name, f"{name} of {{image}} by {{run}}") for name in ("image", "prediction", "entropy", "label")),
        "classes.json",
    ),
)


def read_metrics_info(file: Path) -> MetricsInfo:
    """The description in a run folder; keys that this version does not know are left out.

    Raises:
        InputError: no JSON, a key that is missing, or a value of another type.
    """
    document = read_json(file)
    try:
        info: MetricsInfo = _parsed(MetricsInfo, document)
    except ValueError as error:
        raise InputError(f"{file}: {error}") from error
    pictures = info.pictures
    names = (pictures.folder, pictures.colours or "-", *(view.name for view in pictures.views)) if pictures else ()
    for name in names:
        # the folder may be a stranger's, and a page must not show what lies outside it
        if _PLAIN_NAME.fullmatch(name) is None:
            raise InputError(f"{file}: {name!r:.50} is no plain name of a file")
    return info


def same_heading(infos: Sequence[MetricsInfo]) -> MetricsInfo:
    """One description of several runs: the first one's, and what only others describe."""
    metrics = {metric.name: metric for info in reversed(infos) for metric in info.metrics}
    ordered = dict.fromkeys(metric.name for info in infos for metric in info.metrics)
    only_some: dict[str, Any] = {
        name: next((part for info in infos if (part := getattr(info, name)) is not None), None)
        for name in ("classes", "reliability", "histogram", "pictures")
    }
    return dataclasses.replace(infos[0], metrics=tuple(metrics[name] for name in ordered), **only_some)


def _parsed(kind: Any, value: Any) -> Any:
    """``value`` as the annotated type ``kind``; a ValueError says what does not fit."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        given = value if isinstance(value, dict) else {}
        missing = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.name not in given]
        if missing:
            raise ValueError(f"a {getattr(kind, '__name__', kind)} has no '{missing[0]}'")
        return kind(**{name: _parsed(hints[name], given[name]) for name in hints if name in given})  # type: ignore[operator]
    arguments = get_args(kind)
    if get_origin(kind) is UnionType:
        return None if value is None else _parsed(arguments[0], value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_parsed(arguments[0], item) for item in value)
    if get_origin(kind) is Literal and value in arguments:
        return value
    if kind is float and type(value) in (int, float) and abs(value) < 1e100:  # neither NaN nor infinite
        return float(value)
    if kind in (str, bool) and type(value) is kind:
        return value
    if kind is int and type(value) is int and 0 <= value < 10:  # digits behind the point
        return value
    raise ValueError(f"{value!r:.50} is no {getattr(kind, '__name__', kind)}")
