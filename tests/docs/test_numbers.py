"""The measured tables of README and of the pages are what their benchmarks print from the raw rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import adapt_looks
import photograph_training
import pytest
from csv_rows import CsvRows

ROOT = Path(__file__).resolve().parents[2]


def rows(name: str, keys: tuple[str, ...]) -> CsvRows:
    return CsvRows(ROOT / "docs" / "results" / name, keys, ())


LOOKS = ("adapt_looks.csv", ("network", "folder", "way"))
TRAINING = ("photograph_training.csv", photograph_training.KEYS)


@pytest.mark.parametrize(
    ("page", "raw", "table"),
    [
        ("README.md", LOOKS, adapt_looks.public_table),
        ("docs/adaptation.md", LOOKS, adapt_looks.shares_table),
        ("docs/adaptation.md", TRAINING, photograph_training.table),
        ("README.md", TRAINING, photograph_training.gains),
    ],
)
def test_a_table_is_that_of_the_raw_rows(
    page: str, raw: tuple[str, tuple[str, ...]], table: Callable[[CsvRows], str]
) -> None:
    assert table(rows(*raw)).strip() in (ROOT / page).read_text(encoding="utf-8")
