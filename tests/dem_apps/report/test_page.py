"""Pages: what they read, what they say is missing, and that nothing of a run is trusted."""

from __future__ import annotations

import html
import json
import math
import re
from pathlib import Path

import pytest
from support import report_runs as make

from dem_apps.runtime.metrics_info import (
    FILE,
)
from dem_apps.runtime.run_reader import number, read_run
from seg.scores.described_metrics import described_metrics

EVIL = "<img src=x onerror=alert(1)><script>alert(2)<script>"


def test_a_seg_run(tmp_path: Path) -> None:
    shown = make.text_of(make.page(make.seg_run(tmp_path / "run", miou=0.3123)))
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
    source = make.page(run)
    assert "return, sampled last policy 0.900 ± 0.200" in make.text_of(source)
    assert "1 further metrics" in make.text_of(source)  # train/own
    assert 'src="data:image/gif;base64,' in source
    assert "videos/broken.mp4 is no MP4 file that can be read." in source
    assert "band c0" in source


def test_a_run_from_elsewhere_that_has_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    run = read_run(tmp_path / "run")
    assert run.metrics == [{"step": 1, "loss": 0.5}]
    shown = make.text_of(make.page(tmp_path / "run"))
    for sentence in (
        "config.yaml is missing",
        "eval.json is missing: the run has not finished",
        "checkpoints/ holds no checkpoint.",
    ):
        assert sentence in shown


@pytest.mark.parametrize(
    "content", [b"[1, 2]", b"{", b"\xff\xfe", b'{"miou": "high", "per_class_iu": [1], "checkpoints": 3}', b"[" * 100000]
)
def test_a_broken_eval_json_breaks_nothing_else(tmp_path: Path, content: bytes) -> None:
    run = make.seg_run(tmp_path / "run")
    (run / "eval.json").write_bytes(content)
    assert "Target mean IoU" in make.page(run)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
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
    for source in (make.page(run), make.page(run, other)):
        assert "<img src=x" not in source
        assert source.count("<script>") == 1  # the page's own
        assert html.escape(EVIL).replace("&quot;", "&#34;") in source


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run", loss="https://example.org/x.js")
    source = make.page(run, make.rl_run(tmp_path / "rl"))
    assert re.findall(r'(?:src|href|srcset|action)="(?!data:)', source) == []
    assert "default-src 'none'" in html.unescape(source)
    assert len(re.findall(r"https?://", source)) == source.count("https://example.org/x.js")


def test_a_page_says_in_words_what_each_run_is(tmp_path: Path) -> None:
    paths = [make.seg_run(tmp_path / arm / "seed0", loss=arm) for arm in ("control", "best")]
    assert 'class="words"' not in make.page(*paths)  # older runs do not say
    (paths[1] / FILE).write_text(json.dumps(described_metrics("im", 19, "learns <b>nothing</b>").document()))
    assert "control, best compared" in make.text_of(make.page(*paths))
    assert 'class="image of2"' in make.page(*paths)  # two columns
    assert 'class="view shared" data-view="image"' in make.page(*paths)
    assert "best/seed0 learns <b>nothing</b>" in make.text_of(make.page(*paths))
    assert "learns <b>nothing</b>" in make.text_of(make.page(paths[1]))


def test_the_command_that_made_a_run_can_be_pasted(tmp_path: Path) -> None:
    run = make.seg_run(tmp_path / "run")
    command = ["/somewhere/seg/train.py", "--source.root", "my data", "--loss", "<b>"]
    (run / "environment.json").write_text(json.dumps({"command": command}))
    assert "python -m seg.train --source.root 'my data' --loss '<b>'" in make.text_of(make.page(run))
    (run / "environment.json").write_text(json.dumps({"command": 3}))
    assert "<pre" not in make.page(run)
