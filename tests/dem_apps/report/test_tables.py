"""Tables of a page: runs put together by their settings, classes, settings in words."""

from __future__ import annotations

from pathlib import Path

from support import report_runs as make

from dem_apps.report.groups import differing, grouped
from dem_apps.report.part import build_part
from dem_apps.report.settings_text import flat, shown
from dem_apps.report.tables import class_table, comparison_table
from dem_apps.runtime.run_reader import read_run, read_runs
from seg.scores.described_metrics import SCORES, described_metrics

INFO = described_metrics("im", 19)


def test_few_settings_are_columns_and_many_are_rows(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / name, loss=name) for name in "abcdef"]
    few, many = (build_part(read_runs(chosen), None, (), 0).tables[0] for chosen in (paths[:5], paths))
    assert [name for name, _ in few.header] == ["score", *"abcde"]
    assert [row[0] for row in few.rows][:2] == ["mean IoU %, last", "mean IoU %, best"]
    assert [row[0] for row in many.rows] == list("abcdef")
    assert few.rows[0][2] == [row[2][0] for row in many.rows][:5]


def test_one_setting_shows_its_seeds(tmp_path: Path) -> None:
    paths = [make.rl_run(tmp_path / f"run-seed{seed}", mean=0.1 * seed, seed=seed) for seed in (4, 6)]
    table = build_part(read_runs(paths), None, (), 0).tables[0]
    assert [name for name, _ in table.header] == ["score", "mean ± std", "seed 4", "seed 6"]
    # std of 0.4 and 0.6: 0.2 / sqrt(2)
    assert [cell.main for cell in table.rows[0][2]] == ["0.500 ± 0.141", "0.400", "0.600"]


def test_seeds_are_put_together_and_settings_told_apart(tmp_path: Path) -> None:
    paths = [
        make.seg_run(tmp_path / f"{loss}-seed{seed}", loss=loss, seed=seed, miou=miou)
        for loss, seed, miou in (("entropy", 0, 0.30), ("adadem", 0, 0.34), ("entropy", 1, 0.31), ("adadem", 1, 0.37))
    ]
    groups = grouped(read_runs(paths))
    assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [
        ("entropy", [0, 1]), ("adadem", [0, 1]),
    ]  # fmt: skip
    assert differing([group.settings for group in groups]) == {"loss": ["entropy", "adadem"]}
    table = comparison_table(SCORES, groups, groups[0])
    (name, seeds, cells) = table.rows[1]
    # differences by seed 4 and 6: mean 5, t(1) = 12.706, standard error 1
    assert (name, seeds, cells[0].main, cells[0].small) == ("adadem", "2 runs", "35.50 ± 2.12", "+5.00 [-7.71, +17.71]")
    assert not cells[0].strong
    assert table.rows[0][2][0].small == "baseline"
    shown = make.text_of(make.page(*paths))
    assert shown.index("What differs") < shown.index("Final scores by setting") < shown.index("Target mean IoU")


def test_lost_settings_belong_to_no_group(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / f"run{i}") for i in range(2)]
    for path in paths:
        (path / "config.yaml").unlink()
    assert len(grouped(read_runs(paths))) == 2


def test_tail_classes_by_name(tmp_path: Path) -> None:
    run = read_run(make.seg_run(tmp_path / "run"))
    table = class_table(INFO.classes, grouped([run]), ["pole"])
    assert table is not None
    assert [name for name, mark, _ in table.rows if mark == "tail"] == ["pole"]
    assert table.rows[-1][0] == "mean over tail classes"
    assert table.rows[-1][2][0].main == "25.0"
    assert table.note == "Tail classes are those named as such: pole."


def test_settings_stay_short() -> None:
    nested: object = 1
    for _ in range(50):
        nested = {"a": nested}
    assert len(str(flat({"deep": nested}))) < 2000
    assert len(shown("x" * 10_000)) < 500
    assert flat({"a": {"b": None, "c": True}, "d": [1, 2.5], "e": []}) == {
        "a.b": "none", "a.c": "yes", "d": "1, 2.5", "e": "none",
    }  # fmt: skip
