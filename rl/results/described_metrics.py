"""Descriptions of the metrics and files of rl.train, for :mod:`dem_apps.report`.

docs/metrics.md explains each key.
"""

from __future__ import annotations

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


def _scores(policy: str, prefix: str) -> list[Score]:
    return [
        *(
            Score(f"{prefix}{actions}.mean_return", f"return, {policy}{actions}", "higher")
            for actions in ACTIONS
        ),
        *(
            Score(
                f"{prefix}{actions}.success_rate",
                f"success %, {policy}{actions}",
                "higher",
                scale=100,
                digits=1,
            )
            for actions in ACTIONS
        ),
        *(
            Score(f"{prefix}{actions}.mean_length", f"length, {policy}{actions}", digits=1)
            for actions in ACTIONS
        ),
    ]


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
