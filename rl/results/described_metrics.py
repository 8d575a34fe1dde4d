"""Descriptions of the metrics and files of rl.train, for :mod:`dem_apps.report`.

docs/metrics.md explains each key.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from dem_apps.runtime.metrics_info import Metric, MetricsInfo, Score

#: Both are reported everywhere: one policy can score very differently under the two.
ACTIONS = ("sampled", "greedy")
METRICS = (
    *(
        Metric(f"eval/mean_return_{actions}", actions, "Return", "the environment's reward")
        for actions in ACTIONS
    ),
    *(Metric(f"eval/success_rate_{actions}", actions, "Success rate") for actions in ACTIONS),
    Metric("train/policy_entropy", "policy entropy", unit="nats"),
    Metric(
        "rollout/ep_rew_mean",
        "return of the last 100 training episodes",
        unit="the environment's reward",
    ),
    Metric(
        "train/entropy_objective",
        "entropy term",
        note="values of different objectives cannot be compared",
    ),
    Metric("train/ent_coef", "weight of the entropy term"),
    Metric("train/approx_kl", "KL divergence from the policy that acted", unit="nats"),
    Metric("train/clip_fraction", "share of samples that were clipped"),
    Metric("train/value_loss", "loss of the value function"),
    Metric("train/explained_variance", "explained variance of the returns"),
)


#: Figures of a policy with one kind of actions.
_FIGURES = (
    Score("mean_return", "return", "higher"),
    Score("success_rate", "success %", "higher", scale=100, digits=1),
    Score("mean_length", "length", digits=1),
)


def _scores(policy: str, prefix: str) -> list[Score]:
    scores = []
    for figure, actions in product(_FIGURES, ACTIONS):
        key, title = f"{prefix}{actions}.{figure.key}", f"{figure.title}, {policy}{actions}"
        scores.append(replace(figure, key=key, title=title))
    return scores


def described_metrics(summary: str = "") -> MetricsInfo:
    """The description of a run, which ``summary`` names in a few words."""
    note = "all steps where it was not reached, then no difference"
    to_goal = Score(
        "steps_without_goal", "steps to the goal", "lower", note, digits=0, reached="steps_to_goal"
    )
    last, best = _scores("", ""), _scores("best policy, ", "best.")
    return MetricsInfo(
        "Reinforcement learning",
        summary,
        settings=("env", "algo", "loss", "ent_coef"),
        task="env",
        metrics=METRICS,
        # a page folds those after the sixth
        scores=(*last[:4], to_goal, *best[:4], *last[4:], *best[4:]),
    )
