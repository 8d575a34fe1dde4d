"""What a training says about its own metrics, scores and pictures: ``metrics_info.json`` in the run folder.

Pages and tables are made from this description, so they know no application. A key of ``eval.json`` is written with
dots: ``checkpoints.best.miou``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dem_apps.errors import InputError
from dem_apps.runtime.files import read_json

FILE = "metrics_info.json"
#: Which direction is an improvement; empty where neither is.
Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A key of ``metrics.jsonl``, drawn over the steps; metrics with one ``chart`` share it."""

    name: str
    title: str
    chart: str = ""
    unit: str = ""
    note: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class Score:
    """A number of ``eval.json``, or a mapping from classes to numbers.

    Args:
        key: where it stands, with dots.
        title: its heading.
        better: the direction of an improvement.
        note: said below the heading.
        warning: whether the note is a warning, such as that target labels were used.
        scale: what it is multiplied with for display, such as 100 for per cent.
        digits: behind the point.
    """

    key: str
    title: str
    better: Better = ""
    note: str = ""
    warning: bool = False
    scale: float = 1.0
    digits: int = 3

    def text(self, value: float, sign: str = "") -> str:
        """The value as it is displayed; ``sign="+"`` for differences."""
        return f"{self.scale * value:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class View:
    """One of the pictures that a run writes of an image: ``entropy_maps/IMAGE/NAME.png``.

    Args:
        classes: whether its colours are classes, between which no colour may be made.
        main: whether it is shown unfolded.
    """

    name: str
    note: str = ""
    classes: bool = False
    main: bool = True


@dataclass(frozen=True)
class MetricsInfo:
    """All that a run says about what it holds.

    Args:
        heading: what kind of runs these are; runs of one heading are compared with each other.
        summary: what sets this run apart, in a few words.
        settings: those that a page names first.
        control: what a run has to be compared with, in words.
        scores: the first is the one that a page begins with.
        classes: mappings from classes to numbers, the first being the main one.
        class_share: key of each class's share of the labels.
        views: of the pictures in ``entropy_maps/``.
        reliability: key of a mapping with lists ``confidence`` and ``accuracy``, one number a bin.
        histogram: key of a mapping with the list ``edges`` and one list of counts for each part.
    """

    heading: str
    summary: str = ""
    settings: tuple[str, ...] = ()
    control: str = ""
    metrics: tuple[Metric, ...] = ()
    scores: tuple[Score, ...] = ()
    classes: tuple[Score, ...] = ()
    class_share: str = ""
    views: tuple[View, ...] = ()
    reliability: str = ""
    histogram: str = ""

    def document(self) -> dict[str, Any]:
        """For :meth:`dem_apps.runtime.run_folder.RunFolder.create`; see :func:`read_metrics_info`."""
        return dataclasses.asdict(self)


def read_metrics_info(file: Path) -> MetricsInfo:
    """The description in a run folder.

    Raises:
        InputError: no JSON, or none of this version's descriptions.
    """
    document = read_json(file)
    lists = {"metrics": Metric, "scores": Score, "classes": Score, "views": View}
    try:
        parts = {name: tuple(kind(**item) for item in document.pop(name)) for name, kind in lists.items()}
        info = MetricsInfo(**{**document, **parts, "settings": tuple(document["settings"])})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{file}: is no description of this version ({error})") from error
    if any(Path(view.name).name != view.name for view in info.views):
        raise InputError(f"{file}: a view's name is no plain name of a file")
    return info
