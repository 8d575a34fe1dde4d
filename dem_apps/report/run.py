"""What a run folder holds, read for a report: whatever is there, and a sentence for whatever is missing or broken.

Only files are read, never a model, and nothing of a run is trusted: NaN and what is not a number count as absent.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.safe_io import parsed_json, read_json, read_text, read_yaml

#: What a folder must hold one of to be a run.
_FILES = ("config.yaml", "metrics.jsonl", "eval.json", "environment.json")
_MOST_ROWS, _DEEPEST = 1000, 8
_LARGEST = 1e100
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxdict, _brief.maxstring, _brief.maxother = 4, 24, 24, 400, 400


@dataclass(frozen=True)
class Run:
    """One run folder.

    Args:
        name: what it is called in the report; unique there.
        path: the folder.
        kind: ``seg``, ``rl`` or ``unknown``.
        config: of ``config.yaml``, or empty.
        environment: of ``environment.json``, or empty.
        evaluation: of ``eval.json``, or empty.
        metrics: the readable lines of ``metrics.jsonl``, each with a whole number ``step``.
        checkpoints: step by name of each checkpoint; None where the file's name does not tell.
        classes: names and #rrggbb colours of ``classes.json``, or empty.
        missing: sentences about what is not there or cannot be read.
    """

    name: str
    path: Path
    kind: str
    config: dict[str, Any]
    environment: dict[str, Any]
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    checkpoints: dict[str, int | None]
    classes: list[tuple[str, str]]
    missing: tuple[str, ...]

    @property
    def seed(self) -> Any:
        """The seed in the settings, or None."""
        return self.config.get("seed")

    @property
    def planned_steps(self) -> int | None:
        """How long the run was to last, where the settings tell."""
        for key in ("max_steps", "timesteps"):
            steps = number(self.config.get(key))
            if steps is not None:
                return int(steps)
        return None

    @property
    def last_step(self) -> int | None:
        """The last step that was logged."""
        return max((line["step"] for line in self.metrics), default=None)

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, in the order of the steps; lines without a finite value are left out."""
        points = {line["step"]: value for line in self.metrics if (value := number(line.get(key))) is not None}
        steps = sorted(points)
        return steps, [points[step] for step in steps]

    def metric_names(self) -> list[str]:
        """All metrics that have a number somewhere, in the order in which they first appear."""
        return list(
            dict.fromkeys(key for line in self.metrics for key in line if key != "step" and _is_number(line[key]))
        )

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


def read_run(path: Path, name: str | None = None) -> Run:
    """Read one run folder, however little of it is left.

    Raises:
        InputError: it is no folder, or holds nothing that a run writes.
    """
    if not path.is_dir():
        raise InputError(f"{path}: is no folder; give run folders, such as runs/my-run")
    if not any((path / file).is_file() for file in _FILES):
        inside = next((child for child in sorted(path.iterdir()) if (child / "config.yaml").is_file()), None)
        hint = f"; it holds run folders, so give those, such as {inside}" if inside is not None else ""
        raise InputError(f"{path}: is no run folder (it has none of {', '.join(_FILES)}){hint}")
    missing: list[str] = []
    config = _mapping(path / "config.yaml", missing, "the settings are unknown")
    environment = _mapping(path / "environment.json", missing, "versions, device and command are unknown")
    evaluation = _mapping(path / "eval.json", missing, "the run has not finished, so there are no final scores")
    metrics = _metrics(path / "metrics.jsonl", missing)
    checkpoints = _checkpoints(path / "checkpoints", missing)
    kind = _kind(config, evaluation, metrics)
    classes = _classes(path / "classes.json", missing) if kind == "seg" else []
    return Run(
        name if name is not None else path.resolve().name, path, kind, config, environment, evaluation, metrics,
        checkpoints, classes, tuple(missing),
    )  # fmt: skip


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None: a run's files may hold anything."""
    return float(value) if _is_number(value) else None


def at(document: Any, *keys: str) -> Any:
    """``document[key][key]…``, or None where something on the way is no mapping or lacks the key."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def flat(document: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys and short texts, at most 1000 of them."""
    return {key: shown(value) for key, value in islice(_leaves(document, "", 0), _MOST_ROWS)}


def shown(value: Any) -> str:
    """A setting as people read it, of bounded length."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value if len(value) <= 400 else value[:400] + "…"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)) and len(value) <= 24 and all(isinstance(v, (str, int, float)) for v in value):
        return ", ".join(shown(part) for part in value) or "none"
    return _brief.repr(value)


def _is_number(value: Any) -> bool:
    try:
        # beyond the largest, differences and squares of two numbers would be infinite
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(float(value)) < _LARGEST
    except OverflowError:  # a whole number that no float holds
        return False


def _leaves(document: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


def _names(paths: Sequence[Path]) -> list[str]:
    depth = 1
    while True:
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
        depth += 1


def _mapping(file: Path, missing: list[str], consequence: str) -> dict[str, Any]:
    """A JSON or YAML mapping, or an empty one and a sentence."""
    if not file.exists():
        missing.append(f"{file.name} is missing: {consequence}.")
        return {}
    try:
        document = read_json(file) if file.suffix == ".json" else read_yaml(file)
    except InputError as error:
        reason = str(error).removeprefix(f"{file}: ")
        missing.append(f"{file.name} cannot be read ({_cut(reason)}): {consequence}.")
        return {}
    if not isinstance(document, dict):
        missing.append(f"{file.name} holds no mapping of keys: {consequence}.")
        return {}
    return document


def _metrics(file: Path, missing: list[str]) -> list[dict[str, Any]]:
    if not file.exists():
        missing.append("metrics.jsonl is missing: there are no curves.")
        return []
    try:
        lines = read_text(file, errors="replace").splitlines()
    except InputError as error:
        reason = str(error).removeprefix(f"{file}: ")
        missing.append(f"metrics.jsonl cannot be read ({_cut(reason)}): there are no curves.")
        return []
    metrics, broken = [], []
    for position, line in enumerate(lines, start=1):
        try:
            values = parsed_json(line, file.name)
        except InputError:
            values = None
        if isinstance(values, dict) and isinstance(values.get("step"), int) and _is_number(values["step"]):
            metrics.append(values)
        else:
            broken.append(position)
    if broken:
        which = f"line {broken[0]}" if len(broken) == 1 else f"{len(broken)} lines, the first being line {broken[0]},"
        missing.append(f"metrics.jsonl: {which} cannot be read and is left out.")
    if not metrics:
        missing.append("metrics.jsonl holds no line that can be read: there are no curves.")
    return metrics


def _checkpoints(folder: Path, missing: list[str]) -> dict[str, int | None]:
    """Step by name, from the names of the tensor files; their content is never looked at."""
    found: dict[str, int | None] = {}
    for pointer in sorted(folder.glob("*.json")):
        tags = [file.name.split(".")[1] for file in sorted(folder.glob("*.safetensors"))
                if file.name.startswith(f"{pointer.stem}.")]  # fmt: skip
        if not tags:
            missing.append(f"checkpoints/{pointer.name} is there, but its tensor file is missing.")
        found[pointer.stem] = int(tags[-1]) if tags and tags[-1].isdecimal() else None
    if not found:
        missing.append("checkpoints/ holds no checkpoint.")
    order = {"last": 0, "selected": 1, "best": 2}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0], 3), item[0])))


def _classes(file: Path, missing: list[str]) -> list[tuple[str, str]]:
    if not file.is_file():  # runs of the first weeks have none, and it is only needed for a legend
        return []
    rows = _mapping(file, missing, "the colours of the classes are unknown").get("classes")
    classes = []
    for row in rows if isinstance(rows, list) else []:
        colour = at(row, "color")
        if isinstance(colour, list) and len(colour) == 3 and all(isinstance(c, int) and 0 <= c < 256 for c in colour):
            classes.append((str(row.get("name")), "#{:02x}{:02x}{:02x}".format(*colour)))
    return classes


def _kind(config: Mapping[str, Any], evaluation: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    keys = {key for line in metrics for key in line}
    if "miou" in evaluation or {"source", "target"} <= set(config) or "val/miou" in keys:
        return "seg"
    rl_config = "env" in config and "algo" in config
    if "mean_return" in evaluation or rl_config or any(key.startswith("eval/mean_return") for key in keys):
        return "rl"
    return "unknown"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else text[:120] + "…"
