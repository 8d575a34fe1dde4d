"""What is kept of an adaptation, and whose folder it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dem_apps.errors import InputError
from seg.adaptation.work import RESULT, Work

SETTINGS = {"lr": 0.1, "size": None}


def test_it_goes_on(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", SETTINGS, ["a.png", "b.png"])
    assert not work.resumed
    assert work.rows("before") == {}
    assert work.state() is None
    first, second, third = (
        {"image": image, "entropy": entropy, "pixels": [3, 5]}
        for image, entropy in (("a.png", 0.1), ("a.png", 0.2), ("b.png", 0.3))
    )
    work.add_row("before", first)
    work.add_row("before", second)
    work.save({"weights": torch.arange(3.0), "step": 2}, 2)
    work.close()
    with open(tmp_path / "out" / "work" / "before.jsonl", "a") as file:
        file.write('{"image": "b.p')  # as a kill leaves it
    (tmp_path / "out" / "images.csv.515.tmp").write_text("image,ent")
    again = Work(tmp_path / "out", SETTINGS, ["a.png", "b.png"])
    assert again.resumed
    assert again.rows("before") == {"a.png": second}
    again.add_row("before", third)
    assert list(again.rows("before")) == ["a.png", "b.png"]
    assert again.state()["weights"].tolist() == [0, 1, 2]
    again.finish({"adapted": True})
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [RESULT]


@pytest.mark.parametrize(
    "line", ['{"image": "c.png", "entropy": 0.1, "pixels": [1]}', '{"image": "a.png"}', "[1]", '{"image": "a.png", "x']
)
def test_lines_of_others_are_refused(line: str, tmp_path: Path) -> None:
    work = Work(tmp_path / "out", SETTINGS, ["a.png", "b.png"])
    (tmp_path / "out" / "work" / "before.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"before\.jsonl"):
        work.rows("before")
    work.close()


def test_what_is_finished_loses_what_its_last_moment_left(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", SETTINGS, ["a.png"])
    work.close()
    (tmp_path / "out" / RESULT).write_text("{}")
    with pytest.raises(InputError, match="holds a finished adaptation"):
        Work(tmp_path / "out", SETTINGS, ["a.png"])
    assert [file.name for file in (tmp_path / "out").iterdir()] == [RESULT]


def test_a_finished_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    Work(tmp_path / "out", SETTINGS, ["a.png"]).finish({})
    with pytest.raises(InputError, match="finished adaptation"):
        Work(tmp_path / "out", SETTINGS, ["a.png"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="holds files already"):
        Work(tmp_path / "other", SETTINGS, ["a.png"])
    with pytest.raises(InputError, match="is a file"):
        Work(tmp_path / "other" / "thesis.tex", SETTINGS, ["a.png"])
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_other_settings_or_images_are_refused(tmp_path: Path) -> None:
    Work(tmp_path / "out", SETTINGS, ["a.png"]).close()
    with pytest.raises(InputError, match=r"--lr: .* was started with 0.1, not 0.2"):
        Work(tmp_path / "out", {**SETTINGS, "lr": 0.2}, ["a.png"])
    with pytest.raises(InputError, match="--images: they are not those"):
        Work(tmp_path / "out", SETTINGS, ["a.png", "b.png"])


def test_a_start_that_was_killed_at_once(tmp_path: Path) -> None:
    (tmp_path / "out" / "work").mkdir(parents=True)
    assert not Work(tmp_path / "out", SETTINGS, ["a.png"]).resumed
