"""Scores by weight and the width of what will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.plots import write_report
from rl.results.read_runs import Result
from rl.results.time_to_goal import GoalTime
from rl.results.weights import Width, by_weight, weights_table, width
from rl.results.weights_figure import weights_figure


@pytest.mark.parametrize(
    ("means", "lower", "expected"),
    [
        # the range is of neighbours: the good one at 1 is behind a bad one
        ({0.001: 0.5, 0.01: 1.0, 0.1: 0.6, 1.0: 0.99}, False, Width(0.01, 0.0, False)),
        ({0.001: 0.95, 0.01: 1.0, 0.1: 0.96, 1.0: 0.2}, False, Width(0.01, 2.0, True)),
        ({0.001: 0.94, 0.01: 1.0, 0.1: 0.2}, False, Width(0.01, 0.0, False)),
        ({0.001: 104.0, 0.01: 100.0, 0.1: 106.0}, True, Width(0.01, 1.0, True)),
        # returns below 0: within 5 % of -100 is down to -105
        ({0.001: -106.0, 0.01: -104.0, 0.1: -100.0, 1.0: -300.0}, False, Width(0.1, 1.0, False)),
    ],
)
def test_width(means: dict[float, float], lower: bool, expected: Width) -> None:
    found = width(means, lower)
    assert (found.best, found.open) == (expected.best, expected.open)
    assert found.decades == pytest.approx(expected.decades)


def result(loss: str, weight: object, seed: int, value: float, steps: int | None = None) -> Result:
    goal = GoalTime(100, False) if steps is None else GoalTime(steps, True)
    row = {"env": "E-v0", "arm": f"{loss} {weight}", "seed": seed, "loss": loss, "ent_coef": weight}
    returns = {"sampled": value, "greedy": value / 2}
    return Result("E-v0", str(row["arm"]), seed, returns, {100: (value, value)}, row, Path(), goal)


@pytest.fixture
def results() -> list[Result]:
    runs = [result("none", 0.001, seed, 0.4) for seed in range(2)]
    for weight, value, steps in ((0.001, 0.5, None), (0.01, 0.9, 40), (0.1, 0.88, 80)):
        # as a CSV file has it
        runs += [result("entropy", str(weight), seed, value + 0.01 * seed, steps) for seed in range(2)]
    return [*runs, result("adadem", 0.1, 0, 0.9), result("entropy", "lin_0.1", 0, 0.9)]


def test_terms_with_few_weights_and_schedules_are_left_out(results: list[Result]) -> None:
    found = by_weight(results, "E-v0")
    assert {term: list(runs) for term, runs in found.items()} == {"none": [0.0], "entropy": [0.001, 0.01, 0.1]}
    assert by_weight(results[:2], "E-v0") == {}


def test_the_table_names_best_weights_and_widths(results: list[Result]) -> None:
    *_, row = weights_table(results).splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["E", "entropy", "0.001 to 0.1 (3)", "2", "0.01", "≥ 1.0", "0.01", "0.0"]


def test_the_figure_has_a_point_per_weight_and_a_line_for_none(results: list[Result], tmp_path: Path) -> None:
    figure = weights_figure(results)
    assert figure is not None
    score, greedy, time = figure.axes
    for panel, mean in ((score, [0.505, 0.905, 0.885]), (greedy, [0.2525, 0.4525, 0.4425])):
        (entropy,) = [line for line in panel.lines if len(line.get_xdata()) == 3]
        assert list(entropy.get_ydata()) == pytest.approx(mean)
    (steps,) = [line for line in time.lines if len(line.get_xdata()) == 3]
    assert list(steps.get_ydata()) == [100.0, 40.0, 80.0]
    assert score.get_xscale() == "log"
    assert weights_figure(results[:2]) is None
    assert "width, decades" in write_report(results, tmp_path / "out", None)
    assert (tmp_path / "out" / "weights.svg").is_file()
