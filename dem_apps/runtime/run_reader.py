"""The reader of run folders: whatever is there, and for every file that is missing or broken what is wrong with it.

Only files are read, never a model, and nothing of a run is trusted: numbers that are not finite count as absent. A
page shows the faults and goes on; what needs a file calls :meth:`Run.require`, and :func:`read_config` and
:func:`read_metrics` read one file alone. Each refuses in a sentence.
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
class Fault:
    """A file of a run that is missing or broken.

    Args:
        file: its name in the folder.
        reason: what is wrong; empty for what a kill leaves and every reader copes with.
        sentence: the same for a page, with what the run lacks for it.
    """

    file: str
    reason: str
    sentence: str


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        name: what it is called in a report; unique there.
        info: what the run says about its metrics, or a stand-in.
        config: of ``config.yaml``; empty where there is none, as are the others.
        evaluation: of ``eval.json``.
        metrics: the readable lines of ``metrics.jsonl``, each with a whole number ``step``.
        checkpoints: step by name of each checkpoint; None where the file's name does not tell.
        colours: names of the pictures' colours and #rrggbb.
    """

    name: str
    path: Path
    info: MetricsInfo
    config: dict[str, Any]
    environment: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[Line]
    checkpoints: dict[str, int | None]
    colours: list[tuple[str, str]]
    faults: tuple[Fault, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about what is not there or cannot be read."""
        return tuple(fault.sentence for fault in self.faults)

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
        for fault in self.faults:
            if fault.file in files and fault.reason:
                raise InputError(f"{self.path / fault.file}: {fault.reason}")

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
    faults: list[Fault] = []
    config = _mapping(path / "config.yaml", faults, "the settings are unknown")
    environment = _mapping(path / "environment.json", faults, "versions, device and command are unknown")
    evaluation = _mapping(path / "eval.json", faults, "the run has not finished, so there are no final scores")
    metrics = _metrics(path / "metrics.jsonl", faults)
    info = _info(path / metrics_info.FILE, faults)
    checkpoints = _checkpoints(path / "checkpoints", faults)
    colours = _colours(path / info.pictures.colours, faults) if info.pictures and info.pictures.colours else []
    return Run(
        name if name is not None else path.resolve().name, path, info, config, environment, evaluation, metrics,
        checkpoints, colours, tuple(faults),
    )  # fmt: skip


def read_config(path: Path) -> dict[str, Any]:
    """The resolved settings of a run.

    Raises:
        InputError: the folder is no run folder, or its config is no plain YAML mapping.
    """
    file = path / "config.yaml"
    if not file.is_file():
        raise InputError(f"{path}: not a run folder (it has no config.yaml)")
    return _checked_mapping(file)


def read_metrics(path: Path) -> list[Line]:
    """The lines of ``metrics.jsonl``; a last line that a kill cut short is left out.

    Raises:
        InputError: the file cannot be read, or a line before the last is no mapping with a whole number ``step``.
    """
    file = path / "metrics.jsonl"
    lines, broken = _parsed_lines(read_text(file))
    for position, reason in broken:
        if not _is_last(position, lines, broken):
            raise InputError(f"{file}, line {position}: {reason}")
    return list(lines.values())


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None: a run's files may hold anything."""
    try:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(float(value)) < _LARGEST
    except OverflowError:  # a whole number that no float holds
        return None
    return float(value) if is_number else None


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


def _checked_mapping(file: Path) -> dict[str, Any]:
    document = read_json(file) if file.suffix == ".json" else read_yaml(file)
    if not isinstance(document, dict):
        raise InputError(f"{file}: expected a mapping of keys, found {type(document).__name__}")
    return document


def _or_fault(file: Path, read: Callable[[Path], Content], faults: list[Fault], consequence: str) -> Content | None:
    """What ``read`` makes of a file, or None and a fault."""
    if not file.exists():
        faults.append(Fault(file.name, "is missing", f"{file.name} is missing: {consequence}."))
        return None
    try:
        return read(file)
    except InputError as error:
        reason = str(error).removeprefix(f"{file}: ")
        brief = reason if len(reason) <= 120 else reason[:120] + "…"
        faults.append(Fault(file.name, reason, f"{file.name} cannot be read ({brief}): {consequence}."))
        return None


def _mapping(file: Path, faults: list[Fault], consequence: str) -> dict[str, Any]:
    return _or_fault(file, _checked_mapping, faults, consequence) or {}


def _info(file: Path, faults: list[Fault]) -> MetricsInfo:
    if not file.exists():  # an older run, of which nothing is missing
        return metrics_info.UNDESCRIBED
    info = _or_fault(file, read_metrics_info, faults, "metrics go by the names that they were logged under")
    return metrics_info.UNDESCRIBED if info is None else info


def _metrics(file: Path, faults: list[Fault]) -> list[Line]:
    text = _or_fault(file, read_text, faults, "there are no curves")
    if text is None:
        return []
    lines, broken = _parsed_lines(text)
    if broken:
        position, reason = broken[0]
        which = f"line {position}" if len(broken) == 1 else f"{len(broken)} lines, the first being line {position},"
        cut = _is_last(position, lines, broken)
        faults.append(Fault(file.name, "" if cut else f"line {position}: {reason}",
                            f"{file.name}: {which} cannot be read and is left out."))  # fmt: skip
    if not lines:
        faults.append(Fault(file.name, "", f"{file.name} holds no line that can be read: there are no curves."))
    return list(lines.values())


def _parsed_lines(text: str) -> tuple[dict[int, Line], list[tuple[int, str]]]:
    """Lines by their position from 1 on, and position and fault of each broken one. Blank ends do not count."""
    lines: dict[int, Line] = {}
    broken: list[tuple[int, str]] = []
    # not splitlines(), which also splits at characters that JSON may hold
    for position, row in enumerate(text.rstrip().split("\n") if text.strip() else (), start=1):
        try:
            line = parsed_json(row, "")
        except InputError as error:
            broken.append((position, str(error).removeprefix(": ")))
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int) and number(line["step"]) is not None:
            lines[position] = line
        else:
            broken.append((position, "expected a mapping with a whole number 'step'"))
    return lines, broken


def _is_last(position: int, lines: Mapping[int, Line], broken: Sequence[tuple[int, str]]) -> bool:
    return position > max([*lines, *(other for other, _ in broken if other != position)], default=0)


def _checkpoints(folder: Path, faults: list[Fault]) -> dict[str, int | None]:
    """Step by name, from the names of the tensor files; their content is never looked at."""
    found: dict[str, int | None] = {}
    for file in sorted(folder.glob("[!.]*.pt")):
        found[file.stem] = None
    if not found:
        faults.append(Fault("checkpoints", "holds no checkpoint", "checkpoints/ holds no checkpoint."))
    return found


def _colours(file: Path, faults: list[Fault]) -> list[tuple[str, str]]:
    if not file.is_file():  # runs of the first weeks have none, and it is only needed for a legend
        return []
    rows = _mapping(file, faults, "the colours of the classes are unknown").get("classes")
    colours = []
    for row in rows if isinstance(rows, list) else []:
        rgb = at(row, "color")
        if isinstance(rgb, list) and len(rgb) == 3 and all(isinstance(c, int) and 0 <= c < 256 for c in rgb):
            colours.append((str(row.get("name")), "#{:02x}{:02x}{:02x}".format(*rgb)))
    return colours
