"""The table, figures and CSV files of run folders, and that a page about the same runs has the same numbers."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rl.plots
from dem_apps.errors import InputError
from dem_apps.report.intervals import difference_interval, mean_band, mean_interval
from dem_apps.report.part import build_part
from dem_apps.runtime.metrics_info import FILE
from dem_apps.runtime.run_reader import read_runs
from rl.plots import curves_figure, entropy_figure, main, ordered, write_report
from rl.results.described_metrics import described_metrics
from rl.results.goal_figure import goal_figure
from rl.results.read_runs import Result, find_results, find_runs, read_results, write_runs
from rl.results.returns_table import NOTE, by_seed, markdown_table
from rl.results.time_to_goal import GoalTime
from rl.results.weights_figure import weights_figure

ENV, OTHER = "MiniGrid-Unlock-v0", "MiniGrid-FourRooms-v0"


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


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_the_table_says_what_the_runs_say(runs: Path) -> None:
    results = read_results(find_runs([runs / "none", runs / "adadem"]))
    rows = cells(markdown_table(results, "none"))
    assert rows[0] == [
        "environment", "arm", "seeds", "sampled: mean [95 %]", "− none [95 %]", "greedy: mean [95 %]", "− none [95 %]",
    ]  # fmt: skip
    none, adadem = rows[2:]
    assert none[:3] == ["Unlock", "none", "4"]
    # of 0.2, 0.3, 0.4, 0.5: standard error 0.06455, t(3) = 3.18245
    assert none[3] == "0.350 [0.145, 0.555]"
    assert none[4] == ""
    # every seed is 0.3 better, so there is no doubt
    assert adadem[4] == "**+0.300 [+0.300, +0.300]**"
    assert adadem[5].startswith("0.217 [")
    assert len(cells(markdown_table(results, None))[0]) == 5


def test_a_difference_within_the_scatter_is_not_bold(runs: Path) -> None:
    make_run(runs / "adadem" / "seed4", 0.0, loss="adadem", seed=4)
    make_run(runs / "none" / "seed4", 0.9, loss="none", seed=4)
    row = cells(markdown_table(read_results(find_runs([runs])), "none"))[2]
    # 0.3 four times and -0.9: mean 0.06, standard error 0.24, t(4) = 2.77645
    assert row[1:5] == ["adadem", "5", "0.520 [0.133, 0.907]", "+0.060 [-0.606, +0.726]"]


def test_environments_come_together_in_the_last_rows_seed_by_seed(runs: Path, tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / "more" / f"{seed}", 1.0 - 0.4 * seed, env=OTHER, loss="adadem", seed=seed)
    results = read_results(find_runs([runs, tmp_path / "more"]))
    assert by_seed(results, [ENV, OTHER], "adadem", "sampled") == pytest.approx({0: 0.75, 1: 0.6})
    row = cells(markdown_table(results, None))[-1]
    interval = mean_interval([0.75, 0.6])
    assert row[:4] == ["all 2", "adadem", "2", f"0.675 [{interval.low:.3f}, {interval.high:.3f}]"]
    assert "no baseline" in markdown_table(results, "none")
    make_run(tmp_path / "more" / "other", 0.1, env=OTHER, loss="none", seed=9)
    assert "no seed in all of them" in markdown_table(read_results(find_runs([runs, tmp_path / "more"])), None)


def test_returns_of_different_units_are_not_averaged(runs: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "more" / "0", 200.0, env="CartPole-v1", loss="adadem", seed=0)
    rows = cells(markdown_table(read_results(find_runs([runs, tmp_path / "more"])), None))
    assert [row[:2] for row in rows[2:]] == [["Unlock", "adadem"], ["Unlock", "none"], ["CartPole-v1", "adadem"]]


def test_a_page_about_the_same_runs_has_the_same_numbers(runs: Path) -> None:
    """And so has the one function that both take them from."""
    make_run(runs / "adadem" / "seed4", 0.3, loss="adadem", seed=4)
    make_run(runs / "none" / "seed4", 0.35, loss="none", seed=4)
    paths = find_runs([runs / "none", runs / "adadem"])
    for path in paths:
        (path / FILE).write_text(json.dumps(described_metrics().document()))
    results = read_results(paths)
    page = build_part(read_runs(paths), None, (), 0).tables[0]
    assert [name for name, _ in page.header[1:]] == ["none", "adadem"]
    table = cells(markdown_table(results, "none"))[3]
    for position, actions in ((3, "sampled"), (5, "greedy")):
        title, _, (_, of_adadem) = next(row for row in page.rows if row[0] == f"return, {actions}")
        ours, theirs = (by_seed(results, [ENV], arm, actions) for arm in ("adadem", "none"))
        interval = difference_interval(ours, theirs)
        text = f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
        assert (of_adadem.small, table[position + 1]) == (f"{text}, better", f"**{text}**"), title
        assert of_adadem.main.split(" ± ")[0] == table[position].split(" [")[0]


def test_csv_has_a_line_per_run_at_full_precision(runs: Path, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs.csv", read_results(find_runs([runs])))
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert len(rows) == 8
    assert {(row["arm"], row["seed"], row["last_mean_return_greedy"]) for row in rows} >= {
        ("adadem", "1", repr(0.6 / 3)), ("none", "0", repr(0.2 / 3)),
    }  # fmt: skip
    assert {row["best_step"] for row in rows} == {"40"}


def test_the_csv_files_stand_for_the_runs(runs: Path, tmp_path: Path) -> None:
    table = write_report(read_results(find_runs([runs])), tmp_path / "one", "none")
    again = write_report(find_results([tmp_path / "one" / "runs.csv"]), tmp_path / "two", "none")
    assert again == table
    assert NOTE in table
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    for kind in ("runs", "curves"):  # another name with the word in it
        shutil.copy(tmp_path / "one" / f"{kind}.csv", tmp_path / f"my_runs_{kind}.csv")
    assert len(find_results([tmp_path / "my_runs_runs.csv"])) == 8
    with pytest.raises(InputError, match="leave one out"):
        find_results([tmp_path / "one" / "runs.csv", runs])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("last_mean_return_greedy", "other", "line 2: has no column 'last_mean_return_greedy'"),
        (",0.5,0.3,", ",nan,0.3,", "holds NaN or infinite figures"),
        (",0.5,0.3,", ",x,0.3,", "could not convert string to float: 'x'"),
    ],
)
def test_a_csv_file_of_something_else_is_one_sentence(
    old: str, new: str, message: str, runs: Path, tmp_path: Path
) -> None:
    write_report(read_results(find_runs([runs])), tmp_path, "none")
    file = tmp_path / "runs.csv"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(InputError, match=re.escape(message)):
        find_results([file])
    (tmp_path / "curves.csv").unlink()
    with pytest.raises(InputError, match=r"curves\.csv: cannot be read \(no such file\)"):
        find_results([file])


@pytest.mark.parametrize("name", ["paper", "coefficients"])
def test_the_published_table_is_that_of_the_published_values(name: str) -> None:
    docs = Path(__file__).parents[2] / "docs"
    results = ordered(find_results([docs / "results" / f"rl_{name}_runs.csv"]))
    assert markdown_table(results, "none") in (docs / "appendix.md").read_text()


def test_equal_runs_write_equal_files(runs: Path, tmp_path: Path) -> None:
    results = read_results(find_runs([runs]))
    for out in ("one", "two"):
        write_report(results, tmp_path / out, "none")
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert set(files) == {
        "runs.csv", "curves.csv", "table.md", "returns_sampled.png", "returns_sampled.svg", "returns_greedy.png",
        "returns_greedy.svg", "time_to_goal.png", "time_to_goal.svg",
    }  # fmt: skip
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}


def test_the_figure_shows_the_mean_and_its_interval(runs: Path) -> None:
    for seed in range(4, 10):
        make_run(runs / "adadem" / f"seed{seed}", 0.5 + 0.1 * seed, loss="adadem", seed=seed)
    results = read_results(find_runs([runs]))
    panel = curves_figure(results, "sampled").axes[0]
    assert panel.get_title() == "Unlock"
    curves = [line for line in panel.lines if line.get_marker() not in ("None", "")]
    values = (0.5 + 0.1 * np.arange(10))[:, None] * np.array([10, 20, 30, 40]) / 40
    assert np.array_equal(curves[0].get_xdata(), [10, 20, 30, 40])
    assert any(np.allclose(curve.get_ydata(), values.mean(axis=0)) for curve in curves)
    _, low, high = mean_band(values)
    edges = [line.get_ydata() for line in panel.lines]
    assert any(np.allclose(edge, low) for edge in edges)
    assert any(np.allclose(edge, high) for edge in edges)


def test_the_policys_entropy_is_the_last_that_was_logged(runs: Path, tmp_path: Path) -> None:
    for seed, last in enumerate((1.0, 1.2, 1.4, 1.6)):
        file = runs / "none" / f"seed{seed}" / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        logged = {5: 1.9, 20: last}
        key = "train/policy_entropy"
        lines = [line | ({key: logged[line["step"]]} if line["step"] in logged else {}) for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = ordered(read_results(find_runs([runs])))
    assert results[1].policy_entropy == {10: 1.9, 20: 1.2, 30: 1.2, 40: 1.2}
    write_report(results, tmp_path / "out", "none")
    assert {"policy_entropy.png", "policy_entropy.svg"} < {path.name for path in (tmp_path / "out").iterdir()}
    again = find_results([tmp_path / "out" / "runs.csv"])
    assert [run.policy_entropy for run in again] == [run.policy_entropy for run in results]
    figure = entropy_figure(again)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["none"], "the other arm has no entropy"
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx([1.9, 1.3, 1.3, 1.3])


def test_curves_of_before_the_policys_entropy_can_be_read(runs: Path, tmp_path: Path) -> None:
    results = ordered(read_results(find_runs([runs])))
    write_report(results, tmp_path / "out", "none")
    file = tmp_path / "out" / "curves.csv"
    file.write_text("\n".join(line.rpartition(",")[0] for line in file.read_text().splitlines()) + "\n")
    assert file.read_text().startswith("env,arm,seed,step,sampled,greedy\n")
    again = find_results([tmp_path / "out" / "runs.csv"])
    assert [run.curve for run in again] == [run.curve for run in results]
    assert entropy_figure(again) is None


def made(env: str, arm: str, seed: int) -> Result:
    return Result(env, arm, seed, {}, dict.fromkeys((10, 20), (0.5, 0.5)), {}, Path())


def test_a_nine_panel_figure_of_three_arms() -> None:
    results = [
        made(f"Env{number}", arm, seed)
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
    results = [made(env, f"adadem, ent-coef 0.00{arm}", 0) for env in ("EnvA", "EnvB") for arm in range(1, count + 1)]
    figure = curves_figure(results, "sampled")
    figure.savefig(io.BytesIO())  # places everything
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_cut_off_with_few_environments_and_one_arm(count: int) -> None:
    """A figure of one panel is 5.4 inches wide and 3.6 high: shorter than what its axes are called, in one line."""
    envs = ["AnEnvironmentWhoseNameIsLonger-ThanItsPanel-IsWide-v0", "MiniGrid-Unlock-v0", "CartPole-v1"][:count]
    returns, curve = {"sampled": 0.5, "greedy": 0.5}, {10: (0.5, 0.5), 20: (0.6, 0.4)}
    runs = [
        Result(env, f"adadem, ent-coef {weight}", seed, returns, curve, {"loss": "adadem", "ent_coef": weight}, Path(),
               GoalTime(10, True))
        for env in envs for weight in (0.001, 0.01, 0.1) for seed in (0, 1)
    ]  # fmt: skip
    one_arm = [run for run in runs if run.arm.endswith("0.001")]
    for figure in (curves_figure(one_arm, "sampled"), goal_figure(one_arm), weights_figure(runs)):
        assert figure is not None
        figure.savefig(io.BytesIO())  # places everything
        titles = [panel.title for panel in figure.axes[:count]]
        for text in (figure._supxlabel, figure._supylabel, *figure.legends[0].get_texts(), *titles):
            box = None if text is None else text.get_window_extent()
            assert box is None or (
                box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            )
        for left, right in pairwise(titles):
            assert left.get_window_extent().x1 < right.get_window_extent().x0


def test_a_place_without_an_environment_stays_empty() -> None:
    results = [made(f"Env{number}", "none", 0) for number in range(5)]
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
    # the weight of nothing tells no arms apart
    runs = [make_run(tmp_path / f"none{seed}", 0.5, loss="none", seed=seed, ent_coef=0.1 * seed) for seed in (3, 4)]
    assert [result.arm for result in read_results(runs)] == ["none", "none"]


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
    assert "| Unlock | none | 1 | 0.400 |  |" in output
    assert "5 runs; figures" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN: name one or more run folders"),
        (["runs"], "--out: is missing; needed: --out DIR"),
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


def test_a_report_is_replaced_by_the_next_and_nothing_else_is(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        main([str(runs), "--out", str(out)])
    (out / "table.md").write_text("| my | marks |\n")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(
        InputError, match=r"table.md is there and is no file of an earlier report; give another folder$"
    ):
        main([str(runs), "--out", str(out)])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^--out: is missing; needed: --out DIR$"):
        main([str(runs), "--out", ""])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_grid_of_many_weights_is_reported_without_its_curves(runs: Path, tmp_path: Path) -> None:
    """It used to end in an error, after hours of training and without the figure of the weights."""
    out = tmp_path / "out"
    main([str(runs), "--out", str(out)])
    assert (out / "returns_sampled.png").is_file()
    for index in range(13):
        weight = 10.0 ** -(index / 3)
        make_run(tmp_path / "many" / str(index), 0.1 * index, loss="entropy", ent_coef=weight)
    main([str(tmp_path / "many"), "--out", str(out)])
    assert {path.name for path in out.iterdir()} == {
        "runs.csv", "curves.csv", "table.md", "weights.png", "weights.svg",
    }  # fmt: skip
    assert "No curves of 13 arms are drawn" in (out / "table.md").read_text()


def test_trainings_that_differ_are_no_seeds_of_one_arm(tmp_path: Path) -> None:
    """Within an environment: others have lengths and hyperparameters of their own."""
    other = "MiniGrid-Empty-5x5-v0"
    parts: list[tuple[int, dict[str, Any]]] = [
        (40, {"seed": 0}), (80, {"seed": 1}), (40, {"seed": 2, "hyperparameters": {"n_epochs": 4}}),
        (160, {"seed": 0, "env": other, "hyperparameters": {"n_epochs": 9}}),
    ]  # fmt: skip
    paths = [make_run(tmp_path / f"{i}", 0.5, steps, **settings) for i, (steps, settings) in enumerate(parts)]
    assert [result.arm for result in read_results(paths)] == [
        "none, its steps 40", "none, its steps 80", "none, its steps 40, its n-epochs 4", "none",
    ]  # fmt: skip
    same = [make_run(tmp_path / f"same{seed}", 0.5, seed=seed) for seed in (5, 6)]
    assert {result.arm for result in read_results([*same, paths[3]])} == {"none"}
