"""The settings and the metrics of a run, read from its folder."""

from __future__ import annotations

from pathlib import Path

from dem_apps.errors import InputError
from dem_apps.runtime.documents import Document, parsed_json, read_yaml, required
from dem_apps.runtime.files import read_text

#: Held by the process that writes to the folder.
LOCK = "run.lock"


def read_config(path: Path) -> Document:
    """The resolved settings of a run; an InputError where the folder is none."""
    file = path / "config.yaml"
    if not file.is_file():
        raise InputError(f"{path}: is not a run folder (it has no config.yaml)")
    return required(read_yaml(file, path), str(file))


def read_metrics(path: Path) -> list[Document]:
    """The lines of ``metrics.jsonl``, mappings with a ``step``; a last line that a kill cut short is left out."""
    file = path / "metrics.jsonl"
    # a whole line ends in a newline
    whole = read_text(file, path).split("\n")[:-1]
    lines: list[Document] = []
    for number, row in enumerate(whole, start=1):
        where = f"{file}, line {number}"
        lines.append(required(parsed_json(row, where), where, step=int))
    return lines
