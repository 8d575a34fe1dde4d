"""A page is made of any run folder, whatever its files hold: what is no use is named, and nothing of it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dem_apps.report.page import render
from dem_apps.runtime.metrics_info import FILE
from dem_apps.runtime.run_reader import read_runs
from rl.results.described_metrics import described_metrics as described_by_rl
from seg.scores.described_metrics import described_metrics as described_by_seg

KEYS = st.one_of(
    st.sampled_from([
        "step", "miou", "per_class_iu", "checkpoints", "last", "best", "selected", "reliability", "pixels",
        "confidence", "accuracy", "entropy_histogram", "edges", "wrong", "right", "mean_return", "sampled", "greedy",
        "seed", "env", "algo", "source", "target", "max_steps", "alarm", "val/miou", "eval/mean_return_sampled",
        "heading", "metrics", "scores", "pictures", "title", "folder", "views", "alt",
        "label_free", "per_class_label_share", "per_class_entropy", "classes", "color", "name", "protocol",
        "<script>alert(1)</script>",
    ]),
    st.text(max_size=4),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4),
    st.sampled_from([1e308, -1e308, 10**400, 1, 0, -1, 0.5, "</script><script>x", "\x1b[2J", "\ud800"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


@st.composite
def folders(draw: st.DrawFn) -> dict[str, str]:
    """The files of a run."""
    files = {"metrics.jsonl": "\n".join(json.dumps(line) for line in draw(st.lists(DOCUMENTS, max_size=4)))}
    for name in ("eval.json", "environment.json", "classes.json"):
        if draw(st.booleans()):
            files[name] = json.dumps(draw(DOCUMENTS))
    described = st.sampled_from([described_by_rl().document(), described_by_seg("im", 19).document()])
    if draw(st.booleans()):
        files[FILE] = json.dumps(draw(described | DOCUMENTS | st.builds(lambda a, b: a | b, described, DOCUMENTS)))
    if draw(st.booleans()):
        files["config.yaml"] = json.dumps(draw(DOCUMENTS))
    return files


@given(st.lists(folders(), min_size=1, max_size=3))
@settings(max_examples=25 if settings().max_examples < 100 else settings().max_examples)
@example([{"metrics.jsonl": '{"step": 1, "a": 1e308}\n{"step": 2, "a": -1e308}'}])
@example([{"metrics.jsonl": '{"step": 1' + "0" * 300 + ', "a": 1}\n{"step": 0, "a": 2}'}])
@example([{"metrics.jsonl": "[" * 5000}, {"config.yaml": "a: &a [*a]"}])
def test_a_page_of_any_run_folders(tmp_path: Path, runs: list[dict[str, str]]) -> None:
    paths = []
    for number, files in enumerate(runs):
        path = tmp_path / f"run{number}"
        path.mkdir(exist_ok=True)
        for old in path.iterdir():
            old.unlink()
        for name, text in {"metrics.jsonl": "", **files}.items():
            (path / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        paths.append(path)
    page = render(read_runs(paths)).decode()
    assert "<script>alert(1)" not in page
    assert "</script><script>x" not in page


def test_a_picture_that_claims_to_be_enormous_is_one_line_of_the_page(tmp_path: Path) -> None:
    header: Any = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (50_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
    (tmp_path / "eval.json").write_text('{"miou": 0.5}')
    (tmp_path / "entropy_maps").mkdir()
    (tmp_path / "entropy_maps" / "a.png").write_bytes(header + bytes(40))
    (tmp_path / "entropy_maps" / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    page = render(read_runs([tmp_path])).decode()
    assert "entropy_maps/a.png is no picture that can be read." in page
    assert "entropy_maps/b.png is no picture that can be read." in page
