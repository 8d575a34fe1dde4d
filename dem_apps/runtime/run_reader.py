"""The reader of run folders: what is there, and for every file that is missing or broken a sentence.

Only files are read, never a network. Numbers that are not finite count as absent. A page shows what is missing and goes
on; :meth:`Run.require`, :func:`read_config` and :func:`read_metrics` refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dem_apps.errors import InputError
from dem_apps.runtime import metrics_info
from dem_apps.runtime.files import parsed_json, read_json, read_text, read_yaml
from dem_apps.runtime.metrics_info import MetricsInfo, read_metrics_info

#: What a folder must hold one of to be a run.
_FILES = ("config.yaml", "metrics.jsonl", "eval.json", "environment.json")

#: Beyond it, differences and squares of two numbers would be infinite.
_LARGEST = 1e100

Line = dict[str, Any]
Content = TypeVar("Content")


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        name: what it is called in a report; unique there.
        info: what the run says about its metrics, or a stand-in.
        config: of ``config.yaml``; empty where there is none, as are the others.
        evaluation: of ``eval.json``.
        metrics: the readable lines of ``metrics.jsonl``, each with a whole number ``step``.
        checkpoints: their names.
        colours: names of the pictures' colours and #rrggbb.
        broken: by file, why it cannot be used; a last line that a kill cut short is none.
        missing: the same in sentences for a page.
    """

    name: str
    path: Path
    info: MetricsInfo
    config: dict[str, Any]
    environment: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[Line]
    checkpoints: tuple[str, ...]
    colours: list[tuple[str, str]]
    broken: dict[str, str]
    missing: tuple[str, ...]

    @property
    def seed(self) -> Any:
        """The seed in the settings, or None."""
        return self.config.get("seed")

    @property
    def planned_steps(self) -> int | None:
        """How long the run was to last, where the settings tell."""
        steps = number(self.config.get(self.info.steps))
        return None if steps is None else int(steps)

    @property
    def last_step(self) -> int | None:
        """The last step that was logged."""
        return max((line["step"] for line in self.metrics), default=None)

    def require(self, *files: str) -> None:
        """Refuse the run unless these files are whole.

        Raises:
            InputError: naming the first file that is not, and why.
        """
        for file in files:
            if file in self.broken:
                raise InputError(f"{self.path / file}: {self.broken[file]}")

    def score(self, key: str) -> float | None:
        """A number of ``eval.json`` by its key with dots; None where the run has none."""
        return number(at(self.evaluation, *key.split("."))) if key else None

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, in the order of the steps; lines without a finite value are left out."""
        points = {line["step"]: value for line in self.metrics if (value := number(line.get(key))) is not None}
        steps = sorted(points)
        return steps, [points[step] for step in steps]

    def metric_names(self) -> list[str]:
        """All metrics that have a number somewhere, in the order in which they first appear."""
        names = (key for line in self.metrics for key in line if key != "step" and number(line[key]) is not None)
        return list(dict.fromkeys(names))

    def alarms(self) -> list[tuple[int, str]]:
        """Steps and sentences of the alarms in the log."""
        return [(line["step"], str(line["alarm"])) for line in self.metrics if line.get("alarm")]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run, named by its folder, or by as much of its path as tells it from the others.

    Raises:
        InputError: a path is no folder, holds nothing that a run writes, or is given twice.
    """
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise InputError(f"{paths[index]}: is given twice; give every run once")
    return [read_run(path, name) for path, name in zip(paths, _names(resolved), strict=True)]


def is_run(folder: Path) -> bool:
    """Whether a folder holds anything that a run writes."""
    return any((folder / file).is_file() for file in _FILES)


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, however little of it is left.

    Raises:
        InputError: it is no folder, or holds nothing that a run writes.
    """
    if not path.is_dir():
        raise InputError(f"{path}: is no folder; give run folders, such as runs/my-run")
    if not is_run(path):
        inside = next((child for child in sorted(path.iterdir()) if (child / "config.yaml").is_file()), None)
        hint = f"; it holds run folders, so give those, such as {inside}" if inside is not None else ""
        raise InputError(f"{path}: is no run folder (it has none of {', '.join(_FILES)}){hint}")
    broken: dict[str, str] = {}
    missing: list[str] = []

    def read(name: str, reader: Callable[[Path], Content], otherwise: Content, consequence: str) -> Content:
        file = path / name
        if not file.exists():
            broken[name] = "is missing"
            missing.append(f"{name} is missing: {consequence}.")
            return otherwise
        try:
            return reader(file)
        except InputError as error:
            broken[name] = str(error).removeprefix(f"{file}: ")
            missing.append(f"{name} cannot be read ({broken[name]:.120}): {consequence}.")
            return otherwise

    nothing: dict[str, Any] = {}
    config = read("config.yaml", _mapping, nothing, "the settings are unknown")
    environment = read("environment.json", _mapping, nothing, "versions, device and command are unknown")
    evaluation = read("eval.json", _mapping, nothing, "the run has not finished, so there are no final scores")
    no_lines: tuple[list[Line], dict[int, str]] = ([], {})
    metrics, faults = read("metrics.jsonl", _metrics, no_lines, "there are no curves")
    if faults:
        first, *others = faults
        where = f"line {first}" if not others else f"{len(faults)} lines, the first being line {first},"
        missing.append(f"metrics.jsonl: {where} cannot be read and is left out.")
        broken["metrics.jsonl"] = f"line {first}: {faults[first]}"
    if not metrics and "metrics.jsonl" not in broken:
        missing.append("metrics.jsonl holds no line that can be read: there are no curves.")
    info = metrics_info.UNDESCRIBED
    if (path / metrics_info.FILE).exists():
        info = read(metrics_info.FILE, read_metrics_info, info, "metrics go by the names that they were logged under")
    checkpoints = tuple(sorted(file.stem for file in path.glob("checkpoints/[!.]*.pt")))
    if not checkpoints:
        missing.append("checkpoints/ holds no checkpoint.")
    colours: list[tuple[str, str]] = []
    if info.pictures and info.pictures.colours and (path / info.pictures.colours).is_file():
        colours = read(info.pictures.colours, _colours, colours, "the colours of the classes are unknown")
    return Run(
        name if name is not None else path.resolve().name, path, info, config, environment, evaluation, metrics,
        checkpoints, colours, broken, tuple(missing),
    )  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """The resolved settings of a run.

    Raises:
        InputError: the folder is no run folder, or its config is no plain YAML mapping.
    """
    file = path / "config.yaml"
    if not file.is_file():
        raise InputError(f"{path}: not a run folder (it has no config.yaml)")
    return _mapping(file)


def read_metrics(path: Path) -> list[Line]:
    """The lines of ``metrics.jsonl``; a last line that a kill cut short is left out.

    Raises:
        InputError: the file cannot be read, or a line before the last is no mapping with a whole number ``step``.
    """
    file = path / "metrics.jsonl"
    lines, faults = _metrics(file)
    for position, reason in faults.items():
        raise InputError(f"{file}, line {position}: {reason}")
    return lines


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None: a run's files may hold anything."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value)


def at(document: Any, *keys: str) -> Any:
    """``document[key][key]…``, or None where something on the way is no mapping or lacks the key."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _names(paths: Sequence[Path]) -> list[str]:
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        depth += 1


def _mapping(file: Path) -> dict[str, Any]:
    document = read_json(file) if file.suffix == ".json" else read_yaml(file)
    if not isinstance(document, dict):
        raise InputError(f"{file}: expected a mapping of keys, found {type(document).__name__}")
    return document


def _metrics(file: Path) -> tuple[list[Line], dict[int, str]]:
    """The readable lines, and position from 1 and fault of each other one but a last one that a kill cut short."""
    lines: list[Line] = []
    faults: dict[int, str] = {}
    *rows, last = read_text(file).split("\n")  # not splitlines(), which also splits at characters that JSON may hold
    for position, row in enumerate([*rows, last], start=1):
        try:
            line = parsed_json(row, "")
        except InputError as error:
            faults[position] = str(error).removeprefix(": ")
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int) and number(line["step"]) is not None:
            lines.append(line)
        else:
            faults[position] = "expected a mapping with a whole number 'step'"
    faults.pop(len(rows) + 1, None)
    return lines, faults


def _colours(file: Path) -> list[tuple[str, str]]:
    colours = []
    rows = _mapping(file).get("classes")
    for row in rows if isinstance(rows, list) else []:
        rgb = at(row, "color")
        if isinstance(rgb, list) and len(rgb) == 3 and all(isinstance(c, int) and 0 <= c < 256 for c in rgb):
            colours.append((str(row.get("name")), "#{:02x}{:02x}{:02x}".format(*rgb)))
    return colours
