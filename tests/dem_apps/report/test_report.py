"""Pages about runs: what they show and leave out, mistakes; and intervals, against printed tables of Student's t."""

import base64
import functools
import io
import itertools
import json
import math
import os
import re
import statistics
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import cases, refuses
from support.report_runs import page, rl_run, seg_run, text_of, write_picture

from dem_apps.report.__main__ import main
from dem_apps.report.intervals import difference_interval, mean_band, mean_interval
from dem_apps.report.runs import grouped, read_runs
from dem_apps.report.tables import write_csv
from dem_apps.runtime.metrics_info import FILE
from seg.scores.report_scores import METRICS

PICTURE = "entropy_maps/a/image.png"


def test_a_seg_run(tmp_path):
    source = page(seg_run(tmp_path / "a"))
    text = text_of(source)
    for shown in (
        "mean IoU %, last: 30.00.",
        "is the difference to a run with --method control",
        "step 10: 99.0 %",
        "train (tail) –",
        "road 90.0",
        "mean IoU %, best (chosen with target labels)",
        "method minent",
        "python -m seg.train --seed 0",
        "protocol.upsampling bilinear",
        "label, wrong, confidently-wrong",
    ):
        assert shown in text, shown
    alts = re.findall(r'alt="([^"]+)"', source)
    assert {"image of a, a", "wrong of b, a", "confidently-wrong of a, a"} <= set(alts)
    assert alts.count("chart") == 3
    assert text.index("Curves") < text.index("Label-free curves")
    drawn = [
        {metric.label_free for metric in METRICS if metric.chart == each.chart}
        for each in METRICS
        if each.chart
    ]
    # no label-free curve beside one that labels give
    assert all(len(kinds) == 1 for kinds in drawn)


def test_settings_that_differ_and_a_picture_of_all_runs_once(tmp_path):
    runs = [
        seg_run(tmp_path / "source", method="source"),
        seg_run(tmp_path / "control", loss="none"),
    ]
    for run in runs:
        write_picture(run / "entropy_maps" / "a" / "image.png", "the same")
    source = page(*runs)
    settings = "setting source control loss entropy none method source minent seeds"
    assert settings in text_of(source)
    pictures = [f"image of {name}" for name in ("a, the same in 2 runs", "b, source", "b, control")]
    assert all(f'alt="{name}"' in source for name in pictures)
    assert "image of a, control" not in source
    assert "the same in 2 runs</figcaption>" in source
    alone = text_of(page(runs[0]))
    assert "method source seed 0" in alone
    assert "The effect of training" not in alone


def test_runs_of_two_tasks_are_not_compared(tmp_path):
    runs = [rl_run(tmp_path / env, env=env) for env in ("CartPole-v1", "my_envs-Corridor-v0")]
    text = text_of(page(*runs))
    assert (
        "2 different tasks, whose scores cannot be compared: Reinforcement learning: CartPole-v1; Reinf"
        in text
    )
    assert "difference to" not in text
    scores = text[text.index("Final scores") : text.index("More scores")]
    assert scores.count("return") + scores.count("success") + scores.count("steps to the goal") == 6
    assert "length, best policy, greedy 5.0" in text


def test_several_runs_are_compared_over_seeds(tmp_path):
    runs = [
        seg_run(tmp_path / f"none-seed{seed}", 0.2 + seed / 100, "none", seed) for seed in range(3)
    ]
    runs += [
        seg_run(tmp_path / f"ours-seed{seed}", 0.3 + seed / 50, "adadem", seed) for seed in range(3)
    ]
    interval = difference_interval({0: 30, 1: 32, 2: 34}, {0: 20, 1: 21, 2: 22})
    text = text_of(page(*runs))
    shown = f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}], better"
    assert f"The highest mean IoU % is 32.00 ± 2.00, by “ours” ({shown} over “none”)." in text
    assert f"mean IoU %, last (end of training) 21.00 ± 1.00 32.00 ± 2.00 {shown}" in text
    assert "loss none adadem" in text
    assert "seeds 0, 1, 2 0, 1, 2" in text
    assert text.startswith("none, ours none, ours")
    assert "Pictures of each arm's first run" in text
    assert [group.name for group in grouped(read_runs(runs))] == ["none", "ours"]


def test_an_rl_run_stands_beside_a_seg_run(tmp_path):
    run = rl_run(tmp_path / "policy", 0.9)
    write_picture(run / "videos" / "episode.gif", "x")
    source = page(run, seg_run(tmp_path / "segmenter"))
    text = text_of(source)
    assert "return, sampled 0.900" in text
    assert "mean IoU %, last: 30.00." in text
    assert "episode.gif" in text


def test_a_run_that_was_killed_is_shown_as_far_as_it_went(tmp_path):
    run, whole = seg_run(tmp_path / "a", finished=False), seg_run(tmp_path / "b", loss="none")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 30, "val/mi')
    text = text_of(page(run))
    assert "Not finished a " in text
    assert "Curves" in text
    assert "Not finished a " in text_of(page(run, whole))


def test_numbers_that_are_not_finite_and_texts_that_are_no_texts(tmp_path):
    run = seg_run(tmp_path / "a")
    scores = json.loads((run / "eval.json").read_text())
    (run / "eval.json").write_text(
        json.dumps({**scores, "miou": float("nan"), "pixel_accuracy": "<script>alert(1)"})
    )
    source = page(run)
    assert "<script>" not in source
    assert "mean IoU %, last" not in text_of(source)


class _Loads(HTMLParser):
    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        assert tag not in ("script", "link", "iframe")
        assert not given.get("src") or str(given["src"]).startswith("data:")


def test_names_are_escaped_and_nothing_is_loaded_or_run(tmp_path):
    source = page(seg_run(tmp_path / "\x1b[2J\u202e<img src=x>", loss="\u2066none"))
    assert r"\x1b[2J\u202e&lt;img src=x&gt;" in source
    assert r"\u2066none" in source
    assert not re.search("[\x1b\u202e\u2066]", source)
    _Loads().feed(source)
    assert "default-src &#39;none&#39;" in source or "default-src 'none'" in source


def test_large_pictures_become_smaller(tmp_path):
    run = seg_run(tmp_path / "a")
    for image, view in itertools.product(range(2), ("image", "prediction", "entropy")):
        write_picture(
            run / "entropy_maps" / f"large{image}" / f"{view}.png", f"{view}{image}", (1024, 512)
        )
    source = page(run)
    assert len(source) < 2_500_000
    pictures = re.findall(r"/webp;base64,([^\"]+)", source)
    assert len(pictures) > 6
    for uri in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(uri))).size[0] <= 512


def changed(**values):
    """Sets keys of a JSON file, ``scores__0__key`` for those of nested values."""

    def change(file):
        document = json.loads(file.read_text()) if file.exists() else {}
        for name, value in values.items():
            *above, last = name.split("__")
            functools.reduce(
                lambda part, key: part[int(key) if key.isdigit() else key], above, document
            )[last] = value
        file.write_text(json.dumps(document))

    return change


def moved_away(file):
    elsewhere = Path(tempfile.mkdtemp()) / "moved"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def replaced_by_a_pipe(file):
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)


@cases(
    (PICTURE, lambda file: file.write_bytes(file.read_bytes()[:200]), "the image cannot be read"),
    (PICTURE, replaced_by_a_pipe, r"image.png: cannot be read \(not a regular file\)"),
    ("videos/a.gif", replaced_by_a_pipe, r"a.gif: cannot be read \(not a regular file\)"),
    ("entropy_maps", moved_away, "a link to a file outside"),
    ("classes.json", changed(classes=[{"name": "a", "color": [1, 2, 999]}]), "from 0 to 255"),
)
def test_a_damaged_part_is_one_sentence(name, damage, sentence, tmp_path):
    run = seg_run(tmp_path / "a")
    damage(run / name)
    refuses(sentence, page, run)


def test_the_command(tmp_path, capsys):
    run = seg_run(tmp_path / "grid" / "arm" / "seed0")
    main([str(run)])
    main([str(run)])  # its own page is replaced
    assert "train (tail)" in text_of((run / "report.html").read_text())
    seg_run(tmp_path / "grid" / "arm" / "seed1")
    adapted = tmp_path / "grid" / "adapted"  # as seg.adapt leaves it, which is no training
    adapted.mkdir()
    (adapted / "config.yaml").write_text("model: {}\n")
    main([str(tmp_path / "grid")])
    assert "runs: 2" in capsys.readouterr().out
    assert (tmp_path / "grid" / "report.html").is_file()


def test_mistakes_are_one_sentence(tmp_path):
    run = seg_run(tmp_path / "a")
    (tmp_path / "mine.html").write_text("mine")
    older = seg_run(tmp_path / "older")
    (older / FILE).unlink()
    for arguments, message in (
        ([str(tmp_path / "nothing")], "not a run folder"),
        ([str(older)], f"not a run folder of a training (it has no {FILE})"),
        (
            [str(run), "--out", str(tmp_path / "mine.html")],
            "exists and is no report of this command",
        ),
        ([str(run), "--outt", "x"], "unrecognized arguments: --outt"),
    ):
        refuses(re.escape(message), main, arguments)


def test_a_table_of_file_names_is_utf_8(tmp_path):
    write_csv(tmp_path / "a.csv", [{"image": os.fsdecode(b"caf\xe9.jpg"), "share": 0.5}])
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "image,share\ncaf\\udce9.jpg,0.5\n"


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216)]
)
def test_the_mean_has_students_interval(freedom, expected):
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    interval = mean_interval(values.tolist())
    # any printed table has the quantile
    half = expected * statistics.stdev(values) / math.sqrt(freedom + 1)
    assert (interval.low, interval.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), rel=1e-5
    )
    band = mean_band(np.stack([values, np.ones(freedom + 1)], axis=1))
    assert [float(end[0]) for end in band] == pytest.approx(
        [interval.estimate, interval.low, interval.high], rel=1e-12
    )
    assert [float(end[1]) for end in band] == [1.0, 1.0, 1.0]


def test_intervals():
    paired = difference_interval({0: 3.0, 1: 5.0, 2: 4.0}, {0: 1.0, 1: 2.0, 2: 2.5})
    differences = [2.0, 3.0, 1.5]
    half = 4.30265 * statistics.stdev(differences) / math.sqrt(3)
    assert paired.estimate == pytest.approx(statistics.fmean(differences))
    assert paired.high == pytest.approx(paired.estimate + half, rel=1e-4)
    assert paired.excludes_zero
    welch = difference_interval({0: 1.0, 1: 2.0, 2: 3.0}, {7: 4.0, 8: 6.0, 9: 8.0})
    # variances 1 and 4: 50 / 17 = 2.941 degrees of freedom, whose quantile lies between those of 2 and 3
    assert -4 - 4.30265 * math.sqrt(5 / 3) < welch.low < -4 - 3.18245 * math.sqrt(5 / 3)
    assert welch.low == pytest.approx(-4 - 3.21839 * math.sqrt(5 / 3), rel=1e-3)
    alone = difference_interval({0: 1.0}, {0: 2.0})
    assert (alone.estimate, alone.low, alone.excludes_zero) == (-1.0, None, False)


def test_a_single_seed_is_compared_with_the_same_seed_of_the_other():
    control = {0: 2.0, 1: 5.0, 2: 8.0}
    for seed, expected in ((0, 1.0), (2, -5.0)):
        alone = difference_interval({seed: 3.0}, control)
        assert (alone.estimate, alone.low) == (expected, None)
        assert difference_interval(control, {seed: 3.0}).estimate == -expected
    unpaired = difference_interval({9: 3.0}, control)
    assert (unpaired.estimate, unpaired.low) == (-2.0, None)
