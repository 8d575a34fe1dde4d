"""metrics_info.json: a training's description of its metrics, scores and pictures, by which pages know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FILE = "metrics_info.json"
#: Size of a number that is drawn and averaged at most.
LARGEST = 1e30


@dataclass(frozen=True)
class Metric:
    """A key of ``metrics.jsonl`` that is drawn over the steps; one ``chart`` may have several."""

    name: str
    title: str
    chart: str = ""
    unit: str = ""
    note: str = ""
    scale: float = 1.0
    label_free: bool = False  #: known without labels, and drawn apart from what labels say


@dataclass(frozen=True)
class Score:
    """A number of ``eval.json``, or a mapping from classes to numbers."""

    key: str  #: where it stands, with dots: ``checkpoints.best.miou``
    title: str
    better: Literal["higher", "lower", ""] = ""  #: the direction of an improvement, if any
    note: str = ""  #: below the title
    warning: bool = False  #: whether the note is a warning, such as that target labels were used
    scale: float = 1.0  #: for display, such as 100 for per cent
    digits: int = 3
    reached: str = ""  #: the key that is null where a run is censored: its number is a bound

    def text(self, value: float, sign: str = "") -> str:
        """The value as it is displayed; ``sign="+"`` for differences."""
        return f"{self.scale * value:{sign}.{self.digits}f}"


Scores = Sequence[Score]


@dataclass(frozen=True)
class View:
    """One of the pictures that a run writes of an image: ``entropy_maps/IMAGE/NAME.png``."""

    name: str
    note: str = ""
    classes: bool = False  #: its colours are classes, between which no colour may be made
    main: bool = True  #: shown unfolded


@dataclass(frozen=True)
class MetricsInfo:
    """The description of what a run holds."""

    heading: str  #: the kind of run; runs of one heading are compared with each other
    summary: str = ""  #: of this run, in a few words
    settings: tuple[str, ...] = ()  #: those that a page names first
    task: str = ""  #: the setting that names the task; runs of two tasks are not compared
    control: str = ""  #: what a run has to be compared with, in words
    metrics: tuple[Metric, ...] = ()
    scores: tuple[Score, ...] = ()  #: the first is the one that a page begins with
    #: mappings from classes to numbers, the first being the main one
    classes: tuple[Score, ...] = ()
    class_share: str = ""  #: key of each class's share of the labels
    views: tuple[View, ...] = ()
