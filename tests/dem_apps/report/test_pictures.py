"""Pictures of a page: which are found, what damage costs, and how they stay small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from support import report_runs as make

from dem_apps.report.page import MOST_BYTES, render
from dem_apps.report.pictures import embed, find_pictures, panel_boxes
from dem_apps.runtime.run_reader import read_run
from seg.scores.described_metrics import described_metrics

INFO = described_metrics("im", 19)


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
