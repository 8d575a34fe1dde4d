"""Raw numbers of many runs as a CSV file, and tables for people as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, printable
from dem_apps.runtime.files import write_atomically


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per row under a line of keys, in one step; a key that a row lacks, and None, are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def refuse_files_of_others(out: Path, files: Mapping[str, str]) -> None:
    """Refuse a folder where a report would replace anything but an earlier report.

    Args:
        out: where the report goes; may be missing.
        files: how each of its files begins, by name; one that is known by its name alone begins with nothing.

    Raises:
        InputError: naming the first file that no report has written.
    """
    known = False
    for name, start in files.items():
        file = out / name
        if not (file.exists() or file.is_symlink()):
            continue
        begins = file.is_file() and not file.is_symlink() and _begins(file, start)
        # a picture says nothing about who drew it, a table beside it does
        if not begins or not (start or known):
            raise InputError(f"--out: {file} is there and is no file of an earlier report; give another folder")
        known = True


def _begins(file: Path, start: str) -> bool:
    with open(file, "rb") as opened:
        content = opened.read(len(start.encode()) + 1)
    return not content.strip() or content.startswith(start.encode())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, with an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    # a name may be anybody's, and the table is printed
    return "".join(f"| {' | '.join(printable(cell).replace('|', '/') for cell in line)} |\n" for line in lines) + "\n"
