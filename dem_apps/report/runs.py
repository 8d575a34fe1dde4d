"""Run folders read back for pages and tables, and runs grouped into arms over seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dem_apps.errors import InputError
from dem_apps.runtime.documents import read_json, required
from dem_apps.runtime.metrics_info import FILE, MetricsInfo, read_metrics_info
from dem_apps.runtime.run_reader import read_config, read_metrics
from dem_apps.runtime.settings import dotted

#: Settings in which two runs of one group may differ.
NOT_OF_AN_ARM = ("seed", "run_dir", "resume")


@dataclass(frozen=True)
class Run:
    """A run folder, however little of it there is."""

    name: str  #: on pages
    path: Path
    info: MetricsInfo
    config: dict[str, Any]
    environment: dict[str, Any] = field(default_factory=dict)  #: ``environment.json``
    evaluation: dict[str, Any] = field(default_factory=dict)  #: ``eval.json``; empty while the run is not finished
    metrics: list[dict[str, Any]] = field(default_factory=list)  #: the lines of ``metrics.jsonl``
    missing: tuple[str, ...] = ()  #: a sentence for each file that is not there or cannot be read

    @property
    def seed(self) -> Any:
        """The seed in the settings."""
        return self.config.get("seed")

    @property
    def kind(self) -> str:
        """The kind of run, and its task; runs of one kind are compared."""
        task = flat(self.config).get(self.info.task)
        return f"{self.info.heading}: {task}" if task else self.info.heading

    @property
    def colours(self) -> list[tuple[str, str]]:
        """Names and #rrggbb of the classes, where the run has ``classes.json``."""
        file = self.path / "classes.json"
        rows = read_json(file).get("classes", []) if file.is_file() else []
        return [(str(row["name"]), "#{:02x}{:02x}{:02x}".format(*row["color"])) for row in rows if row.get("color")]

    def score(self, key: str) -> float | None:
        """A number of ``eval.json`` by its key with dots; None where the run has none."""
        return number(at(self.evaluation, key))

    def by_class(self, key: str) -> dict[str, float | None]:
        """A mapping from classes to numbers; None for a class without one."""
        found = at(self.evaluation, key)
        return {str(name): number(value) for name, value in found.items()} if isinstance(found, dict) else {}

    def curve(self, key: str) -> dict[int, float]:
        """Value of a metric by step; lines without a finite value are left out."""
        points = {line["step"]: value for line in self.metrics if (value := number(line.get(key))) is not None}
        return dict(sorted(points.items()))

    def alarms(self) -> list[tuple[int, str]]:
        """Steps and sentences of the alarms in the log."""
        return [(line["step"], str(line["alarm"])) for line in self.metrics if line.get("alarm")]


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

    def scores(self, key: str) -> dict[str, float]:
        """A number of ``eval.json`` of each run that has it, by seed."""
        values = {seed: run.score(key) for seed, run in zip(self.seeds, self.runs, strict=True)}
        return {seed: value for seed, value in values.items() if value is not None}


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run, named by the shortest end of its path that no other has; an InputError for a path given twice."""
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise InputError(f"{paths[index]}: is given twice; give every run once")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    return [read_run(path, "/".join(path.parts[-depth:])) for path in resolved]


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, else an InputError; what is missing or broken is said in :attr:`Run.missing`."""
    config = read_config(path)
    if not (path / FILE).is_file():
        raise InputError(f"{path}: is a run of an earlier version, or no run of a training (it has no {FILE})")
    missing: list[str] = []

    def read(file: str, consequence: str) -> Any:
        try:
            if (path / file).is_file():
                return (
                    read_metrics(path)
                    if file == "metrics.jsonl"
                    else required(read_json(path / file), str(path / file))
                )
            missing.append(f"{file} is missing: {consequence}.")
        except InputError as error:
            missing.append(f"{str(error)[:300]}: {consequence}.")
        return None

    environment = read("environment.json", "versions and command are unknown")
    evaluation = read("eval.json", "the run has not finished, so there are no final scores")
    metrics = read("metrics.jsonl", "there are no curves")
    return Run(
        name or path.resolve().name, path, read_metrics_info(path / FILE), config, environment or {},
        evaluation or {}, metrics or [], tuple(missing),
    )  # fmt: skip


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal settings together, groups and runs in the order given."""
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        settings = {key: text for key, text in flat(run.config).items() if key not in NOT_OF_AN_ARM}
        members.setdefault(tuple(settings.items()), []).append(run)
    differences = differing([dict(key) for key in members])
    names: list[str] = []
    for position, of_group in enumerate(members.values()):
        bare = {re.sub(r"[-_./]*seed[-_=]*\d+", "", run.name) for run in of_group}
        if len(of_group) == 1:
            name = of_group[0].name
        elif len(bare) == 1 and bare != {""}:
            name = bare.pop()
        else:
            name = ", ".join(f"{key} {values[position]}" for key, values in list(differences.items())[:4])
        name = name or "all runs"
        names.append(name if name not in names else f"{name} ({position + 1})")
    return [Group(name, tuple(of_group)) for name, of_group in zip(names, members.values(), strict=True)]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """By key, the value in each of ``settings``, for the keys in which they differ."""
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = {key: [one.get(key, "–") for one in settings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def flat(document: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys and short texts."""
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)[:400] for key, value in dotted(document).items()
    }


def at(document: Any, key: str) -> Any:
    """The value at a key with dots, or None."""
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        return None
    return float(value)
