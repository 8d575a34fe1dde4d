"""What a run says about itself: any application is shown so, and nothing of it is trusted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import report_runs as make

import dem_apps.report
from dem_apps.errors import InputError
from dem_apps.report.part import build_part
from dem_apps.runtime.metrics_info import (
    FILE,
    UNDESCRIBED,
    Checkpoint,
    Metric,
    MetricsInfo,
    Score,
    read_metrics_info,
    same_heading,
)
from dem_apps.runtime.run_reader import read_run, read_runs
from rl.results.described_metrics import described_metrics as described_by_rl
from seg.scores.described_metrics import described_metrics

INFO = described_metrics("im", 19)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)<script>"


LAPS = MetricsInfo(
    "Racing",
    settings=("car",),
    steps="laps",
    metrics=(
        Metric("lap/time", "lap time", "Times", "seconds", "lower"),
        Metric("lap/best", "best so far", "Times", "seconds", "lower"),
        Metric("fuel", "fuel left", unit="litres"),
    ),
    scores=(Score("race.time", "time of the race", "seconds", "lower", digits=1),),
    checkpoints=(Checkpoint("last", "the flag", "race.time", "race.laps"),),
    checkpoint_score="seconds",
)


def race(path: Path, time: float, car: str, seed: int = 0) -> Path:
    config = {"car": car, "laps": 4, "seed": seed}
    lines = [{"step": lap, "lap/time": time / 4, "lap/best": time / 5, "fuel": 9.0 - lap, "own": 1} for lap in (1, 2)]
    return make.write_run(path, config, lines, {"race": {"time": time, "laps": 4}}, LAPS)


def test_a_run_of_any_application_is_shown_as_it_describes_itself(tmp_path: Path) -> None:
    source = make.page(race(tmp_path / "run", 80.25, "red"))
    shown = make.text_of(source)
    assert "car red seed 0 steps 2 of 4 state finished" in shown
    assert "time of the race seconds, lower is better 80.2" in shown
    assert "last 4 80.2 the flag" in shown
    assert "Times seconds, lower is better" in shown
    assert source.count('class="chart"') == 3  # times, fuel, and what nobody describes
    assert "fuel left fuel, litres" in shown
    assert "2 further metrics" in shown
    assert "Missing or broken in" not in shown


def test_the_direction_says_which_difference_is_better(tmp_path: Path) -> None:
    runs = [race(tmp_path / f"{car}-seed{seed}", time + seed, car, seed)
            for car, time in (("red", 80.0), ("blue", 78.0), ("old", 90.0)) for seed in range(2)]  # fmt: skip
    (row,) = build_part(read_runs(runs), None, (), 0).tables[0].rows
    assert [cell.small for cell in row[2]] == ["baseline", "-2.0 [-2.0, -2.0], better", "+10.0 [+10.0, +10.0], worse"]


def test_runs_that_describe_themselves_differently_are_not_compared(tmp_path: Path) -> None:
    shown = make.text_of(
        make.page(race(tmp_path / "a", 80.0, "red"), make.rl_run(tmp_path / "b"), race(tmp_path / "c", 1, "x"))
    )
    assert [shown.count(heading) for heading in ("Racing", "Reinforcement learning", "What differs")] == [1, 1, 1]


def test_a_run_without_a_description_goes_by_the_names_that_it_logged(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    (run / FILE).unlink()
    assert read_run(run).info == UNDESCRIBED
    shown = make.text_of(make.page(run))
    assert "miou 0.300" in shown
    assert "val/miou" in shown
    assert "Pictures" in shown
    assert "Missing or broken" not in shown  # an older version wrote all of it


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"heading": 3}, "3 is no str"),
        ({"metrics": [{"name": "x"}]}, "a Metric has no 'title'"),
        ({"metrics": [{"name": "x", "title": "x", "better": "more"}]}, "'more' is no"),
        ({"metrics": [{"name": "x", "title": "x", "low": 1e300}]}, "1e+300 is no float"),
        ({"metrics": [{"name": "x", "title": "x", "low": 10**400}]}, "is no float"),
        ({"scores": [{"key": "x", "title": "x", "digits": 100}]}, "100 is no int"),
        ({"histogram": INFO.document()["histogram"] | {"parts": [[]]}}, "a Counts has no 'title'"),
        ({"pictures": {"heading": "", "folder": "a" * 300, "views": []}}, "no plain name of a file"),
        ({"pictures": {"heading": "", "folder": "../../secret", "views": []}}, "no plain name of a file"),
        ({"pictures": {"heading": "", "folder": "..", "views": []}}, "no plain name of a file"),
        ({"pictures": {"heading": "", "folder": "a", "views": [{"name": "/etc", "alt": ""}]}}, "no plain name of a f"),
    ],
)
def test_a_description_that_is_none_is_a_sentence(tmp_path: Path, change: dict, sentence: str) -> None:
    run = make.rl_run(tmp_path / "run")
    make.write_json(run / FILE, INFO.document() | change)
    with pytest.raises(InputError, match=re.escape(sentence)):
        read_metrics_info(run / FILE)
    shown = make.text_of(make.page(run))
    assert f"{FILE} cannot be read (" in shown
    assert "eval/mean_return_sampled" in shown


def test_what_only_one_of_the_runs_describes_is_shown(tmp_path: Path) -> None:
    first, second = make.seg_run(tmp_path / "first"), make.seg_run(tmp_path / "second", loss="adadem")
    bare = MetricsInfo(INFO.heading, metrics=(Metric("own", "own"),))
    make.write_json(first / FILE, bare.document())
    merged = same_heading([bare, INFO])
    assert [metric.name for metric in merged.metrics] == ["own", *(metric.name for metric in INFO.metrics)]
    assert (merged.pictures, merged.classes, merged.scores) == (INFO.pictures, INFO.classes, ())
    for order in ((first, second), (second, first)):
        shown = make.text_of(make.page(*order))
        assert "Entropy maps" in shown
        assert "IoU by class" in shown


def test_a_description_survives_its_file_and_newer_keys(tmp_path: Path) -> None:
    make.write_json(tmp_path / FILE, INFO.document() | {"of_the_future": 1})
    assert read_metrics_info(tmp_path / FILE) == INFO


def test_a_description_is_text_and_no_program(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    document = INFO.document()
    document["pictures"]["views"][0]["alt"] = "{run.__class__} {0} " + EVIL
    make.write_json(run / FILE, document)
    source = make.page(run)
    assert "{run.__class__}" in source
    assert "<img src=x" not in source


def test_the_report_knows_no_application() -> None:
    """No metric, score or setting of seg or of rl stands in its code or templates."""
    folder = Path(dem_apps.report.__file__).parent
    code = "".join(file.read_text() for file in folder.rglob("*") if file.suffix in (".py", ".html", ".js", ".css"))
    for info in (INFO, described_by_rl()):
        for name in (*(metric.name for metric in info.metrics), *(score.key for score in info.scores)):
            assert not re.search(rf"\b{re.escape(name)}\b", code), name
    assert re.findall(r"miou|mean_return|per_class_iu|\bseg\b|\brl\b|segmentation", code, flags=re.I) == []
