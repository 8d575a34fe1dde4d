"""The end of a training: the time to the goal, and a warning if the last policy is the worst."""

import pytest
from support.refusals import refuses

from dem_apps.errors import InputError
from rl.config import TrainConfig, resolve
from rl.training.run import goal_figures, untrained_model, verdict
from rl.training.state import restore_train_state, train_state

CONFIG = TrainConfig(timesteps=300, eval_freq=100)


@pytest.mark.parametrize(
    ("returns", "goal", "first", "without"),
    [
        ({100: 0.1, 200: 0.9, 300: 0.95}, 0.86, 200, 200),
        ({100: 0.0, 200: 0.1, 300: 0.0}, 0.86, None, 300),  # censored
        ({100: 0.0}, None, None, None),
    ],
)
def test_the_time_to_the_goal(returns, goal, first, without):
    figures = goal_figures(returns, goal)
    assert figures == {"goal_return": goal, "steps_to_goal": first, "steps_without_goal": without}
    lines = verdict(CONFIG, returns, 0.96, figures)
    assert len(lines) == (goal is not None)
    if goal is not None:
        said = "first reached at step 200" if first else "not reached in 300 steps"
        assert f"return 0.86: {said} (evaluated every 100 steps)" in lines[0]


@pytest.mark.parametrize(
    ("returns", "last", "goal", "worst"),
    [
        ({1: 5.0, 2: 3.0}, 3.0, None, True),  # it was better once
        ({1: 5.0, 2: 3.0}, 4.0, None, False),
        ({1: 1.0, 2: 1.0}, 1.0, 1.0, False),  # solved from the first evaluation on
        ({1: 0.0}, 0.0, None, False),  # the last policy itself
    ],
)
def test_ending_at_the_worst(returns, last, goal, worst):
    lines = verdict(CONFIG, returns, last, goal_figures(returns, goal))
    assert any(f"{last:.3f}, is the lowest of the whole run" in line for line in lines) is worst


def test_a_checkpoint_of_other_values_is_one_sentence():
    small = {"n_steps": 32, "n_envs": 1}
    model = untrained_model(resolve(TrainConfig(env="CartPole-v1", timesteps=64, hyperparameters=small)))
    state = {"step": 32, **train_state(model.learn(32))}
    record = state["envs"][0]
    for part, value in (("random", {}), ("envs", [{**record, "seed": -1}]), ("envs", [{**record, "seed": 0.5}])):
        refuses("a value does not fit this run", restore_train_state, model, {**state, part: value})
    with pytest.raises(InputError, match=r"a value does not fit this run .*random"):
        restore_train_state(model, {key: value for key, value in state.items() if key != "random"})
