"""Times to the goal, against Kaplan and Meier's product and the area under it, computed independently."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from dem_apps.errors import InputError
from dem_apps.report.intervals import difference_interval, mean_interval
from rl.envs.families import goal_return
from rl.plots import write_report
from rl.results.goal_figure import goal_figure
from rl.results.goal_table import goal_table
from rl.results.kaplan_meier import arrivals
from rl.results.read_runs import Result, find_results, find_runs, read_results
from rl.results.time_to_goal import GoalTime, common_horizon, goal_time

TIMES = [GoalTime(5, True), GoalTime(9, False), GoalTime(10, True), GoalTime(10, True), GoalTime(20, False)]


def kaplan_meier(times: list[GoalTime]) -> dict[int, float]:
    """Step → share that is still on the way, by the product's definition."""
    share, result = 1.0, {}
    for step in sorted({time.steps for time in times}):
        at_risk = sum(time.steps >= step for time in times)
        arrived = sum(time.steps == step and time.reached for time in times)
        share *= 1 - arrived / at_risk
        result[step] = share
    return result


def test_shares_are_kaplan_and_meiers() -> None:
    found = arrivals(TIMES)
    by_hand = kaplan_meier(TIMES)
    assert dict(zip(found.steps[1:].tolist(), found.share[1:].tolist(), strict=True)) == pytest.approx(
        {step: 1 - share for step, share in by_hand.items()}
    )
    assert (found.steps[0], found.share[0]) == (0.0, 0.0)
    known = ~np.isnan(found.low)
    assert known.any()
    assert (found.low[known] < found.share[known]).all()
    assert (found.share[known] < found.high[known]).all()


def test_the_restricted_mean_is_the_area_under_the_curve() -> None:
    times = [GoalTime(4, True), GoalTime(30, False), GoalTime(12, True), GoalTime(25, False), GoalTime(18, True)]
    horizon = common_horizon(times)
    assert horizon == 25
    curve = {0: 1.0, **kaplan_meier(times)}
    steps = [step for step in sorted(curve) if step < horizon] + [horizon]
    area = sum(curve[a] * (b - a) for a, b in itertools.pairwise(steps))
    assert np.mean([time.until(horizon) for time in times]) == pytest.approx(area)


def test_a_censored_run_is_not_asked_beyond_its_end() -> None:
    assert GoalTime(10, True).until(50) == 10
    with pytest.raises(ValueError, match="says nothing of 50"):
        GoalTime(10, False).until(50)


def test_without_a_censored_run_the_mean_is_not_restricted() -> None:
    times = [GoalTime(4, True), GoalTime(30, True)]
    assert [time.until(common_horizon(times)) for time in times] == [4, 30]


@pytest.mark.parametrize(
    ("env", "goal"),
    [
        ("MiniGrid-DoorKey-5x5-v0", 0.86), ("MiniGrid-DoorKey-8x8-v0", 0.5), ("BabyAI-GoToLocal-v0", 0.5),
        ("CartPole-v1", 475.0), ("Acrobot-v1", -100.0), ("Pendulum-v1", None), ("Nobody-v0", None),
    ],
)  # fmt: skip
def test_goals_of_environments(env: str, goal: float | None) -> None:
    assert goal_return(env) == goal


def test_a_return_at_the_goal_counts() -> None:
    assert goal_time({100: 0.5, 50: 0.2}, 0.5) == GoalTime(100, True)
    assert goal_time({100: 0.5, 50: 0.2}, 0.51) == GoalTime(100, False)


def run(folder: Path, arm: str, seed: int, returns: list[float], **settings: object) -> None:
    """A finished run of 40 steps with an evaluation at every tenth."""
    folder = folder / arm / str(seed)
    folder.mkdir(parents=True)
    config = {"env": "MiniGrid-Unlock-v0", "loss": arm, "seed": seed, "timesteps": 40, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    figures = {"mean_return": returns[-1], "std_return": 0.0, "success_rate": 1.0, "mean_length": 1.0}
    scores = {"step": 40, "sampled": figures, "greedy": figures}
    (folder / "eval.json").write_text(json.dumps({**scores, "best": scores}))
    lines = [{"step": 10 * place, "eval/mean_return_sampled": value} for place, value in enumerate(returns, 1)]
    lines[-1]["eval/mean_return_greedy"] = returns[-1]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def results(tmp_path: Path) -> list[Result]:
    for seed, returns in enumerate([[0, 0, 0.9, 0.9], [0, 0, 0, 0.9], [0, 0, 0, 0.2]]):
        run(tmp_path / "runs", "none", seed, returns)
    for seed, returns in enumerate([[0, 0.9, 0.9, 0.9], [0, 0.9, 0.1, 0.9], [0, 0, 0.9, 0.95]]):
        run(tmp_path / "runs", "adadem", seed, returns)
    return read_results(find_runs([tmp_path / "runs" / "none", tmp_path / "runs" / "adadem"]))


def test_the_table_has_the_restricted_means(results: list[Result]) -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in goal_table(results, "none").splitlines()]
    none, adadem = rows[2:]
    interval = mean_interval([30, 40, 40])
    assert none[:3] == ["Unlock", "none", "2 of 3"]
    assert none[3:] == ["40", f"{interval.estimate:.0f} [{interval.low:.0f}, {interval.high:.0f}]", ""]
    difference = difference_interval({0: 20, 1: 20, 2: 30}, {0: 30, 1: 40, 2: 40})
    assert adadem[2] == "3 of 3"
    assert f"{difference.estimate:+.0f} [{difference.low:+.0f}, {difference.high:+.0f}]" in adadem[5]


def test_the_csv_files_keep_the_times(results: list[Result], tmp_path: Path) -> None:
    write_report(results, tmp_path / "out", "none")
    with (tmp_path / "out" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["steps_to_goal"] for row in rows] == ["30", "40", "", "20", "20", "30"]
    assert {row["goal_return"] for row in rows} == {"0.86"}
    again = find_results([tmp_path / "out" / "runs.csv"])
    assert [result.goal for result in again] == [result.goal for result in results]
    # greedy actions were evaluated at the end only
    assert again[0].curve == results[0].curve
    assert again[0].curve[10] == (0.0, None)


def test_a_run_has_the_goal_of_its_settings(tmp_path: Path) -> None:
    run(tmp_path, "none", 0, [0.0, 0.3, 0.3, 0.3], goal_return=0.25)
    (result,) = read_results(find_runs([tmp_path]))
    assert result.goal == GoalTime(20, True)
    run(tmp_path, "entropy", 0, [0.0, 0.3, 0.3, 0.3], goal_return="soon")
    with pytest.raises(InputError, match="goal_return is 'soon' and no number"):
        read_results(find_runs([tmp_path]))


def test_without_goals_there_is_no_figure_and_no_table(tmp_path: Path) -> None:
    run(tmp_path, "none", 0, [1.0, 2.0, 3.0, 4.0], env="Pendulum-v1")
    found = read_results(find_runs([tmp_path]))
    assert goal_figure(found) is None
    assert goal_table(found, None) == ""
