"""Rows of a benchmark in a CSV file, and its command line.

A row that stands in the file is not made again, so the same command continues.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class CsvRows:
    """The rows of a file.

    Args:
        file: read, and appended to.
        keys: the columns that say which row it is.
        scores: the columns of a new file behind them; a file that exists keeps its own.
    """

    def __init__(self, file: Path, keys: Sequence[str], scores: Sequence[str]) -> None:
        self.file, self.keys, self.columns = file, keys, [*keys, *scores]
        self.rows: dict[tuple[str, ...], Mapping[str, Any]] = {}
        if file.is_file():
            with file.open(newline="", encoding="utf-8") as opened:
                reader = csv.DictReader(opened)
                self.columns = list(reader.fieldnames or self.columns)
                self.rows = {self._key(row): row for row in reader}

    def get(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The row with the same keys, or None."""
        return self.rows.get(self._key(flat(row)))

    def add(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write a row at once; as it is written."""
        new, row = not self.file.exists(), flat(row)
        with self.file.open("a", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, self.columns, extrasaction="ignore", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.rows[self._key(row)] = row
        return row

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(key, "")) for key in self.keys)


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}, "c": [1, 2]}`` → ``{"a b": 1, "c": "1 2"}``; numbers have five digits."""
    result: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{before}{key} ")
        elif isinstance(value, (list, tuple)):
            result[before + key] = " ".join(f"{each:g}" for each in value)
        else:
            result[before + key] = float(f"{value:.5g}") if isinstance(value, float) else value
    return result


def parser_of(description: str | None, *folders: str, out: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, with the folders that it needs and the file of its rows."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in folders:
        parser.add_argument(f"--{name}", type=Path, required=True)
    if out is not None:
        parser.add_argument("--out", type=Path, default=Path(out))
    return parser
