"""A report replaces an earlier one of its kind and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dem_apps.errors import InputError
from dem_apps.report import grid_report
from dem_apps.report.text_tables import refuse_files_of_others, write_csv
from rl import plots

KINDS = {"seg": grid_report.REPORT_FILES, "rl": plots.REPORT_FILES}
CASES = [(kind, name) for kind, files in KINDS.items() for name in files]


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("content", ["| my | table |\n", "name,mark\nada,1\n", "r", "\x89PNG"])
def test_any_other_file_of_that_name_is_somebodys(kind: str, name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(
        InputError, match=rf"^--out: .*{name} is there and is no file of an earlier report; give another"
    ):
        refuse_files_of_others(tmp_path, KINDS[kind])


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_folder_or_a_link_of_that_name_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    refuse_files_of_others(tmp_path / "new", KINDS[kind])
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is no file of an earlier report"):
        refuse_files_of_others(tmp_path, KINDS[kind])
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="is no file of an earlier report"):
        refuse_files_of_others(tmp_path, KINDS[kind])


def test_an_empty_table_is_nobodys(tmp_path: Path) -> None:
    """As a report of runs without evaluations leaves it."""
    write_csv(tmp_path / "curves.csv", [])
    refuse_files_of_others(tmp_path, plots.REPORT_FILES)
