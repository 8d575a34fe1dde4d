"""Reports in a real browser: no complaint in the console, the gallery steps, the slider moves, nothing is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import report_runs as make

Open = Callable[..., Any]


def visible(page: Any) -> list[str]:
    return [image.get_attribute("alt") for image in page.locator(".gallery img:visible").all()]


def test_the_gallery_steps(open_report: Open, tmp_path: Path) -> None:
    page = open_report(make.seg_run(tmp_path / "run"))
    page.get_by_label("image", exact=True).first.check()
    assert visible(page) == ["image a"]
    page.get_by_text("next →").click()
    assert visible(page) == ["image b"]
    page.keyboard.press("ArrowRight")  # the button has the focus
    assert visible(page) == ["image a"]
    page.locator(".gallery img:visible").click()
    assert visible(page) == ["classes that run predicts on a"]
    page.get_by_label("label", exact=True).check()
    assert visible(page) == ["labels of a"]
    assert page.locator(".gallery output").inner_text() == "1 of 2: a"
    assert page.locator(".gallery img:visible").evaluate("image => image.naturalWidth") == 48


def test_the_slider_moves(open_report: Open, tmp_path: Path) -> None:
    page = open_report(make.seg_run(tmp_path / "one"), make.seg_run(tmp_path / "two", loss="adadem"))
    over, under = page.locator(".stack .over"), page.locator(".stack .under")
    assert over.get_attribute("alt").startswith("left: entropy of one on a")
    assert under.get_attribute("alt").startswith("right: entropy of two on a")
    assert over.get_attribute("src") != under.get_attribute("src")
    slider = page.locator("input[type=range]")
    slider.focus()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    assert over.evaluate("image => image.style.clipPath") == "inset(0px 60% 0px 0px)"
    page.locator("select[data-side=view]").select_option("image")
    assert over.get_attribute("src") == under.get_attribute("src")  # both runs saw one image, held once
    page.locator("select[data-side=image]").select_option("1")
    assert under.get_attribute("alt") == "right: image b"


def test_a_run_cannot_run_a_script(open_report: Open, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)<script>"
    page = open_report(make.seg_run(tmp_path / evil, loss=evil, finished=False))
    assert page.locator("h1").inner_text() == evil
    assert "eval.json is missing" in page.locator(".warning").inner_text()
