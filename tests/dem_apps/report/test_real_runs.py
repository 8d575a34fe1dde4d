"""Reports of tiny runs of the two trainings, as a reader sees them in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rl.train
from dem_apps.runtime.settings import parse_config
from seg.config import TrainConfig
from seg.demo.demo_pair import write_demo_pair
from seg.maps.panels import panel
from seg.train import train

Open = Callable[..., Any]

SEEDS = [("entropy", 0), ("adadem", 0), ("adadem", 1), ("adadem", 2)]
KINDS = {
    "seg": ["adadem-seed0"],
    "rl": ["rl"],
    "pair": ["entropy-seed0", "adadem-seed0"],
    "seeds": ["adadem-seed0", "adadem-seed1", "adadem-seed2"],
}
#: Text whose contrast to what is behind it is below 4.5 (WCAG 2.1, 1.4.3): its words and the ratio.
LOW_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [numbers(element instanceof SVGElement ? style.fill : style.color), behind(element)].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([element.textContent.trim().slice(0, 40), ratio]);
  }
  return low;
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: entropy and AdaDEM with one seed, AdaDEM with three, and one of PPO."""
    folder = tmp_path_factory.mktemp("runs")
    pair = write_demo_pair(folder / "pair", size=(96, 48), source_train=4, target_train=3, target_val=3)
    roots = ["--source.root", str(pair.source_root), "--target.root", str(pair.target_root)]
    short = ["--max-steps", "4", "--eval-every", "2", "--log-every", "1", "--maps", "2"]
    for loss, seed in SEEDS:
        own = ["--loss", loss, "--seed", str(seed), "--run-dir", str(folder / f"{loss}-seed{seed}")]
        train(parse_config(TrainConfig, "seg.train", "", [*roots, *short, *own]))
    rl.train.main([
        "--env", "MiniGrid-Empty-Random-5x5-v0", "--timesteps", "512", "--eval-freq", "256", "--eval-episodes", "2",
        "--hyperparameters.n_envs", "2", "--hyperparameters.n_steps", "128", "--hyperparameters.n_epochs", "1",
        "--video", "--run-dir", str(folder / "rl"),
    ])  # fmt: skip
    return folder


@pytest.fixture
def damaged(runs: Path, tmp_path: Path) -> Path:
    """A copy of a segmentation run, to be damaged."""
    return shutil.copytree(runs / "adadem-seed0", tmp_path / "damaged")


def views(page: Any) -> list[str]:
    return [image.get_attribute("data-view") for image in page.locator(".gallery img:visible").all()]


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_well_at_every_width_and_in_both_colour_schemes(open_report: Open, runs: Path, kind: str) -> None:
    page = open_report(*(runs / name for name in KINDS[kind]))
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for scheme, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 28)")):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
            assert page.evaluate(LOW_CONTRAST) == []
    assert page.locator(".warning").count() == 0  # nothing of a finished run is missing
    assert page.locator(".chart svg").count() >= 5


def test_the_gallery_steps_through_all_views_by_click_and_by_key(open_report: Open, runs: Path) -> None:
    page = open_report(runs / "adadem-seed0")
    every = ["image", "prediction", "entropy", "overlay", "label", "wrong", "confidently-wrong"]
    assert views(page) == every  # side by side
    page.locator(".gallery img:visible").first.click()
    for view in every:
        assert views(page) == [view]
        assert page.locator(".gallery img:visible").evaluate("image => image.naturalWidth") == 96
        page.locator(".gallery img:visible").click()
    assert views(page) == every
    page.locator(".gallery input[value=all]").focus()
    for view in every:
        page.keyboard.press("ArrowRight")
        assert views(page) == [view]
    first = page.locator(".gallery output").inner_text()
    page.locator(".gallery button").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".gallery output").inner_text() != first
    assert views(page) == ["confidently-wrong"]
    legend = page.locator(".gallery .legend").inner_text().split("\n")
    assert legend[0] == "road"
    assert legend[-1] == "ignored, in labels"


def test_a_chart_tells_its_values_under_the_pointer(open_report: Open, runs: Path) -> None:
    page = open_report(*(runs / name for name in KINDS["pair"]))
    chart = page.locator(".chart").filter(has_text="Target mean IoU")
    readout, lines = chart.locator(".readout"), chart.locator("polyline[data-values]").all()
    chart.scroll_into_view_if_needed()
    box = chart.locator(":scope > svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    last = [line.get_attribute("data-values").split(";")[-1].split("|") for line in lines]
    names = [line.get_attribute("data-name") for line in lines]
    expected = ", ".join(f"{name} {value}" for name, (_, value) in zip(names, last, strict=True))
    assert readout.inner_text() == f"4: {expected}"
    page.mouse.move(0, 0)
    assert readout.inner_text().strip() == ""


def test_an_episode_plays(open_report: Open, runs: Path) -> None:
    page = open_report(runs / "rl")
    film = page.get_by_alt_text("recorded episode last.gif of rl")
    first = film.screenshot()
    for _ in range(200):
        if film.screenshot() != first:
            return
        page.wait_for_timeout(50)
    pytest.fail("the picture does not move")


def test_a_pair_says_what_differs_and_its_slider_moves(open_report: Open, runs: Path) -> None:
    page = open_report(*(runs / name for name in KINDS["pair"]))
    differs = page.get_by_role("region", name="What differs").inner_text()
    assert "entropy-seed0" in differs
    assert [line.split() for line in differs.splitlines() if line.startswith("loss")] == [["loss", "entropy", "adadem"]]
    over, under = page.locator(".stack .over"), page.locator(".stack .under")
    assert over.get_attribute("src") != under.get_attribute("src")
    page.locator("input[type=range]").fill("25")
    assert over.evaluate("image => image.style.clipPath") == "inset(0px 75% 0px 0px)"
    page.locator("select[data-side=view]").select_option("label")
    assert over.get_attribute("src") == under.get_attribute("src")
    # image and label are those of both runs, and stand there once
    shown = views(page)
    assert {*shown} == {"image", "label", "confidently-wrong", "entropy", "overlay", "prediction", "wrong"}
    assert [shown.count(view) for view in ("image", "label", "entropy", "prediction")] == [1, 1, 2, 2]


def test_three_seeds_are_one_setting(open_report: Open, runs: Path) -> None:
    page = open_report(*(runs / name for name in KINDS["seeds"]))
    heading, first = page.get_by_role("region", name="Final scores over seeds").locator("tr").all()[:2]
    assert heading.inner_text().split("\t") == ["score", "mean ± std", "seed 0", "seed 1", "seed 2"]
    mean, *seeds = first.locator("td").all_inner_texts()
    assert float(mean.split(" ± ")[0]) == pytest.approx(sum(map(float, seeds)) / 3, abs=0.01)
    assert page.locator("svg .band").count() > 5
    assert page.locator(".legend.common").inner_text() == "adadem"


def test_a_run_that_was_killed_says_what_it_lacks(open_report: Open, damaged: Path) -> None:
    (damaged / "eval.json").unlink()
    environment = damaged / "environment.json"
    environment.write_bytes(environment.read_bytes()[:100])
    metrics = damaged / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    whole, cut = sorted(entry for entry in (damaged / "entropy_maps").iterdir() if entry.is_dir())
    (whole / "label.png").unlink()
    tile = cut / "prediction.png"
    tile.write_bytes(tile.read_bytes()[:-60])
    page = open_report(damaged)
    missing = page.locator(".warning").inner_text()
    assert "eval.json is missing: the run has not finished, so there are no final scores." in missing
    assert "environment.json cannot be read" in missing
    assert "metrics.jsonl: line" in missing
    notes = page.get_by_role("note").filter(has_text="About the pictures").inner_text().split("\n")[1:]
    assert notes == [
        f"damaged: entropy_maps/{cut.name}/prediction.png is no picture that can be read.",
        f"damaged: entropy_maps/ has no label of {whole.name}.",
    ]
    assert views(page) == ["image", "prediction", "entropy", "overlay", "wrong", "confidently-wrong"]
    page.get_by_text("next →").click()
    assert views(page) == ["image", "entropy", "overlay", "label", "wrong", "confidently-wrong"]
    assert page.locator("dt:text-is('state') + dd").inner_text() == "not finished"


def test_a_run_of_an_older_version_shows_its_panels(open_report: Open, damaged: Path) -> None:
    for file in ("classes.json", "metrics_info.json"):
        (damaged / file).unlink()
    for folder in [entry for entry in (damaged / "entropy_maps").iterdir() if entry.is_dir()]:
        tiles = [Image.open(folder / f"{view}.png").convert("RGB") for view in ("image", "prediction", "entropy")]
        panel(*map(np.asarray, tiles), "mean 0.50").save(folder.with_suffix(".png"))
        shutil.rmtree(folder)
    page = open_report(damaged)
    assert views(page) == ["image", "prediction", "entropy"]
    notes = page.get_by_role("note").filter(has_text="About the pictures").inner_text()
    assert "entropy_maps/ has no label of any image." in notes
    assert "The colours of the classes have no names here" in notes
