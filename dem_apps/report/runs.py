"""Run folders read back for pages and tables, and runs grouped into arms over seeds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import Document, Settings, is_a, read_json, required, shaped
from dem_apps.runtime.metrics_info import FILE, LARGEST, MetricsInfo, Score
from dem_apps.runtime.run_reader import read_config, read_metrics
from dem_apps.runtime.settings import dotted

#: A class with less than this share of the labelled pixels that are scored is a tail class.
_TAIL_SHARE = 0.01
#: The mean over the tail classes.
_TAIL = Score("tail_classes", "tail classes %", better="higher", scale=100, digits=2)
#: Settings in which two runs of one group may differ.
_NOT_OF_AN_ARM = ("seed", "run_dir", "resume")


@dataclass(frozen=True)
class Run:
    """A run folder."""

    name: str  #: on pages
    path: Path
    info: MetricsInfo
    config: Document
    environment: Document  #: ``environment.json``
    evaluation: Document  #: ``eval.json``; empty while the run is not finished
    metrics: list[Document]  #: the lines of ``metrics.jsonl``
    row: str = ""  #: of a grid with rows: the name of the run's row
    arm: str = ""  #: of a grid: the name of the run's arm

    @property
    def seed(self) -> Any:
        """The seed in the settings."""
        return self.config.get("seed")

    @property
    def kind(self) -> str:
        """The kind of run, and its task; runs of one kind are compared."""
        task = self.row or at(self.config, self.info.task)
        return f"{self.info.heading}: {task}" if task else self.info.heading

    def colours(self) -> list[tuple[str, str]]:
        """Return names and #rrggbb of the classes, where the run has ``classes.json``."""
        file = self.path / "classes.json"
        if not file.exists():
            return []
        with passed_on(f"{file}: expected classes with a name and three numbers from 0 to 255"):
            return [
                (str(row["name"]), f"#{bytes([*row['color']]).hex()}")
                for row in read_json(file, self.path)["classes"]
                if row.get("color")
            ]

    def score(self, key: str, name: str | None = None) -> float | None:
        """Return a number of ``eval.json`` by its key with dots; None where the run has none.

        With the ``name`` of a class it is that of the class.
        """
        if name is not None:
            return self.by_class(key).get(name)
        return number(at(self.evaluation, key))

    def by_class(self, key: str) -> dict[str, float | None]:
        """Return a mapping from classes to numbers, None for a class without one; empty where no class has one."""
        mapping = at(self.evaluation, key)
        if not isinstance(mapping, dict):
            return {}
        values = {str(name): number(value) for name, value in mapping.items()}
        return values if any(value is not None for value in values.values()) else {}

    def tail(self) -> list[str]:
        """Return the classes that are rare in the labels."""
        shares = self.by_class(self.info.class_share).items()
        return [name for name, share in shares if share is not None and share < _TAIL_SHARE]

    def curve(self, key: str) -> dict[int, float]:
        """Return the values of a metric by step; lines without a finite value are left out."""
        points = [(line["step"], number(line.get(key))) for line in self.metrics]
        return dict(sorted((step, value) for step, value in points if value is not None))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone: an arm."""

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[str]:
        """The seed of each run; the names of the runs where two have one seed."""
        seeds = [str(run.seed) for run in self.runs]
        return seeds if len(set(seeds)) == len(seeds) else [run.name for run in self.runs]

    def scores(self, key: str, name: str | None = None) -> dict[str, float]:
        """Return :meth:`Run.score` of each run that has it, by seed."""
        runs = zip(self.seeds, self.runs, strict=True)
        values = [(seed, run.score(key, name)) for seed, run in runs]
        return {seed: value for seed, value in values if value is not None}

    def censored(self, score: Score) -> bool:
        """Return whether a run has only a bound of the score, see :attr:`Score.reached`."""
        return (
            bool(score.reached)
            and self.scores(score.key).keys() != self.scores(score.reached).keys()
        )


Runs = Sequence[Run]
#: Arms that are compared; on a page the first is the baseline.
Groups = Sequence[Group]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read every run once, named by its path below the folder that holds all of them."""
    resolved = list(dict.fromkeys(path.resolve() for path in paths))
    above = os.path.commonpath([path.parent for path in resolved])
    return [read_run(path, str(path.relative_to(above))) for path in resolved]


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, finished or not.

    Raises:
        InputError: the folder is no run of a training, or one of its files is damaged.
    """

    def document(file: str) -> Document:
        if not (path / file).exists():
            return {}
        return required(read_json(path / file, path), str(path / file))

    for file in ("config.yaml", FILE):
        if not (path / file).exists():
            raise InputError(f"{path}: is not a run folder of a training (it has no {file})")
    run = Run(
        name or path.resolve().name,
        path,
        shaped(MetricsInfo, document(FILE), str(path / FILE)),
        read_config(path),
        document("environment.json"),
        document("eval.json"),
        read_metrics(path) if (path / "metrics.jsonl").exists() else [],
    )
    return _with_tail(run) if run.info.classes else run


def _with_tail(run: Run) -> Run:
    """Return the run with the mean over its tail classes as one more score."""
    by_class = run.by_class(run.info.classes[0].key)
    values = [value for name in run.tail() if (value := by_class.get(name)) is not None]
    evaluation = dict(run.evaluation)
    if values:
        evaluation[_TAIL.key] = sum(values) / len(values)
    info = replace(run.info, scores=(*run.info.scores, _TAIL))
    return replace(run, info=info, evaluation=evaluation)


def grouped(runs: Runs) -> list[Group]:
    """Put runs of one arm, or else of equal settings, together; groups and runs in the order given."""
    members: dict[Any, list[Run]] = {}
    for run in runs:
        settings = flat(run.config)
        for key in _NOT_OF_AN_ARM:
            settings.pop(key, None)
        members.setdefault((run.arm, *settings.items()), []).append(run)
    groups = dict[str, Group]()
    for together in members.values():
        name = together[0].arm or together[0].name
        if len(together) > 1 and not together[0].arm:
            name = re.sub(r"[-_./]*seed[-_=]*\d+", "", name) or "all runs"
        if name in groups:
            name = f"{name} ({len(groups) + 1})"
        groups[name] = Group(name, tuple(together))
    return list(groups.values())


def runs_of(groups: Groups) -> list[Run]:
    """Return the runs of all arms."""
    return [run for group in groups for run in group.runs]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return by key the value in each of ``settings``, for the keys in which arms differ."""
    rows = {}
    for key in dict.fromkeys(chain(*settings)):
        values = [each.get(key, "–") for each in settings]
        if len(set(values)) > 1 and key not in _NOT_OF_AN_ARM:
            rows[key] = values
    return rows


def flat(document: Settings) -> dict[str, str]:
    """Return nested settings as dotted keys and texts."""
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in dotted(document).items()
    }


def at(document: Any, key: str) -> Any:
    """Return the value at a key with dots, or None."""
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def number(value: Any) -> float | None:
    """Return ``value`` as a float that can be drawn and averaged, or None."""
    return float(value) if is_a(value, float) and abs(value) <= LARGEST else None
