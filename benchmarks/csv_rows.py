"""Rows of a benchmark in a CSV file, its command line, and differences as they stand in tables.

A row that stands in the file is not made again, so the same command continues.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dem_apps.report.intervals import Interval, difference_interval, mean_interval

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
Row = Mapping[str, Any]


class CsvRows:
    """The rows of a file.

    Args:
        file: read, and appended to.
        keys: the columns that say which row it is.
        scores: the columns of a new file behind them; a file that exists keeps its own.
    """

    def __init__(self, file: Path, keys: Sequence[str], scores: Sequence[str] = ()) -> None:
        self.file, self.keys, self.columns = file, keys, [*keys, *scores]
        self.rows: dict[tuple[str, ...], Row] = {}
        if file.is_file():
            with file.open(newline="", encoding="utf-8") as opened:
                reader = csv.DictReader(opened)
                self.columns = list(reader.fieldnames or self.columns)
                self.rows = {self._key(row): row for row in reader}

    def get(self, row: Row) -> Row | None:
        """The row with the same keys, or None."""
        return self.rows.get(self._key(row))

    def missing(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Those rows whose keys no row of the file has."""
        return (row for row in rows if self.get(row) is None)

    def add(self, row: Row) -> Row:
        """Write a row at once; return it as written."""
        new, row = not self.file.exists(), {key: _written(value) for key, value in row.items()}
        with self.file.open("a", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(
                opened, self.columns, extrasaction="ignore", lineterminator="\n"
            )
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.rows[self._key(row)] = row
        return row

    def by(self, *keys: str) -> dict[tuple[str, ...], dict[str, Row]]:
        """Rows by these columns, then by the last of the file's keys."""
        found: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in self.rows.values():
            found.setdefault(tuple(str(row[key]) for key in keys), {})[str(row[self.keys[-1]])] = (
                row
            )
        return found

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(str(_written(row.get(key, ""))) for key in self.keys)


def _written(value: Any) -> Any:
    """``[1, 2.5]`` → ``"1 2.5"``; numbers have five digits."""
    if isinstance(value, (list, tuple)):
        return " ".join(f"{each:g}" for each in value)
    return float(f"{value:.5g}") if isinstance(value, float) else value


def interval(found: Interval, sign: str = "+") -> str:
    """``+1.3 [+0.4, +2.3]``; without ends where a single value has none."""
    ends = "" if found.low is None else f" [{found.low:{sign}.1f}, {found.high:{sign}.1f}]"
    return f"{found.estimate:+.1f}{ends}"


def beside(ours: Mapping[Any, float], control: Mapping[Any, float]) -> str:
    """``54.6, +1.3 [+0.4, +2.3]``: the mean, and its difference to a control."""
    return f"{fmean(ours.values()):.1f}, {interval(difference_interval(ours, control))}"


def half(values: Sequence[float]) -> str:
    """``+1.3±0.9``: a mean change with half of its 95 % CI; a single value has none."""
    found = mean_interval(values)
    return f"{found.estimate:+.1f}" + (
        "" if found.high is None else f"±{found.high - found.estimate:.1f}"
    )


def parser_of(
    description: str | None, *folders: str, out: Path | None = None
) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring, with the folders that it needs and the file of its rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in folders:
        parser.add_argument(f"--{name}", type=Path, required=True)
    if out is not None:
        parser.add_argument("--out", type=Path, default=out)
    return parser
