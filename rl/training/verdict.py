"""What a finished training says about itself: when it reached the goal, and that it ended at its worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.config import TrainConfig


def goal_figures(returns: Mapping[int, float], goal: float | None) -> dict[str, Any]:
    """The keys of ``eval.json`` about the time to the goal.

    Args:
        returns: step → mean return under sampled actions, of each evaluation during training.
        goal: the return that has to be reached; None where nobody has said one.

    Returns:
        ``steps_to_goal`` is None for a run that never was at the goal: censored at ``steps_without_goal``, its last
        evaluation. Of one that was, both are the step of the first evaluation there.
    """
    first = None if goal is None else min((step for step, value in returns.items() if value >= goal), default=None)
    last = max(returns, default=None) if goal is not None else None
    return {"goal_return": goal, "steps_to_goal": first, "steps_without_goal": last if first is None else first}


def verdict(config: TrainConfig, returns: Mapping[int, float], last: float, figures: Mapping[str, Any]) -> list[str]:
    """Lines for people.

    Args:
        config: of the run.
        returns: as for :func:`goal_figures`.
        last: mean return of the last policy on episodes of its own.
        figures: of :func:`goal_figures`.
    """
    goal, steps = figures["goal_return"], figures["steps_to_goal"]
    lines = []
    if goal is not None:
        made = figures["steps_without_goal"] or config.timesteps  # whole rollouts, and so more than were asked for
        when = f"first reached at step {steps:,}" if steps is not None else f"not reached in {made:,} steps"
        lines.append(f"goal        return {goal:g}: {when} (evaluated every {config.eval_freq:,} steps)")
    if ended_at_worst(returns, last, goal):
        lines.append(
            f"WARNING     the last policy's return, {last:.3f}, is the lowest of the whole run: nothing was learnt, or "
            f"it was lost again. {_advice(config)}"
        )
    return lines


def _advice(config: TrainConfig) -> str:
    """What to try next; the weight goes the way that the run has not tried."""
    large = config.loss != "none" and isinstance(config.ent_coef, int | float) and config.ent_coef >= _WEIGHT
    weight = f"--ent-coef {_WEIGHT / 10:g}" if large else f"--loss entropy --ent-coef {_WEIGHT:g}"
    return (
        f"Try --timesteps {3 * (config.timesteps or 0)}, {weight} (docs/rl_answer.md), and --seed {config.seed + 1} "
        "and others before you conclude anything: whether a sparse reward is found at all differs from seed to seed"
    )


#: With it more runs find the goal on two of docs/rl_answer.md's sparse tasks, and none on a third.
_WEIGHT = 0.1


def ended_at_worst(returns: Mapping[int, float], last: float, goal: float | None) -> bool:
    """Whether no evaluation was below the last policy's return, of two at least, and that is no success."""
    return len(returns) > 1 and last <= min(returns.values()) and (goal is None or last < goal)
