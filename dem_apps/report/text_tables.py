"""Raw numbers of many runs as a CSV file, and tables for people as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dem_apps.errors import printable
from dem_apps.runtime.checkpoint import write_atomically


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per row under a line of keys, in one step; a key that a row lacks, and None, are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, with an empty line behind it."""
    lines = [header, ["---"] * len(header), *rows]
    # a name may be anybody's, and the table is printed
    return "".join(f"| {' | '.join(printable(cell).replace('|', '/') for cell in line)} |\n" for line in lines) + "\n"
