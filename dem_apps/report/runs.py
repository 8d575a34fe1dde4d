"""Run folders read back for pages and tables, and runs grouped into arms over seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.documents import is_a, read_json, required, shaped
from dem_apps.runtime.metrics_info import FILE, LARGEST, MetricsInfo, Score
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
    #: ``eval.json``; empty while the run is not finished
    evaluation: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)  #: the lines of ``metrics.jsonl``
    #: a sentence for each part that is not there or is damaged
    missing: list[str] = field(default_factory=list)
    row: str = ""  #: of a grid with rows: the name of the run's row
    arm: str = ""  #: of a grid: the name of the run's arm

    @property
    def seed(self) -> Any:
        """The seed in the settings."""
        return self.config.get("seed")

    @property
    def kind(self) -> str:
        """The kind of run, and its task; runs of one kind are compared."""
        task = self.row or flat(self.config).get(self.info.task)
        return f"{self.info.heading}: {task}" if task else self.info.heading

    def colours(self) -> list[tuple[str, str]]:
        """Names and #rrggbb of the classes, where the run has ``classes.json``."""
        file = self.path / "classes.json"
        with named_in(self.missing, "the colours of the classes are unknown"):
            document = read_json(file, self.path) if file.exists() else {"classes": []}
            with passed_on(f"{file}: expected classes with a name and three numbers from 0 to 255"):
                rows = document["classes"]
                coloured = [
                    (str(row["name"]), bytes([*row["color"]])) for row in rows if row.get("color")
                ]
                return [(name, "#{:02x}{:02x}{:02x}".format(*colour)) for name, colour in coloured]
        return []

    def score(self, key: str) -> float | None:
        """A number of ``eval.json`` by its key with dots; None where the run has none."""
        return number(at(self.evaluation, key))

    def by_class(self, key: str) -> dict[str, float | None]:
        """A mapping from classes to numbers; None for a class without one."""
        found = at(self.evaluation, key)
        return (
            {str(name): number(value) for name, value in found.items()}
            if isinstance(found, dict)
            else {}
        )

    def curve(self, key: str) -> dict[int, float]:
        """Value of a metric by step; lines without a finite value are left out."""
        points = {
            line["step"]: value
            for line in self.metrics
            if (value := number(line.get(key))) is not None
        }
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

    def censored(self, score: Score) -> bool:
        """Whether a run has a bound of the score alone; see :attr:`Score.reached`."""
        bounds = [
            run
            for run in self.runs
            if run.score(score.key) is not None and run.score(score.reached) is None
        ]
        return bool(score.reached and bounds)


#: A finished run of a grid behind its row, empty without rows, and its arm.
Finished = tuple[str, str, Run]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run once, named by the shortest end of its path that no other has."""
    resolved, depth = list(dict.fromkeys(path.resolve() for path in paths)), 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    return [read_run(path, "/".join(path.parts[-depth:])) for path in resolved]


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, else an InputError; what is missing or damaged is said in :attr:`Run.missing`."""
    if not (path / "config.yaml").exists():
        raise InputError(f"{path}: not a run folder (it has no config.yaml)")
    if not (path / FILE).exists():
        raise InputError(
            f"{path}: is a run of an earlier version, or no training (it has no {FILE})"
        )
    missing: list[str] = []

    def read(file: str, consequence: str, reader: Callable[[], Any] | None = None) -> Any:
        if not (path / file).exists():
            missing.append(f"{file} is missing: {consequence}.")
            return None
        with named_in(missing, consequence):
            return reader() if reader else required(read_json(path / file, path), str(path / file))

    config = read("config.yaml", "its settings are unknown", lambda: read_config(path)) or {}
    unknown = "its metrics, scores and pictures are unknown"
    info = read(
        FILE, unknown, lambda: shaped(MetricsInfo, read_json(path / FILE, path), str(path / FILE))
    )
    info = info or MetricsInfo("A run of an unknown kind")
    environment = read("environment.json", "versions and command are unknown") or {}
    evaluation = read("eval.json", "the run has not finished, so there are no final scores") or {}
    metrics = read("metrics.jsonl", "there are no curves", lambda: read_metrics(path)) or []
    for part, kind in (
        *((each.key, float) for each in info.scores),
        *((each.key, dict) for each in info.classes),
    ):
        if (value := at(evaluation, part)) is not None and not is_a(value, kind):
            missing.append(
                f"eval.json: '{part}' is of the wrong type ({type(value).__name__}): it is left out."
            )
    return Run(
        name or path.resolve().name, path, info, config, environment, evaluation, metrics, missing
    )


@contextmanager
def named_in(missing: list[str], consequence: str = "it is left out") -> Iterator[None]:
    """Around the reading of a part of a run: an error about it becomes a sentence in ``missing``."""
    try:
        yield
    except (InputError, OSError) as error:
        missing.append(f"{str(error)[:300]}: {consequence}.")


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of one arm, or else of equal settings, together; groups and runs in the order given."""
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        settings = {key: text for key, text in flat(run.config).items() if key not in NOT_OF_AN_ARM}
        members.setdefault((("arm", run.arm), *settings.items()), []).append(run)
    differences = differing([dict(key) for key in members])
    names: list[str] = []
    for position, of_group in enumerate(members.values()):
        bare = {re.sub(r"[-_./]*seed[-_=]*\d+", "", run.name) for run in of_group}
        if of_group[0].arm:
            name = of_group[0].arm
        elif len(of_group) == 1:
            name = of_group[0].name
        elif len(bare) == 1 and bare != {""}:
            name = bare.pop()
        else:
            name = ", ".join(
                f"{key} {values[position]}" for key, values in list(differences.items())[:4]
            )
        name = name or "all runs"
        names.append(name if name not in names else f"{name} ({position + 1})")
    return [
        Group(name, tuple(of_group)) for name, of_group in zip(names, members.values(), strict=True)
    ]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """By key, the value in each of ``settings``, for the keys in which they differ."""
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = {key: [one.get(key, "–") for one in settings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def flat(document: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys and short texts."""
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)[:400]
        for key, value in dotted(document).items()
    }


def at(document: Any, key: str) -> Any:
    """The value at a key with dots, or None."""
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def number(value: Any) -> float | None:
    """``value`` as a float that can be drawn and averaged, or None."""
    return float(value) if is_a(value, float) and abs(value) <= LARGEST else None
