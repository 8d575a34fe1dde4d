"""The statistics against slow references, and the table, figures and CSV files of run folders."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rl.plots
from dem_apps.errors import InputError
from rl.plots import curves_figure, write_report
from rl.results.read_runs import Result, find_runs, markdown_table, read_results, write_runs
from rl.results.statistics import improvement, improvement_interval, iqm, iqm_interval

ENV = "MiniGrid-Unlock-v0"


def make_run(folder: Path, value: float, steps: int = 40, **settings: Any) -> Path:
    """A finished run whose greedy return is a third of the sampled one."""
    folder.mkdir(parents=True)
    config = {"env": ENV, "loss": "none", "seed": 0, "ent_coef": 0.001, "algo": "ppo", "timesteps": steps, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    kinds = {
        kind: {"mean_return": share, "std_return": 0.3, "success_rate": 0.5, "mean_length": 7.0}
        for kind, share in (("sampled", value), ("greedy", value / 3))
    }
    scores = {"step": steps, "episodes": 10, "mean_return": value, **kinds}
    (folder / "eval.json").write_text(json.dumps({**scores, "best": scores}))
    lines = [
        {"step": step, "eval/mean_return_sampled": value * step / steps, "eval/mean_return_greedy": value / 3}
        for step in range(10, steps + 1, 10)
    ]
    text = "".join(json.dumps(line) + "\n" for line in [{"step": 5, "train/loss": 1.0}, *lines])
    (folder / "metrics.jsonl").write_text(text)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for loss, first in (("none", 0.2), ("adadem", 0.5)):
        for seed in range(4):
            make_run(tmp_path / "runs" / loss / f"seed{seed}", first + 0.1 * seed, loss=loss, seed=seed)
    return tmp_path / "runs"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 10])
def test_iqm_is_the_mean_of_the_middle_half(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(count).normal(size=(count, 3))
    assert np.allclose(iqm(values), stats.trim_mean(values, 0.25, axis=0), rtol=1e-12)
    assert np.allclose(iqm(values.T, axis=1), iqm(values), rtol=1e-12)


def test_improvement_counts_pairs() -> None:
    random = np.random.default_rng(0)
    ours = [random.integers(0, 4, 5).astype(float), random.integers(0, 4, 3).astype(float)]
    baseline = [random.integers(0, 4, 4).astype(float), random.integers(0, 4, 6).astype(float)]
    expected = np.mean(
        [
            np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(x_task, y_task)])
            for x_task, y_task in zip(ours, baseline, strict=True)
        ]
    )
    assert improvement(ours, baseline) == pytest.approx(expected, rel=1e-12)
    assert improvement(baseline, ours) == pytest.approx(1 - expected, rel=1e-12)
    low, high = improvement_interval(ours, baseline)
    assert 0 <= low < expected < high <= 1


def test_the_interval_covers_as_often_as_it_says() -> None:
    """Of 200 samples of 40 numbers around 0, the 95 % interval of the IQM holds 0 in some 190."""
    random = np.random.default_rng(1)
    intervals = [iqm_interval([random.normal(size=40)], seed) for seed in range(200)]
    assert 0.89 <= np.mean([low <= 0 <= high for low, high in intervals]) <= 0.99


def test_the_bootstrap_draws_within_each_task() -> None:
    """Two tasks without any spread of their own: drawn within tasks there is none, drawn from the heap there is."""
    low, high = iqm_interval([np.zeros(4), np.ones(4)])
    assert (low, high) == (0.5, 0.5)
    values = np.arange(12.0).reshape(4, 3)
    assert iqm_interval([values])[0].shape == (3,)


def test_the_table_says_what_the_runs_say(runs: Path) -> None:
    results = read_results(find_runs([runs / "none", runs / "adadem"]))
    rows = [re.split(r" *\| *", line)[1:-1] for line in markdown_table(results, "none").splitlines()]
    assert rows[0] == [
        "environment", "arm", "seeds", "sampled: mean ± std", "IQM [95 %]", "P(> none) [95 %]",
        "greedy: mean ± std", "IQM [95 %]", "P(> none) [95 %]",
    ]  # fmt: skip
    none, adadem = rows[2:]
    assert none[:3] == ["Unlock", "none", "4"]
    # of 0.2, 0.3, 0.4, 0.5, each 0.3 wide: the episodes' spread and the seeds' spread add up
    assert none[3] == f"0.350 ± {np.sqrt(0.3**2 + 0.0125):.3f}"
    assert none[4].startswith("0.350 [0.2")
    assert none[5] == ""
    # 0.5 to 0.8 against 0.2 to 0.5: better in 15 pairs of 16, equal in one
    assert adadem[5].startswith("0.97 [")
    assert adadem[6].startswith("0.217 ±")
    assert "P(" not in markdown_table(results, None)


def test_environments_come_together_in_the_last_rows(runs: Path, tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / "more" / f"{seed}", 1.0, env="CartPole-v1", loss="adadem", seed=seed)
    lines = markdown_table(read_results(find_runs([runs, tmp_path / "more"])), None).splitlines()
    assert lines[-1].startswith("| all 2 | adadem | 6 |  | 0.775 [")  # 0.6, 0.7, 0.8, 1.0
    table = markdown_table(read_results(find_runs([runs, tmp_path / "more"])), "none")
    assert "no baseline" in table


def test_csv_has_a_line_per_run_at_full_precision(runs: Path, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs.csv", read_results(find_runs([runs])))
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert len(rows) == 8
    assert {(row["arm"], row["seed"], row["last_mean_return_greedy"]) for row in rows} >= {
        ("adadem", "1", repr(0.6 / 3)), ("none", "0", repr(0.2 / 3)),
    }  # fmt: skip
    assert {row["best_step"] for row in rows} == {"40"}


def test_equal_runs_write_equal_files(runs: Path, tmp_path: Path) -> None:
    results = read_results(find_runs([runs]))
    for out in ("one", "two"):
        write_report(results, tmp_path / out, "none")
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert set(files) == {
        "runs.csv", "curves.csv", "table.md", "returns_sampled.png", "returns_sampled.svg", "returns_greedy.png",
        "returns_greedy.svg",
    }  # fmt: skip
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}


def test_the_figure_shows_the_iqm_and_its_interval(runs: Path) -> None:
    for seed in range(4, 10):
        make_run(runs / "adadem" / f"seed{seed}", 0.5 + 0.1 * seed, loss="adadem", seed=seed)
    results = read_results(find_runs([runs]))
    panel = curves_figure(results, "sampled").axes[0]
    assert panel.get_title() == "Unlock"
    curves = [line for line in panel.lines if line.get_marker() not in ("None", "")]
    values = (0.5 + 0.1 * np.arange(10))[:, None] * np.array([10, 20, 30, 40]) / 40
    assert np.array_equal(curves[0].get_xdata(), [10, 20, 30, 40])
    assert any(np.allclose(curve.get_ydata(), iqm(values)) for curve in curves)
    low, high = iqm_interval([values])
    edges = [line.get_ydata() for line in panel.lines]
    assert any(np.allclose(edge, low) for edge in edges)
    assert any(np.allclose(edge, high) for edge in edges)


def test_a_nine_panel_figure_of_three_arms() -> None:
    results = [
        Result(Path(), arm, {"env": f"Env{number}", "seed": seed}, {}, dict.fromkeys((10, 20), (0.5, 0.5)))
        for number in range(9)
        for arm in ("none", "entropy", "adadem")
        for seed in range(2)
    ]
    figure = curves_figure(results, "greedy")
    assert [axes.get_title() for axes in figure.axes] == [f"Env{number}" for number in range(9)]
    lines = figure.axes[0].lines
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines if line.get_marker() != "None"
    }
    assert len(looks) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["none", "entropy", "adadem"]


@pytest.mark.parametrize("count", [2, 9])
def test_no_legend_is_wider_than_its_figure(count: int) -> None:
    results = [
        Result(Path(), f"adadem, ent-coef 0.00{arm}", {"env": env, "seed": 0}, {}, dict.fromkeys((10, 20), (0.5, 0.5)))
        for env in ("EnvA", "EnvB")
        for arm in range(1, count + 1)
    ]
    figure = curves_figure(results, "sampled")
    figure.savefig(io.BytesIO())  # places everything
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_a_place_without_an_environment_stays_empty() -> None:
    results = [
        Result(Path(), "none", {"env": f"Env{number}", "seed": 0}, {}, dict.fromkeys((10, 20), (0.5, 0.5)))
        for number in range(5)
    ]
    assert [axes.axison for axes in curves_figure(results, "greedy").axes] == [True] * 5 + [False]


def test_arms_are_named_after_what_tells_them_apart(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{number}", 0.5, **settings)
        for number, settings in enumerate(
            [{"loss": "none"}, {"loss": "entropy", "ent_coef": 0.01}, {"loss": "entropy"}, {"loss": "dem", "tau": 0.5}]
        )
    ]
    arms = [result.arm for result in read_results(runs)]
    assert arms == ["none", "entropy, ent-coef 0.01", "entropy, ent-coef 0.001", "dem"]


def test_a_run_that_is_older_than_a_setting_is_of_the_same_arm(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "old", 0.5, loss="adadem", seed=0),
        make_run(tmp_path / "now", 0.5, loss="adadem", seed=1, deterministic=False),
        make_run(tmp_path / "other", 0.5, loss="adadem", seed=2, deterministic=True),
    ]
    arms = [result.arm for result in read_results(runs)]
    assert arms == ["adadem, deterministic False", "adadem, deterministic False", "adadem, deterministic True"]
    assert [result.arm for result in read_results(runs[:2])] == ["adadem", "adadem"]


def test_the_command_reads_any_run_folders(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rl.plots.main([str(runs / "adadem"), str(runs / "none" / "seed2"), "--out", str(tmp_path / "report")])
    output = capsys.readouterr().out
    assert "| Unlock | none | 1 | 0.400 ± 0.300 | 0.400 |  |" in output
    assert "5 runs; figures" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN: name one or more run folders"),
        (["runs"], "--out: needs the folder"),
        (["missing", "--out", "out"], "missing: no such folder"),
        (["empty", "--out", "out"], "empty: no finished run in or below it"),
        (["runs", "runs-copy", "--out", "out"], "both are MiniGrid-Unlock-v0, 'none', seed 0; leave one out"),
        (["runs", "--out", "out", "--baseline", "nome"], "'nome' is not one of the arms none, adadem; did you mean"),
        (["seg", "--out", "out"], "seg: not a run of rl.train"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "seg").mkdir()
    (tmp_path / "seg" / "config.yaml").write_text("method: minent")
    (tmp_path / "seg" / "eval.json").write_text("{}")
    make_run(tmp_path / "runs-copy" / "again", 0.1)
    with pytest.raises(InputError, match=re.escape(message)):
        rl.plots.main(arguments)
    assert not (tmp_path / "out").exists()
