"""Reports: what they read, what they say is missing, what they compute, and that nothing of a run is trusted."""

from __future__ import annotations

import html
import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import report_runs as make

import dem_apps.report
from dem_apps.errors import InputError
from dem_apps.report.__main__ import main
from dem_apps.report.charts import Series, line_chart, short, ticks
from dem_apps.report.curves import histogram_chart, reliability_chart
from dem_apps.report.groups import differing, grouped
from dem_apps.report.intervals import difference_interval, mean_band, mean_interval
from dem_apps.report.page import MOST_BYTES, render
from dem_apps.report.part import build_part
from dem_apps.report.pictures import embed, find_pictures, panel_boxes
from dem_apps.report.settings_text import flat, shown
from dem_apps.report.tables import class_table, comparison_table
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
from dem_apps.runtime.run_reader import number, read_run, read_runs
from rl.results.described_metrics import described_metrics as described_by_rl
from seg.scores.described_metrics import SCORES, described_metrics

INFO = described_metrics("im", 19)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)<script>"


def page(*paths: Path) -> str:
    return render(read_runs(paths)).decode()


def text_of(source: str) -> str:
    """What a reader sees, more or less."""
    bare = re.sub(r"<(style|script)>.*?</\1>", "", source, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", bare).split()))


def test_a_seg_run(tmp_path: Path) -> None:
    shown = text_of(page(make.seg_run(tmp_path / "run", miou=0.3123)))
    assert "mean IoU %, last end of training 31.23" in shown
    assert "best chosen with target labels 10 32.23 target labels" in shown
    assert "step 10: 99.0 % of the pixels are predicted as one class" in shown
    assert "train tail –" in shown  # 0.5 % of the labels
    assert "pole tail" not in shown  # 2.5 %
    assert "less than 1% of the labelled pixels that the scores are from" in shown
    assert "Reliability" in shown
    assert "Entropy of the pixels" in shown
    assert "protocol" in shown.lower()
    assert "Missing or broken" not in shown


def test_an_rl_run_with_a_gif(tmp_path: Path) -> None:
    run = make.rl_run(tmp_path / "run", mean=0.9)
    make.write_gif(run / "videos" / "episode.gif")
    (run / "videos" / "broken.mp4").write_bytes(b"<script>")
    source = page(run)
    assert "return, sampled last policy 0.900 ± 0.200" in text_of(source)
    assert "1 further metrics" in text_of(source)  # train/own
    assert 'src="data:image/gif;base64,' in source
    assert "videos/broken.mp4 is no MP4 file that can be read." in source
    assert "band c0" in source


def test_a_run_from_elsewhere_that_has_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    run = read_run(tmp_path / "run")
    assert run.metrics == [{"step": 1, "loss": 0.5}]
    shown = text_of(page(tmp_path / "run"))
    for sentence in (
        "config.yaml is missing",
        "eval.json is missing: the run has not finished",
        "metrics.jsonl: line 2 cannot be read and is left out.",
        "checkpoints/ holds no checkpoint.",
    ):
        assert sentence in shown


@pytest.mark.parametrize(
    "content", [b"[1, 2]", b"{", b"\xff\xfe", b'{"miou": "high", "per_class_iu": [1], "checkpoints": 3}', b"[" * 100000]
)
def test_a_broken_eval_json_breaks_nothing_else(tmp_path: Path, content: bytes) -> None:
    run = make.seg_run(tmp_path / "run")
    (run / "eval.json").write_bytes(content)
    assert "Target mean IoU" in page(run)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "loss": math.nan}, {"step": 2, "loss": True}, {"step": 3, "loss": 10**400},
        {"step": 4, "loss": 2.0}, {"step": "5", "loss": 1.0}, {"step": 6, "loss": None},
    ]  # fmt: skip
    run = read_run(make.write_run(tmp_path / "run", {"a": 1}, lines))
    assert run.curve("loss") == ([4], [2.0])
    assert any("line 5 cannot be read" in sentence for sentence in run.missing)
    assert number(math.inf) is None


def test_everything_of_a_run_is_escaped(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / EVIL.replace("/", ""), loss=EVIL)
    other = make.seg_run(tmp_path / "other", loss="adadem")
    evaluation = json.loads((run / "eval.json").read_text())
    evaluation["per_class_iu"][EVIL] = 0.5
    evaluation["protocol"][EVIL] = EVIL
    evaluation["checkpoints"]["last"]["chosen_by"] = EVIL
    make.write_json(run / "eval.json", evaluation)
    make.write_json(run / "classes.json", {"classes": [{"name": EVIL, "color": ['"/><script>', 0, 0]}]})
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 20, "alarm": EVIL, EVIL: 1.0}) + "\n")
    make.write_picture(run / "entropy_maps" / EVIL / "image.png", "x")
    for source in (page(run), page(run, other)):
        assert "<img src=x" not in source
        assert source.count("<script>") == 1  # the page's own
        assert html.escape(EVIL).replace("&quot;", "&#34;") in source


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run", loss="https://example.org/x.js")
    source = page(run, make.rl_run(tmp_path / "rl"))
    assert re.findall(r'(?:src|href|srcset|action)="(?!data:)', source) == []
    assert "default-src 'none'" in html.unescape(source)
    assert len(re.findall(r"https?://", source)) == source.count("https://example.org/x.js")


def test_a_large_run_stays_below_the_limit(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    for image in range(3):
        make.write_picture(run / "entropy_maps" / f"large{image}" / "image.png", str(image), (1000, 900))
    source = render([read_run(run)])
    assert len(source) < MOST_BYTES
    assert "To keep the page small" in source.decode()
    assert source.decode().count('data-view="image"') > 3


def test_eight_maps_of_street_size_stay_below_the_limit(tmp_path: Path) -> None:
    """2048×1024, of which noise, the worst there is, could not be kept at full size."""
    run = make.seg_run(tmp_path / "run")
    noise = np.random.default_rng(0).integers(0, 256, (1024, 2048, 3), np.uint8)
    flat = np.zeros((1024, 2048, 3), np.uint8)
    for position in range(8):
        for view, pixels in (("image", noise), ("prediction", flat), ("entropy", noise[::-1]), ("label", flat)):
            file = run / "entropy_maps" / f"street{position}" / f"{view}.png"
            file.parent.mkdir(exist_ok=True)
            Image.fromarray(np.roll(pixels, position, axis=1)).save(file, compress_level=0)
    source = render([read_run(run)])
    assert 1_000_000 < len(source) < MOST_BYTES
    shown = source.decode()
    assert "To keep the page small, pictures are shown at" in shown
    assert all(f'alt="entropy of run on street{position}' in shown for position in range(8))


def test_pictures_that_fit_nowhere_are_said(tmp_path: Path) -> None:
    pictures, _ = find_pictures(read_run(make.seg_run(tmp_path / "run")), INFO.pictures)
    assert embed(pictures, 1_000_000)[1] is None
    assert embed(pictures, 10) == ([], "The pictures do not fit into the page; they are in the run folders.")
    some, note = embed(pictures, 4000)
    assert {one.picture.name for one in some} == {"a"}
    assert note is not None
    assert "1 further images did not fit" in note


def test_a_panel_is_cut_into_its_pictures() -> None:
    panel = np.full((70, 6 + 3 * 40 + 2 * 4 + 50, 3), 255, np.uint8)
    for column, left in enumerate((6, 50, 94)):
        panel[2:10, left + 2 : left + 20] = 0  # the title
        panel[20:60, left : left + 40] = 10 * (column + 1)
    panel[20:60, 142:154] = 90
    assert panel_boxes(panel) == [(6, 20, 46, 60), (50, 20, 90, 60), (94, 20, 134, 60)]
    assert panel_boxes(panel[:, :100]) is None
    assert panel_boxes(np.zeros((50, 200, 3), np.uint8)) is None


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    (run / "entropy_maps" / "bad.png").write_bytes(b"no picture")
    Image.new("RGB", (30, 30)).save(run / "entropy_maps" / "plain.png")
    pictures, unreadable = find_pictures(read_run(run), INFO.pictures)
    assert unreadable == ["entropy_maps/bad.png is no picture that can be read."]
    assert [one.view.name for one in pictures if one.name == "plain"] == ["panel"]


def test_a_view_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    tile = run / "entropy_maps" / "a" / "entropy.png"
    tile.write_bytes(tile.read_bytes()[:-40])
    (run / "entropy_maps" / "b" / "label.png").unlink()
    pictures, sentences = find_pictures(read_run(run), INFO.pictures)
    assert [(one.name, one.view.name) for one in pictures] == [
        ("a", "image"), ("a", "prediction"), ("a", "label"), ("b", "image"), ("b", "prediction"), ("b", "entropy"),
    ]  # fmt: skip
    assert sentences == [
        "entropy_maps/a/entropy.png is no picture that can be read.", "entropy_maps/ has no label of b.",
    ]  # fmt: skip


def test_a_panel_stands_in_for_tiles_that_are_all_damaged(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    for tile in (run / "entropy_maps" / "a").iterdir():
        tile.write_bytes(b"")
    make.write_picture(run / "entropy_maps" / "a.png", "panel")
    make.write_picture(run / "entropy_maps" / "b.png", "panel")
    pictures, sentences = find_pictures(read_run(run), INFO.pictures)
    assert [one.file.name for one in pictures if one.name == "a"] == ["a.png"]
    assert "b.png" not in [one.file.name for one in pictures]
    assert len(sentences) == 4


def test_few_settings_are_columns_and_many_are_rows(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / name, loss=name) for name in "abcdef"]
    few, many = (build_part(read_runs(chosen), None, (), 0).tables[0] for chosen in (paths[:5], paths))
    assert [name for name, _ in few.header] == ["score", *"abcde"]
    assert [row[0] for row in few.rows][:2] == ["mean IoU %, last", "mean IoU %, best"]
    assert [row[0] for row in many.rows] == list("abcdef")
    assert few.rows[0][2] == [row[2][0] for row in many.rows][:5]


def test_a_page_says_in_words_what_each_run_is(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / arm / "seed0", loss=arm) for arm in ("control", "best")]
    assert 'class="words"' not in page(*paths)  # older runs do not say
    (paths[1] / FILE).write_text(json.dumps(described_metrics("im", 19, "learns <b>nothing</b>").document()))
    assert "control, best compared" in text_of(page(*paths))
    assert 'class="image of2"' in page(*paths)  # two columns
    assert 'class="view shared" data-view="image"' in page(*paths)
    assert "best/seed0 learns <b>nothing</b>" in text_of(page(*paths))
    assert "learns <b>nothing</b>" in text_of(page(paths[1]))


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
    shown = text_of(page(*paths))
    assert shown.index("What differs") < shown.index("Final scores by setting") < shown.index("Target mean IoU")


def test_lost_settings_belong_to_no_group(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / f"run{i}") for i in range(2)]
    for path in paths:
        (path / "config.yaml").unlink()
    assert len(grouped(read_runs(paths))) == 2


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216)])
def test_the_mean_has_students_interval(freedom: int, expected: float) -> None:
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    interval = mean_interval(values.tolist())
    half = expected * statistics.stdev(values) / math.sqrt(freedom + 1)  # any printed table has the quantile
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), rel=1e-5)
    band = mean_band(np.stack([values, np.ones(freedom + 1)], axis=1))
    assert [float(end[0]) for end in band] == pytest.approx([interval.estimate, interval.low, interval.high], rel=1e-12)
    assert [float(end[1]) for end in band] == [1.0, 1.0, 1.0]


def test_intervals() -> None:
    paired = difference_interval({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 2.5})
    differences = [2.0, 3.0, 1.5]
    half = 4.30265 * statistics.stdev(differences) / math.sqrt(3)
    assert (paired.paired, paired.estimate) == (True, pytest.approx(statistics.fmean(differences)))
    assert paired.high == pytest.approx(paired.estimate + half, rel=1e-4)
    assert paired.excludes_zero
    welch = difference_interval({0: 1.0, 1: 2.0, 2: 3.0}, {7: 4.0, 8: 6.0, 9: 8.0})
    # variances 1 and 4: 50 / 17 = 2.941 degrees of freedom, whose quantile lies between those of 2 and 3
    assert -4 - 4.30265 * math.sqrt(5 / 3) < welch.low < -4 - 3.18245 * math.sqrt(5 / 3)
    assert welch.low == pytest.approx(-4 - 3.21839 * math.sqrt(5 / 3), rel=1e-3)
    assert not welch.paired
    alone = difference_interval({0: 1.0}, {0: 2.0})
    assert (alone.estimate, alone.low, alone.excludes_zero) == (-1.0, None, False)


# -- what a run says about itself --------------------------------------------------------------------------------

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
    source = page(race(tmp_path / "run", 80.25, "red"))
    shown = text_of(source)
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
    shown = text_of(page(race(tmp_path / "a", 80.0, "red"), make.rl_run(tmp_path / "b"), race(tmp_path / "c", 1, "x")))
    assert [shown.count(heading) for heading in ("Racing", "Reinforcement learning", "What differs")] == [1, 1, 1]


def test_a_run_without_a_description_goes_by_the_names_that_it_logged(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    (run / FILE).unlink()
    assert read_run(run).info == UNDESCRIBED
    shown = text_of(page(run))
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
    shown = text_of(page(run))
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
        shown = text_of(page(*order))
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
    source = page(run)
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


def test_distributions_are_pooled_by_pixels(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / f"run-seed{seed}", seed=seed) for seed in range(2)]
    document = make.seg_evaluation(0.3)
    document["reliability"] = {"pixels": [0, 90, 0], "confidence": [None, 0.6, None], "accuracy": [None, 0.8, None]}
    make.write_json(paths[1] / "eval.json", document)
    chart = reliability_chart(INFO.reliability, grouped(read_runs(paths)))
    assert chart is not None
    # (30 · 0.5 + 90 · 0.6) / 120 and (30 · 0.4 + 90 · 0.8) / 120
    assert chart.rows[0] == ["0.5750", "0.7000"]
    histogram = histogram_chart(INFO.histogram, grouped(read_runs(paths)))
    assert histogram is not None
    assert histogram.rows == [["0.2500", "0.6000", "0.1000"], ["0.7500", "0.1000", "0.2000"]]


def test_tail_classes_by_name(tmp_path: Path) -> None:
    run = read_run(make.seg_run(tmp_path / "run"))
    table = class_table(INFO.classes, grouped([run]), ["pole"])
    assert table is not None
    assert [name for name, mark, _ in table.rows if mark == "tail"] == ["pole"]
    assert table.rows[-1][0] == "mean over tail classes"
    assert table.rows[-1][2][0].main == "25.0"
    assert table.note == "Tail classes are those named as such: pole."


def test_charts() -> None:
    many = Series("many", range(2000), [5.0 if x == 777 else 1.0 for x in range(2000)])
    chart = line_chart("<Title>", [many])
    assert chart.svg.count(",") < 400
    assert ' aria-label="Line chart, &lt;Title&gt;: many ends at 1, range 1 to 5"' in chart.svg
    heights = {point.split(",")[1] for point in re.search(r'points="([^"]+)"', chart.svg).group(1).split()}  # type: ignore[union-attr]
    assert len(heights) == 2  # the spike is there
    banded = line_chart("t", [Series("s", [0, 1], [0.9, 1.0], ([0.5, 0.8], [1.3, 1.2]))], bounds=(0, 1))
    # the picture ends where values end, the numbers are as they are
    assert 'class="band c0 d0" points="50.0,10.0 370.0,10.0 ' in banded.svg
    assert banded.rows[0][2] == "0.5000 to 1.300"
    assert ticks(0, 100352, 4) == [0, 50000, 100000]
    assert [short(value) for value in (None, 0.0, 12345.6, 0.20614, 1.2e-6)] == [
        "–",
        "0",
        "12346",
        "0.2061",
        "1.200e-06",
    ]


def test_settings_stay_short() -> None:
    nested: object = 1
    for _ in range(50):
        nested = {"a": nested}
    assert len(str(flat({"deep": nested}))) < 2000
    assert len(shown("x" * 10_000)) < 500
    assert flat({"a": {"b": None, "c": True}, "d": [1, 2.5], "e": []}) == {
        "a.b": "none", "a.c": "yes", "d": "1, 2.5", "e": "none",
    }  # fmt: skip


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(make.rl_run(tmp_path / name, loss=name)) for name in ("entropy", "adadem")]
    out = tmp_path / "deep" / "report.html"
    main([*runs, "--out", str(out), "--baseline", runs[1]])
    assert "2 runs" in capsys.readouterr().out
    # columns are the settings: the second one is what the first is compared with
    assert "; difference +0.000 of one seed, and only more seeds tell how much of it is chance." in text_of(
        out.read_text()
    )
    assert "<title>entropy, adadem compared</title>" in out.read_text()
    assert re.search(r"entropy 1 run adadem 1 run .{0,99}\+0\.000 0\.900 baseline", text_of(out.read_text()))
    assert text_of(out.read_text()).count("no interval") == 1
    main([runs[0], "--out", str(out)])  # its own page is replaced
    assert out.read_text().count("<title>entropy</title>") == 1


def test_the_page_goes_to_the_run_or_the_folder_of_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arm, miou in (("control", 0.3), ("style", 0.35)):
        for seed in (0, 1):
            loss = "none" if arm == "control" else "adadem"
            make.seg_run(tmp_path / "grid" / arm / f"seed{seed}", miou=miou + seed / 100, loss=loss, seed=seed)
    (tmp_path / "grid" / "report").mkdir()
    main([str(tmp_path / "grid")])
    shown = text_of((tmp_path / "grid" / "report.html").read_text())
    assert (
        "style: mean IoU 35.50 % at the end of training, control 30.50 %; difference +5.00 [+5.00, +5.00] over 2 "
        "seeds: better; an alarm in 2" in shown
    )
    main([str(tmp_path / "grid" / "control" / "seed1")])
    shown = text_of((tmp_path / "grid" / "control" / "seed1" / "report.html").read_text())
    assert "mean IoU %: 31.00 at the end of training; an alarm in 1 of 1 runs, read below." in shown
    monkeypatch.chdir(tmp_path)
    main([str(tmp_path / "grid" / "control" / f"seed{seed}") for seed in (0, 1)])
    shown = text_of((tmp_path / "report.html").read_text())
    assert "mean IoU %: 30.50 ± 0.71 over 2 seeds; an alarm in 2 of 2 runs" in shown


def test_the_command_that_made_a_run_can_be_pasted(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    command = ["/somewhere/seg/train.py", "--source.root", "my data", "--loss", "<b>"]
    (run / "environment.json").write_text(json.dumps({"command": command}))
    assert "python -m seg.train --source.root 'my data' --loss '<b>'" in text_of(page(run))
    (run / "environment.json").write_text(json.dumps({"command": 3}))
    assert "<pre" not in page(run)


def test_a_line_carries_its_values() -> None:
    chart = line_chart("t", [Series("a<b", [1, 2], [0.25, 0.5]), Series("guide", [1, 2], [0, 1], colour=None)])
    assert chart.svg.count("data-values") == 1
    assert 'data-name="a&lt;b" data-values="1|0.2500;2|0.5000"' in chart.svg


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "grid" / "run")
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    for arguments, sentence in (
        ([], "the following arguments are required: RUN"),
        ([str(tmp_path / "none")], "is no folder"),
        ([str(tmp_path / "grid"), str(run)], "it holds run folders, so give those"),
        ([str(run), str(run)], "given twice"),
        ([str(run), "--out", str(mine)], "is no report of this command"),
        ([str(run), "--out", str(tmp_path)], "is no file"),
        ([str(run), "--out", str(mine / "x.html")], "cannot be written"),
        ([str(run), "--out", str(tmp_path / "r.html"), "--baseline", str(tmp_path)], "none of the runs given"),
        ([str(run), "--out", str(tmp_path / "r.html"), "--tail", "pol"], "did you mean 'pole'"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            main(arguments)
    assert mine.read_text() == "<p>mine"
