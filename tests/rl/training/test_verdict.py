"""What a finished training says of itself."""

from __future__ import annotations

import dataclasses

import pytest

from rl.config import TrainConfig
from rl.training.verdict import ended_at_worst, goal_figures, verdict

CONFIG = TrainConfig(timesteps=300, eval_freq=100, seed=4)


def test_a_run_that_arrived() -> None:
    figures = goal_figures({100: 0.1, 200: 0.9, 300: 0.95}, 0.86)
    assert figures == {"goal_return": 0.86, "steps_to_goal": 200, "steps_without_goal": 200}
    (line,) = verdict(CONFIG, {100: 0.1, 200: 0.9, 300: 0.95}, 0.95, figures)
    assert "first reached at step 200" in line


def test_a_run_that_never_did_is_censored_and_says_what_to_try() -> None:
    returns = {100: 0.0, 200: 0.1, 300: 0.0}
    figures = goal_figures(returns, 0.86)
    assert figures == {"goal_return": 0.86, "steps_to_goal": None, "steps_without_goal": 300}
    goal, warning = verdict(CONFIG, returns, 0.0, figures)
    assert "not reached in 300 steps" in goal
    assert "not reached in 1,024 steps" in verdict(CONFIG, {}, 0.0, {**figures, "steps_without_goal": 1024})[0]
    assert "lowest of the whole run" in warning
    for advice in ("--timesteps 900", "--ent-coef", "--seed 5"):
        assert advice in warning


@pytest.mark.parametrize(
    ("loss", "ent_coef", "large"),
    [
        ("entropy", 0.1, True), ("adadem", 0.3, True), ("entropy", 0.03, False), ("none", 0.1, False),
        ("entropy", "lin_0.1", False),
    ],
)  # fmt: skip
def test_no_run_is_told_to_try_what_it_has_tried(loss: str, ent_coef: float | str, large: bool) -> None:
    config = dataclasses.replace(CONFIG, loss=loss, ent_coef=ent_coef)
    _, warning = verdict(config, {100: 0.0, 200: 0.0}, 0.0, goal_figures({100: 0.0, 200: 0.0}, 0.86))
    weight = "--ent-coef 0.01" if large else "--loss entropy --ent-coef 0.1"
    assert f"--timesteps 900, {weight} (docs" in warning
    assert "and --seed 5 and others" in warning


def test_an_environment_without_a_goal() -> None:
    figures = goal_figures({100: 0.0}, None)
    assert figures == {"goal_return": None, "steps_to_goal": None, "steps_without_goal": None}
    assert verdict(CONFIG, {100: 0.0, 200: 5.0}, 5.0, figures) == []


@pytest.mark.parametrize(
    ("returns", "last", "goal", "worst"),
    [
        ({1: 5.0, 2: 3.0}, 3.0, None, True),  # it was better once
        ({1: 5.0, 2: 3.0}, 4.0, None, False),
        ({1: 1.0, 2: 1.0}, 1.0, 1.0, False),  # solved from the first evaluation on
        ({1: 0.0}, 0.0, None, False),  # the last policy itself
    ],
)
def test_ending_at_the_worst(returns: dict[int, float], last: float, goal: float | None, worst: bool) -> None:
    assert ended_at_worst(returns, last, goal) is worst
